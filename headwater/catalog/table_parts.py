"""The tags, branches, indices and table versions of a table: `table.tags["best"] = 3`, `del table.branches["try"]`.

Rows of local files by their ending, a path or a glob: Parquet, Arrow, ORC, CSV, JSON lines, and Lance datasets.

Parquet, Arrow, ORC and Lance are read a batch at a time, however large they are; CSV and JSON lines whole.
"""

from __future__ import annotations

import functools
import glob
import os
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater import streams
from headwater.arguments import check_options, checked
from headwater.decoding.arrow import read_arrow_path
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from headwater.imports import lance, when_used
from headwater.metastore.records.objects import ACTIVE
from headwater.names import ObjectId, format_name
from headwater.namespace.abilities import abilities_of
from headwater.namespace.requests import build
from headwater.paging import all_pages
from headwater.tables.write.input_rows import fit, reader_of, with_vectors
from headwater.wording import closest_path, did_you_mean, many

if TYPE_CHECKING:
    from headwater.decoding import files, parquet
    from headwater.verbs import all_verbs, table_versions
    from headwater.verbs.table_versions import NamedVersion
else:
    files, parquet = when_used("headwater.decoding.files"), when_used("headwater.decoding.parquet")
    all_verbs, table_versions = when_used("headwater.verbs.all_verbs"), when_used("headwater.verbs.table_versions")


class Tags(MutableMapping[str, int]):
    """The tags of a table: names of versions. Assignment creates or moves a tag."""

    def __init__(self, namespace: LanceNamespace, id: ObjectId) -> None:
        self._namespace = namespace
        self._id = list(id.names)

    def __getitem__(self, name: str) -> int:
        request = build(api.GetTableTagVersionRequest, id=self._id, tag=name)
        try:
            return int(self._namespace.get_table_tag_version(request).version)
        except TableTagNotFoundError as missing:
            raise _MissingTagError(str(missing)).near(name, self) from None

    def __setitem__(self, name: str, version: int) -> None:
        if name in self:
            self._namespace.update_table_tag(build(api.UpdateTableTagRequest, id=self._id, tag=name, version=version))
        else:
            self.create(name, version)

    def __delitem__(self, name: str) -> None:
        self._namespace.delete_table_tag(build(api.DeleteTableTagRequest, id=self._id, tag=name))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._all())

    def __len__(self) -> int:
        return sum(1 for _ in self._all())

    def __repr__(self) -> str:
        return repr({name: int(found.version) for name, found in self._all()})

    def create(self, name: str, version: int, branch: str | None = None) -> None:
        """Create a tag, also of a version on a branch. Raises TableTagAlreadyExists."""
        request = build(api.CreateTableTagRequest, id=self._id, tag=name, version=version, branch=branch)
        self._namespace.create_table_tag(request)

    def branch_of(self, name: str) -> str | None:
        """Return the branch of the tagged version; None for the main branch."""
        return next((found.branch for tag, found in self._all() if tag == name), None)

    def _all(self) -> Iterator[tuple[str, Any]]:
        return all_pages(self._namespace.list_table_tags, build(api.ListTableTagsRequest, id=self._id), "tags")


class NamedVersions(Mapping[str, Any]):
    """The table versions of a table by id, each a handle that reads and writes it: `table.table_versions["2"]`.

    Readers by the table's name get the active one. `open`: returns the handle of the table in a catalog.
    """

    def __init__(self, namespace: LanceNamespace, id: ObjectId, open: Callable[[LanceNamespace], object]) -> None:
        self._namespace = namespace
        self._id = id
        self._open = open

    def opened_by(self, open: Callable[[LanceNamespace], object]) -> NamedVersions:
        """Return the same versions with handles of another kind."""
        return NamedVersions(self._namespace, self._id, open)

    def __getitem__(self, version: str) -> Any:
        choose = abilities_of(self._namespace).table_version
        if choose is None:
            raise UnsupportedOperationError(f"This catalog {table_versions.NO_VERSIONS}.")
        known = self.list()
        if version not in (each.id for each in known):
            raise _MissingTableVersionError(
                f"Table {format_name(self._id.names)} has no table version {version!r}."
            ).near(str(version), [each.id for each in known])
        return self._open(choose(self._id, version))

    def __iter__(self) -> Iterator[str]:
        return (each.id for each in self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __repr__(self) -> str:
        return repr({each.id: each.lifecycle for each in self.list()})

    def list(self) -> list[NamedVersion]:
        """Return the versions in the order of their creation, each with its lifecycle."""
        return list(all_verbs.ask(self._namespace, table_versions.ListNamedVersions(id=self._id.names)))

    @property
    def active(self) -> str:
        """The id of the active version."""
        found = [each.id for each in self.list() if each.lifecycle == ACTIVE]
        if not found:
            raise TableVersionNotFoundError(f"Table {format_name(self._id.names)} has no active table version.")
        return found[-1]

    def create(
        self,
        version: str,
        data: object = None,
        schema: pa.Schema | Mapping[str, object] | str | None = None,
        keys: Sequence[str] | str = (),
        sequence: Sequence[str] | str = (),
        partition_by: Sequence[object] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Any:
        """Create a version beside the active one. It is unreleased until it is activated.

        Of a Lance table: `data` are its first rows, as `create_table` takes them. Of a stream table: `schema`, `keys`
        and the others are as `create_stream_table` takes them, and rows are landed by the handle that is returned. In
        a transaction there is none: activate the version there, and land by the table's name.
        """
        rows, send = new_rows(data, schema), abilities_of(self._namespace).call
        define_it = functools.partial(streams.define, rows.schema, keys, sequence, partition_by, properties)
        if send is None:
            table_versions.make_version(self._namespace, self._id, version, rows, define_it)
        else:
            fields = (
                table_versions.definition_fields(define_it()) if keys or sequence or partition_by or properties else {}
            )
            send(table_versions.CreateNamedVersion(id=self._id.names, version=version, **fields), rows.read_all())
        return None if abilities_of(self._namespace).in_transaction else self[version]

    def activate(self, version: str) -> None:
        """Make a version the active one, in one commit. The one before becomes deprecated, and stays readable."""
        all_verbs.ask(self._namespace, table_versions.ActivateNamedVersion(id=self._id.names, version=version))

    def drop(self, version: str) -> None:
        """Drop a version that is not the active one."""
        all_verbs.ask(self._namespace, table_versions.DropNamedVersion(id=self._id.names, version=version))


class Listed(Mapping[str, Any]):
    """A mapping of the parts of a table by name, which lists them again at each access."""

    def __init__(self, namespace: LanceNamespace, id: ObjectId) -> None:
        self._namespace = namespace
        self._id = list(id.names)

    def __getitem__(self, name: str) -> Any:
        for found, item in self._all():
            if found == name:
                return item
        raise self._missing(str(name))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._all())

    def __len__(self) -> int:
        return sum(1 for _ in self._all())

    def __repr__(self) -> str:
        return repr(list(self))

    @abstractmethod
    def _all(self) -> Iterator[tuple[str, Any]]: ...

    @abstractmethod
    def _missing(self, name: str) -> KeyError:
        """Return the error of a missing name: a KeyError, so that `in` and `get` work."""


class Branches(Listed):
    """The branches of a table other than the main one, each with its origin."""

    def create(self, name: str, version: int | None = None, branch: str | None = None) -> None:
        """Create a branch from a version, by default the newest, of the main branch or of `branch`."""
        request = build(api.CreateTableBranchRequest, id=self._id, name=name, from_version=version, from_branch=branch)
        self._namespace.create_table_branch(request)

    def __delitem__(self, name: str) -> None:
        self._namespace.delete_table_branch(build(api.DeleteTableBranchRequest, id=self._id, name=name))

    def _all(self) -> Iterator[tuple[str, Any]]:
        return all_pages(
            self._namespace.list_table_branches, build(api.ListTableBranchesRequest, id=self._id), "branches"
        )

    def _missing(self, name: str) -> KeyError:
        return _MissingBranchError(f"Table {format_name(self._id)} has no branch {name[:200]!r}.").near(name, self)


def new_rows(data: object, columns: pa.Schema | Mapping[str, object] | str | None) -> pa.RecordBatchReader:
    """Return a reader of the rows of a new table, in the types of its schema if there is one."""
    schema = None if columns is None else pa.schema(streams.fields_of(columns))
    if data is None and schema is not None:
        return schema.empty_table().to_reader()
    is_path = isinstance(data, str | os.PathLike)
    rows = rows_at(data) if is_path else reader_of(data, vectors=schema is None)  # type: ignore[arg-type]
    return rows if schema is None else fit(rows, schema)


def near_name(catalog: Any, name: Any) -> str | None:
    """Return the full name of the table or namespace that is most like a name that does not exist."""
    near = closest_path(catalog._id(name).names, lambda parent: [*catalog.namespaces(parent), *catalog.tables(parent)])
    return None if near is None else format_name(near)


class Missing(KeyError):
    """A KeyError whose text is a sentence. It ends with the name that was meant, looked for when it is read."""

    meant: Callable[[], str] | None = None

    def near(self, name: str, known: Iterable[str]) -> Self:
        self.meant = functools.partial(did_you_mean, name, known)
        return self

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else ""
        try:
            return text if self.meant is None else f"{text}{self.meant()}"
        except LanceNamespaceError:
            return text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args


class _MissingTableVersionError(Missing, TableVersionNotFoundError):
    """TableVersionNotFound (11)."""


class _MissingTagError(Missing, TableTagNotFoundError):
    """TableTagNotFound (8)."""


class _MissingBranchError(Missing, TableBranchNotFoundError):
    """TableBranchNotFound (22)."""


SCALAR_TYPES = ("BTREE", "BITMAP", "LABEL_LIST", "FTS", "INVERTED", "NGRAM", "ZONEMAP", "BLOOM_FILTER", "RTREE")

INDEX_OPTIONS = (
    *("name", "branch", "distance_type", "num_partitions", "num_sub_vectors", "num_bits", "sample_rate", "m", "stem"),
    *("max_iterations", "target_partition_size", "ef_construction", "with_position", "base_tokenizer", "language"),
    *("max_token_length", "lower_case", "remove_stop_words", "ascii_folding"),
)
"""Options of CreateTableIndex."""


@checked
class Indices(Listed):
    """The indices of a table by name, each with its columns, type and number of rows."""

    def __delitem__(self, name: str) -> None:
        self._namespace.drop_table_index(build(api.DropTableIndexRequest, id=self._id, index_name=name))

    def create(self, column: str, type: str | None, schema: pa.Schema, **options: object) -> None:
        """Create an index on a column. `type`: by default what fits the column (`index_type_of`)."""
        check_options(options, INDEX_OPTIONS, "An index")
        if type is None and column not in schema.names:
            raise TableColumnNotFoundError(
                f"The table has no column {column[:200]!r}: it has {', '.join(schema.names)}."
            )
        kind = (type or index_type_of(schema.field(column).type)).upper()
        request = build(api.CreateTableIndexRequest, id=self._id, column=column, index_type=kind, **options)
        if kind in SCALAR_TYPES:
            self._namespace.create_table_scalar_index(request)
        else:
            self._namespace.create_table_index(request)

    def stats(self, name: str) -> Any:
        """Return the numbers of indexed and unindexed rows of an index."""
        request = build(api.DescribeTableIndexStatsRequest, id=self._id, index_name=name)
        return self._namespace.describe_table_index_stats(request)

    def _all(self) -> Iterator[tuple[str, Any]]:
        request = build(api.ListTableIndicesRequest, id=self._id)
        return ((item.index_name, item) for item in all_pages(self._namespace.list_table_indices, request, "indexes"))

    def _missing(self, name: str) -> KeyError:
        return _MissingIndexError(f"Table {format_name(self._id)} has no index {name[:200]!r}.").near(name, self)


class _MissingIndexError(Missing, TableIndexNotFoundError):
    """TableIndexNotFound (6)."""


def index_type_of(kind: pa.DataType) -> str:
    """Return the default index type of a column: IVF_PQ for vectors, label list, full text, or by value."""
    if pa.types.is_fixed_size_list(kind):
        return "IVF_PQ"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "LABEL_LIST"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "FTS"
    if pa.types.is_boolean(kind):
        return "BITMAP"
    return "BTREE"


JSON_LINES = (".jsonl", ".ndjson", ".json")
ARROW = (".arrow", ".arrows", ".ipc", ".feather")
PARQUET, ORC, CSV, LANCE = ".parquet", ".orc", ".csv", ".lance"
QUIET_SECONDS, EVERY_SECONDS = 2.0, 0.5
"""A load shows its progress after some seconds, and then so often."""
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
    found = [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True), key=streams.natural_order)
    if not found:
        raise InvalidInputError(f"There is no file {name!r}.")
    endings = {Path(each).suffix for each in found}
    if len(endings) > 1:
        raise InvalidInputError(f"The files of {name!r} end in {', '.join(sorted(endings))}: take one kind at a time.")
    if endings == {PARQUET} and len(found) > 1:
        return files.read_folder(found, None, False, f"{name!r} cannot be read as Parquet")
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
        file = parquet.ParquetRows(name) if ending == PARQUET else files.OrcRows(name)
        return pa.RecordBatchReader.from_batches(file.schema, file.batches())
    if ending == CSV:
        return files.read_csv(name, dict(types or {})).to_reader()
    if ending in JSON_LINES:
        found = files.read_json_lines(name, pa.schema(list(types.items())) if types else None)
        return (found if types else with_vectors(found)).to_reader()
    if ending in ARROW:
        return read_arrow_path(name)
    raise InvalidInputError(f"{name!r} cannot be read: a file is read by its ending, {', '.join(ENDINGS)}.")


def with_progress(rows: pa.RecordBatchReader, what: str) -> pa.RecordBatchReader:
    """Return the same rows. On a terminal and in a notebook, a long load shows how many rows it has read.

    One line of stderr is rewritten: notebooks show that as terminals do, without widgets.
    """
    if not sys.stderr.isatty() and "ipykernel" not in sys.modules:
        return rows
    return pa.RecordBatchReader.from_batches(rows.schema, _counted(rows, what))


def _counted(rows: pa.RecordBatchReader, what: str) -> Iterator[pa.RecordBatch]:
    begun = shown = time.monotonic()
    count, line = 0, ""
    try:
        for batch in rows:
            yield batch
            count, now = count + batch.num_rows, time.monotonic()
            if now - begun >= QUIET_SECONDS and now - shown >= EVERY_SECONDS:
                line, shown = f"{what}: {many(count, 'row')} read in {now - begun:.0f} s", now
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
    finally:
        if line:
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


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
