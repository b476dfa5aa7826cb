"""The Lance REST protocol: a server over any catalog, and the client of one.

client -> server (uvicorn, Starlette) -> gate (who is asking) -> dispatch (one row of routes) -> LanceNamespace
"""
