"""Authentication and authorization: API keys, bearer JWTs, roles and scopes, the gate in front of every route."""
