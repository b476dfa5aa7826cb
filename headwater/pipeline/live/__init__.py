"""Live sources: databases, topics and APIs that have offsets instead of files (docs/design/045-live-sources.md).

grammar -> source_specs (`LiveSpec` of a [[source]])  pure
live_runs -> `LiveSpec.opened` -> `LiveReader`        takes batches: rows and the offset after them
          -> `commit`                                 one commit: rows of all tables, and the offset
          -> `LiveReader.acknowledge`                 only then the source may forget them
"""
