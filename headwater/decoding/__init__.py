"""Decoders of data from outside: the only callers of the readers of Arrow, Feather, Parquet, ORC, CSV and JSON.

arrow     Arrow IPC: streams, files, schemas
parquet   Parquet, measured by its footer and page headers before it is decoded
text      CSV, JSON and compressed text
bounds    how large data may become, and what a schema may be
"""
