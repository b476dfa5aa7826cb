"""The Lance REST protocol: a server over any catalog, and the client of one.

client -> uvicorn, bounded -> middleware (log, own site, gate, limits) -> endpoint -> dispatch -> LanceNamespace
"""
