"""Spark SQL: one parser for views, checks and queries, and the embedded engine that runs what it can translate.

text ─▶ spark_parser (sqlglot) ─▶ tree ─┬▶ the tables it reads, its slices
                                   ├▶ Spark runs the text
                                   └▶ selects, functions ─▶ DuckDB (embedded)
"""
