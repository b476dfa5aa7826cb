"""Adapters of other back ends: any implementation of `lance_namespace` as a catalog of ours.

name or class ── loading ── AdaptedNamespace ── the back end

A missing operation is UnsupportedOperation (0), an error has a code of the protocol, and no failure is a 500.
"""

from headwater.adapter.adapted import AdaptedNamespace, adapt, open_adapted

__all__ = ["AdaptedNamespace", "adapt", "open_adapted"]
