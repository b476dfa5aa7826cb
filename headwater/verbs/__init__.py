"""Operations beyond `LanceNamespace`: each is a request, the right that it needs, and one handler.

A local catalog calls a handler directly, a client sends its request to a server, which calls the same handler. Routes,
the OpenAPI document, the access rules and the audit log read the rows (`headwater/verbs/all_verbs.py`).
"""
