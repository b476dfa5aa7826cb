"""Who is asking and what they may do: API keys, bearer JWTs, roles and scopes, the gate in front of every route."""
