"""`import_parquet`: a folder of Parquet files becomes a table, in one commit and without holding it in memory."""

from __future__ import annotations

import os

import pyarrow as pa

from headwater.catalog import Catalog, CatalogTable
from headwater.catalog.catalog import Name
from headwater.decoding.files import read_folder
from headwater.errors import InvalidInputError


def import_parquet(
    catalog: Catalog, name: Name, source: str | os.PathLike[str], mode: str = "create", hive: bool = True
) -> CatalogTable:
    """Make a table of all Parquet files in a folder, or of one file; `mode` as of `create_table`.

    Columns are matched by name: a file without one has nulls there. With `hive`, folders such as `day=7` are columns.
    Error 13: there are no such files, or two of them do not agree on a column.
    """
    return catalog.create_table(name, _reader(os.fspath(source), hive), mode=mode)


def _reader(source: str, hive: bool) -> pa.RecordBatchReader:
    if not os.path.exists(source):
        raise InvalidInputError(f"There is no file or folder {source!r}.")
    files = [source] if os.path.isfile(source) else _files(source)
    if not files:
        raise InvalidInputError(f"There is no Parquet file (*.parquet) in {source!r}.")
    return read_folder(files, None if os.path.isfile(source) else source, hive, f"{source!r} cannot be read as Parquet")


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
