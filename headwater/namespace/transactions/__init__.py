"""Transactions of a metastore catalog: open ones, the rows they append, and the tags and branches they change."""
