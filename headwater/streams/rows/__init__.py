"""Rows as callers give them, their types, casts, keys and hashes. Pure, over Arrow."""
