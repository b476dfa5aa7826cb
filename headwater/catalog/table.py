"""`CatalogTable`: rows, versions, columns and indices of one table. It calls only `LanceNamespace`, so that a table
behind a server is used as one on disk is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater import notebook
from headwater.arguments import check_options, checked
from headwater.catalog.results import TableSearch, TableVersion, WriteResult, depth, search_request, written
from headwater.catalog.table_parts import Branches, Indices, NamedVersions, Tags
from headwater.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from headwater.imports import lance
from headwater.lance_manifest import CHANGE
from headwater.names import ObjectId, format_name
from headwater.namespace.abilities import abilities_of, read_rows, write_rows
from headwater.namespace.data.describe import statistics, type_to_json
from headwater.namespace.requests import build, parse_request
from headwater.notebook import ShownList
from headwater.paging import all_pages
from headwater.schema_text import parse_type
from headwater.tables.columns.fields import sql_type
from headwater.tables.expressions import assigned
from headwater.tables.handle import TableHandle, opened_through
from headwater.tables.translate import translating
from headwater.tables.write.arrow import Frames
from headwater.tables.write.input_rows import reader_of

DESCRIBED = (
    "version",
    "tag",
    "branch",
    "with_table_uri",
    "load_detailed_metadata",
    "check_declared",
    "vend_credentials",
)


@checked
@dataclass(frozen=True)
class CatalogTable(Frames):
    """One table of a catalog: its newest version, or the one of `version`, on the main branch or `branch`."""

    namespace: LanceNamespace
    id: ObjectId
    version: int | None = None
    branch: str | None = None
    is_stream: ClassVar[bool] = False

    @property
    def serving(self) -> CatalogTable:
        """This table. A stream table has its serving copy under the same name."""
        return self

    @property
    def name(self) -> str:
        return format_name(self.id.names)

    def __repr__(self) -> str:
        pinned = "" if self.version is None else f", version={self.version}"
        branch = "" if self.branch is None else f", branch={self.branch!r}"
        past = abilities_of(self.namespace).past
        return f"CatalogTable({self.name!r}{pinned}{branch}{'' if past is None else f', at {past}'})"

    def _repr_html_(self) -> str:
        return notebook.table(self)

    # What it is

    def describe(self, **options: object) -> api.DescribeTableResponse:
        check_options(options, DESCRIBED, "describe")
        return self.namespace.describe_table(build(api.DescribeTableRequest, id=list(self.id.names), **options))

    @property
    def schema(self) -> pa.Schema:
        return self._read(k=1).schema

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties in the catalog."""
        return dict(self.describe(load_detailed_metadata=False).properties or {})

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the table's schema, which every Lance client sees."""
        found = self.schema.metadata or {}
        return {key.decode(): value.decode() for key, value in found.items()}

    def set_metadata(self, values: Mapping[str, str]) -> None:
        """Replace the metadata of the table's schema."""
        request = build(api.UpdateTableSchemaMetadataRequest, metadata=dict(values), **self._there())
        self.namespace.update_table_schema_metadata(request)

    def stats(self) -> api.GetTableStatsResponse:
        """Return the numbers of rows, bytes, fragments and indices, of the version and branch of this handle.

        The statistics of an older version are read from its files, by this process.
        """
        if self.version is not None:
            return statistics(self.dataset())
        request = build(api.GetTableStatsRequest, id=list(self.id.names), branch=self.branch)
        return self.namespace.get_table_stats(request)

    def dataset(self, version: int | None = None) -> lance.LanceDataset:
        """Return the table as a pylance dataset. It commits through the catalog if that manages versions."""
        wanted = self.version if version is None else version
        with translating(TableHandle(self.id, ""), "open", otherwise=InvalidTableStateError):
            dataset = opened_through(self.namespace, self.id.names)
            handle = TableHandle(self.id, dataset.uri)
        with translating(handle, "open", otherwise=InvalidTableStateError):
            if self.branch is not None:
                return handle.checked(dataset.checkout_version((self.branch, wanted)))
            return handle.checked(dataset if wanted is None else dataset.checkout_version(wanted))

    # Rows out

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        version: int | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader of the rows, or of those that a SQL filter keeps. Memory does not grow with their number."""
        chosen = {"column_names": list(columns)} if columns is not None else None
        reader = self._read(k=limit or 0, columns=chosen, filter=filter, version=version)
        return reader if limit is None or limit > 0 else pa.RecordBatchReader.from_batches(reader.schema, [])

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        version: int | None = None,
    ) -> pa.Table:
        """Return the rows, or those that a SQL filter keeps."""
        return self.to_batches(columns, filter, limit, version).read_all()

    def count(self, filter: str | None = None) -> int:
        request = build(api.CountTableRowsRequest, predicate=filter, version=self.version, **self._there())
        answer: Any = self.namespace.count_table_rows(request)
        return int(getattr(answer, "count", answer))

    def search(
        self,
        query: Any = None,
        *,
        vector: Sequence[float] | None = None,
        text: str | None = None,
        column: str | None = None,
        k: int | None = None,
        limit: int | None = None,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> TableSearch:
        """Return the `k` rows nearest to a vector (with `_distance`), or best for a text (with `_score`), best first.

        With both, the two searches are joined by their ranks (`_relevance`). `query` is the one or the other. More can
        be said step by step: `search(vector).where("price < 10").limit(3).to_pandas()`.
        `limit` is another name of `k`, which is 10 when neither is given.
        `options` are those of the protocol's QueryTable, such as nprobes, refine_factor, distance_type.
        """
        if isinstance(query, str):
            text = query
        elif query is not None:
            vector = query
        if vector is None and text is None:
            raise InvalidInputError("A search needs a vector or a text.")
        k = depth(k, limit)
        asked = {"column": column, "k": k, "filter": filter, "columns": columns, **options}
        search_request(vector, text, **asked)  # what is wrong with it is said at once
        return TableSearch(self._read, vector, text, asked)

    # Rows in

    def append(self, data: object) -> WriteResult:
        """Append rows, with columns by name. InvalidInput (13) for a value that the column's type cannot hold."""
        request = build(api.InsertIntoTableRequest, mode="append", **self._now("append to"))
        return written(write_rows(self.namespace, "insert_into_table", request, reader_of(data)))

    def overwrite(self, data: object) -> WriteResult:
        """Replace all rows by these, as the next version."""
        request = build(api.InsertIntoTableRequest, mode="overwrite", **self._now("overwrite"))
        return written(write_rows(self.namespace, "insert_into_table", request, reader_of(data)))

    def upsert(self, data: object, on: str | Sequence[str]) -> WriteResult:
        """Update the rows whose key exists, and insert the others."""
        return self.merge(data, on, update=True, insert=True)

    def merge(
        self,
        data: object,
        on: str | Sequence[str],
        *,
        update: bool | str = False,
        insert: bool = False,
        delete: bool | str = False,
    ) -> WriteResult:
        """Merge rows by key: update rows that match, insert new ones, delete those that `data` lacks.

        `update` and `delete` can be a SQL condition: only rows that meet it.
        """
        request = build(
            api.MergeInsertIntoTableRequest,
            on=[on] if isinstance(on, str) else list(on),
            when_matched_update_all=bool(update),
            when_matched_update_all_filt=update if isinstance(update, str) else None,
            when_not_matched_insert_all=insert,
            when_not_matched_by_source_delete=bool(delete),
            when_not_matched_by_source_delete_filt=delete if isinstance(delete, str) else None,
            **self._now("merge into"),
        )
        return written(write_rows(self.namespace, "merge_insert_into_table", request, reader_of(data)))

    def update(
        self, values: Mapping[str, object] | None = None, where: str | None = None, **expressions: str
    ) -> WriteResult:
        """Set columns of the rows that `where` keeps, by default of all rows.

        `values` are values; `expressions` are SQL: `update({"name": "Ada"}, where="id = 1")`, `update(n="n + 1")`.
        """
        updates = [[name, _assigned(name, value)] for name, value in (values or {}).items()]
        updates += [[name, _expression(name, text)] for name, text in expressions.items()]
        request = build(api.UpdateTableRequest, updates=updates, predicate=where, **self._now("update"))
        return written(self.namespace.update_table(request))

    def delete(self, where: str) -> WriteResult:
        """Delete the rows that a SQL condition keeps."""
        request = build(api.DeleteFromTableRequest, predicate=where, **self._now("delete from"))
        return written(self.namespace.delete_from_table(request))

    # Time

    def at(
        self,
        version: int | None = None,
        *,
        tag: str | None = None,
        time: datetime | str | None = None,
        branch: str | None = None,
    ) -> CatalogTable:
        """Return the table at a version, at a tag, at a time (also as an ISO text), or on a branch."""
        if sum(item is not None for item in (version, tag, time)) > 1:
            raise InvalidInputError("Say one of version, tag and time.")
        if tag is not None:
            return CatalogTable(self.namespace, self.id, self.tags[tag], self.tags.branch_of(tag))
        found = CatalogTable(self.namespace, self.id, version, branch or self.branch)
        if time is not None:
            return CatalogTable(self.namespace, self.id, found._version_at(time), found.branch)
        if version is not None or branch is not None:
            found.describe(version=version, branch=found.branch)
        return found

    def versions(self) -> list[TableVersion]:
        """Return the versions that are kept, oldest first."""
        request = build(api.ListTableVersionsRequest, descending=False, **self._there())
        found = all_pages(self.namespace.list_table_versions, request, "versions")
        made = (
            TableVersion(int(item.version), _time(item.timestamp_millis), (item.metadata or {}).get(CHANGE))
            for item in found
        )
        return ShownList(made, f"Versions of {self.name}")

    def restore(self, version: int | None = None) -> None:
        """Restore the rows of an earlier version, as the next version."""
        wanted = self.version if version is None else version
        if wanted is None:
            raise InvalidInputError("Say which version to restore.")
        self.namespace.restore_table(build(api.RestoreTableRequest, version=wanted, **self._there()))

    def delete_versions(self, first: int, last: int) -> None:
        """Delete the versions from `first` to `last`, both included."""
        ranges = [{"start_version": first, "end_version": last + 1}]
        request = parse_request(api.BatchDeleteTableVersionsRequest, {"id": list(self.id.names), "ranges": ranges})
        self.namespace.batch_delete_table_versions(request)

    @property
    def table_versions(self) -> NamedVersions:
        """The table versions by id: other schemas or embeddings beside the active one (docs/versions.md)."""
        return NamedVersions(self.namespace, self.id, lambda there: CatalogTable(there, self.id))

    @property
    def tags(self) -> Tags:
        return Tags(self.namespace, self.id)

    @property
    def branches(self) -> Branches:
        return Branches(self.namespace, self.id)

    @property
    def indices(self) -> Indices:
        return Indices(self.namespace, self.id)

    def create_index(self, column: str, type: str | None = None, **options: object) -> None:
        """Create an index on a column. `type`: by default what fits the column."""
        self.indices.create(column, type, self.schema, **options)

    # Keeping house

    def clean_up(
        self, keep_versions: int | None = None, keep_days: float | None = None, grace_seconds: float = 600.0
    ) -> Any:
        """Delete old versions and the files that only they need. Tagged versions and the current one stay."""
        clean_up = self._able(abilities_of(self.namespace).clean_up, "clean up tables")
        return clean_up(
            list(self.id.names), keep_versions=keep_versions, keep_days=keep_days, grace_seconds=grace_seconds
        )

    def optimize(
        self, keep_versions: int | None = None, keep_days: float | None = None, grace_seconds: float | None = None
    ) -> Any:
        """Merge small fragments, update the indices, then delete versions older than a week, or by the given policy."""
        optimize = self._able(abilities_of(self.namespace).optimize, "optimize tables")
        told = {"keep_versions": keep_versions, "keep_days": keep_days, "grace_seconds": grace_seconds}
        return optimize(list(self.id.names), **{name: value for name, value in told.items() if value is not None})

    # Columns

    def add_columns(self, columns: Mapping[str, str | pa.DataType] | Sequence[pa.Field[Any]] | pa.Schema) -> None:
        """Add columns: by name a SQL expression over the others, or a type for a column of NULLs."""
        if not isinstance(columns, Mapping):
            if not isinstance(columns, Iterable) or not all(isinstance(field, pa.Field) for field in columns):
                raise InvalidInputError("New columns are a mapping from names, a schema, or fields.")
            columns = {field.name: field.type for field in columns}
        entries = [_new_column(name, what) for name, what in columns.items()]
        asked = {"new_columns": entries, **self._now("add columns to")}
        request = parse_request(api.AlterTableAddColumnsRequest, asked)
        self.namespace.alter_table_add_columns(request)

    def drop_columns(self, *names: str | Sequence[str]) -> None:
        """Drop columns, given one by one or as a list."""
        columns = [name for each in names for name in ([each] if isinstance(each, str) else each)]
        request = build(api.AlterTableDropColumnsRequest, columns=columns, **self._now("drop columns of"))
        self.namespace.alter_table_drop_columns(request)

    def rename_columns(self, names: Mapping[str, str]) -> None:
        """Rename columns, old name to new."""
        self._alter([{"path": old, "rename": new} for old, new in names.items()])

    def cast_columns(self, types: Mapping[str, pa.DataType | str]) -> None:
        """Change the types of columns. Raises InvalidInput (13) for a value that does not fit."""
        self._alter([{"path": name, "data_type": type_to_json(parse_type(kind))} for name, kind in types.items()])

    def _alter(self, entries: list[dict[str, object]]) -> None:
        request = {"alterations": entries, **self._now("alter columns of")}
        self.namespace.alter_table_alter_columns(parse_request(api.AlterTableAlterColumnsRequest, request))

    # Requests

    def _able(self, found: Callable[..., object] | None, what: str) -> Callable[..., object]:
        """Return an optional ability of the catalog; raise Unsupported (0) if it has none."""
        if found is None:
            raise UnsupportedOperationError(f"This catalog cannot {what}.")
        return found

    def _there(self) -> dict[str, Any]:
        return {"id": list(self.id.names), "branch": self.branch}

    def _now(self, doing: str) -> dict[str, Any]:
        if self.version is not None:
            raise InvalidInputError(
                f"Could not {doing} {self.name}: it is open at version {self.version}. Open it without a version."
            )
        return self._there()

    def _read(self, **options: object) -> pa.RecordBatchReader:
        asked = {"k": 0, "vector": {}, **{key: value for key, value in options.items() if value is not None}}
        request = parse_request(api.QueryTableRequest, {**self._there(), "version": self.version, **asked})
        return read_rows(self.namespace, request)

    def _version_at(self, told: datetime | str) -> int:
        try:
            time = datetime.fromisoformat(told) if isinstance(told, str) else told
        except ValueError:
            raise InvalidInputError(f"{str(told)[:80]!r} is not a time: write 2026-01-31T12:00:00Z.") from None
        if time.tzinfo is None:
            raise InvalidInputError("A time to read at needs a time zone: use datetime.now(UTC) or the like.")
        found = [item.version for item in self.versions() if item.time is not None and item.time <= time]
        if not found:
            raise TableVersionNotFoundError(f"Table {self.name} has no version as old as {time.isoformat()}.")
        return max(found)


def _expression(column: str, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidInputError(f"The expression of the column {column!r} is SQL as a text, not {ascii(text)[:80]}.")
    return text


def _assigned(column: str, value: object) -> str:
    text = assigned(value)
    if text is None:
        raise UnsupportedOperationError(
            f"The value of {column!r} is of type {type(value).__name__}: set it with an expression, or upsert the rows."
        )
    return text


def _new_column(name: str, what: str | pa.DataType) -> dict[str, object]:
    if isinstance(what, str):
        return {"name": name, "expression": what}
    if not isinstance(what, pa.DataType):
        raise InvalidInputError(f"The new column {name!r} is a SQL expression or a type, not {ascii(what)[:80]}.")
    return {"name": name, "expression": f"arrow_cast(NULL, '{sql_type(what)}')"}


def _time(millis: int | None) -> datetime | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC)
