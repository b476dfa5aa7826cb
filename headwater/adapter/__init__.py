"""Back ends of others: any implementation of `lance_namespace` as a catalog of ours, behind our server or command line.

name or class ── loading ── AdaptedNamespace ── the back end
                               │ failures: what it meant to say, by its exception and by looking

What the back end cannot do is Unsupported (0), what it refuses has a code of the protocol, and no failure is a 500.
"""

from headwater.adapter.adapted import AdaptedNamespace, adapt
from headwater.adapter.loading import open_adapted

__all__ = ["AdaptedNamespace", "adapt", "open_adapted"]
