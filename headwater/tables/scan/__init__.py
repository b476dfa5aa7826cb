"""Reads of a Lance table: a driver plans a scan as parts, and executors read each part as Arrow batches."""
