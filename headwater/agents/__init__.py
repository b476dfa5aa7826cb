"""A catalog for agents: read-only tools over the Model Context Protocol, on stdio.

    agent ── serving: one call, checked, bounded ── worker: CatalogTools ── Catalog, look-ups, the command line's SELECT
          (and the schema of each tool)                       answers (limits of rows and bytes)

Every call runs in a disposable worker, which is killed if the call does not end.
"""
