"""Reads of a stream table: fresh reads at a position, the change feed, and named readers."""
