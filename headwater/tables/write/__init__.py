"""Rows on their way into a Lance table: input rows, casts to the table's types, Arrow streams and data files."""
