"""`headwater`: verbs for people and (with --json) for programs.

grammar (what can be said) ── parsing ── main ── look, rows, change, moments, pipeline, serving ...
                                           │                    │
                                 errors as exits       target (which catalog; names) ── lookups (light) or Catalog
"""

from headwater.cli.main import main

__all__ = ["main"]
