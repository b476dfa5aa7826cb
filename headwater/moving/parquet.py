"""`import_parquet`: a folder of Parquet files becomes a table, in one commit and without holding it in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.dataset

from headwater.catalog import Catalog, CatalogTable
from headwater.catalog.catalog import Name
from headwater.errors import InvalidInputError


def import_parquet(
    catalog: Catalog, name: Name, source: str | os.PathLike[str], mode: str = "create", hive: bool = True
) -> CatalogTable:
    """Make a table of all Parquet files in a folder, or of one file; `mode` as of `create_table`.

    Columns are matched by name: a file without one has nulls there. With `hive`, folders such as `day=7` are columns.
    Error 13: there are no such files, or two of them do not agree on a column.
    """
    found = _dataset(os.fspath(source), hive)
    reader = found.scanner().to_reader()
    return catalog.create_table(name, _named(reader, os.fspath(source)), mode=mode)


def _dataset(source: str, hive: bool) -> pa.dataset.Dataset:
    if not os.path.exists(source):
        raise InvalidInputError(f"There is no file or folder {source!r}.")
    files = [source] if os.path.isfile(source) else _files(source)
    if not files:
        raise InvalidInputError(f"There is no Parquet file (*.parquet) in {source!r}.")
    partitioning = "hive" if hive else None
    base = None if os.path.isfile(source) else source
    try:
        first = pa.dataset.dataset(files, format="parquet", partitioning=partitioning, partition_base_dir=base)
        schemas = [first.schema, *(fragment.physical_schema for fragment in first.get_fragments())]
        unified = pa.unify_schemas(schemas, promote_options="permissive")
        return pa.dataset.dataset(files, unified, format="parquet", partitioning=partitioning, partition_base_dir=base)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _unreadable(source, error) from None


def _files(folder: str) -> list[str]:
    """Hidden files, and those of unfinished jobs (`_temporary`), are no data. Error 13 for a link out of the folder."""
    found: list[str] = []
    inside = os.path.join(os.path.realpath(folder), "")
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        found += [os.path.join(at, name) for name in sorted(names) if _is_data(name)]
    for file in found:
        if not os.path.realpath(file).startswith(inside):
            raise InvalidInputError(
                f"{os.path.relpath(file, folder)!r} is a link to a file outside of {folder!r}, which is not followed: "
                "copy the file, or take the link away."
            )
    return found


def _is_data(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith((".", "_"))


def _named(reader: pa.RecordBatchReader, source: str) -> pa.RecordBatchReader:
    """A file that turns out to be damaged is named as the caller's mistake."""

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(source, error) from None

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _unreadable(source: str, error: BaseException) -> InvalidInputError:
    lines = str(error).splitlines() or [type(error).__name__]
    return InvalidInputError(f"{source!r} cannot be read as Parquet: {lines[0][:200]}")
