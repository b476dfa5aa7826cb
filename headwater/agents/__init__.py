"""A catalog for agents: read-only tools over the Model Context Protocol, on stdio.

    agent ── serving: one call, checked, bounded ── worker: Looking ── Catalog, look-ups, the command line's SELECT
               asking (what each tool takes)                   answers (rows, bytes, and what was cut)

Every call runs in a disposable worker, so that one which does not end is ended and takes nothing with it.
"""
