"""Formats of change data: each a function from the caller's input to rows with their kinds."""
