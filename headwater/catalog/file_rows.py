"""Rows of local files by their ending, a path or a glob: Parquet, Arrow, ORC, CSV, JSON lines, and Lance datasets.

Parquet, Arrow, ORC and Lance are read a batch at a time, however large they are; CSV and JSON lines whole.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.decoding.arrow import read_arrow_path
from headwater.decoding.files import OrcRows, read_csv, read_folder, read_json_lines
from headwater.decoding.parquet import ParquetRows
from headwater.errors import InvalidInputError
from headwater.imports import lance
from headwater.streams.sources.source_files import natural_order
from headwater.tables.write.input_rows import with_vectors

JSON_LINES = (".jsonl", ".ndjson", ".json")
ARROW = (".arrow", ".arrows", ".ipc", ".feather")
PARQUET, ORC, CSV, LANCE = ".parquet", ".orc", ".csv", ".lance"
ENDINGS = (PARQUET, *ARROW, ORC, CSV, *JSON_LINES, LANCE)


def rows_at(text: str | os.PathLike[str]) -> pa.RecordBatchReader:
    """Return the rows of a file, of the files of a glob (in the order of their names), or of a Lance dataset.

    Columns of several files are matched by name. InvalidInput (13) if there is no file, or one cannot be read.
    """
    name = os.fspath(text)
    if "://" in name:
        raise InvalidInputError(
            f"{name!r} is not a local file: give a dataset of pyarrow or pylance, or ingest it into a stream table."
        )
    found = [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True), key=natural_order)
    if not found:
        raise InvalidInputError(f"There is no file {name!r}.")
    endings = {Path(each).suffix for each in found}
    if len(endings) > 1:
        raise InvalidInputError(f"The files of {name!r} end in {', '.join(sorted(endings))}: take one kind at a time.")
    if endings == {PARQUET} and len(found) > 1:
        return read_folder(found, None, False, f"{name!r} cannot be read as Parquet")
    return _joined([read_file(each) for each in found])


def read_file(name: str, types: Mapping[str, Any] | None = None) -> pa.RecordBatchReader:
    """Return the rows of one file, or of a Lance dataset.

    `types`: of columns of CSV and JSON lines. Without them, equal-length lists of floats in JSON lines are vectors.
    """
    ending = Path(name).suffix
    if ending == LANCE:
        rows: pa.RecordBatchReader = lance.dataset(name).scanner().to_reader()
        return rows
    if os.path.isdir(name):
        raise InvalidInputError(
            f"{name!r} is a folder: give a glob such as {os.path.join(name, '*.parquet')!r}, or use "
            "headwater.moving.import_parquet, which makes columns of folders such as day=7."
        )
    if ending in (PARQUET, ORC):
        file = ParquetRows(name) if ending == PARQUET else OrcRows(name)
        return pa.RecordBatchReader.from_batches(file.schema, file.batches())
    if ending == CSV:
        return read_csv(name, dict(types or {})).to_reader()
    if ending in JSON_LINES:
        found = read_json_lines(name, pa.schema(list(types.items())) if types else None)
        return (found if types else with_vectors(found)).to_reader()
    if ending in ARROW:
        return read_arrow_path(name)
    raise InvalidInputError(f"{name!r} cannot be read: a file is read by its ending, {', '.join(ENDINGS)}.")


def _joined(readers: Sequence[pa.RecordBatchReader]) -> pa.RecordBatchReader:
    """Return one reader over several, with the columns of all: a file without a column has nulls there."""
    if len(readers) == 1:
        return readers[0]
    try:
        schema = pa.unify_schemas([each.schema for each in readers], promote_options="permissive")
    except pa.ArrowException as error:
        raise InvalidInputError(f"The files do not agree on a column: {str(error).splitlines()[0][:200]}") from None
    return pa.RecordBatchReader.from_batches(schema, chain.from_iterable(_as(each, schema) for each in readers))


def _as(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        columns = [
            batch.column(field.name).cast(field.type) if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]  # fmt: skip
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
