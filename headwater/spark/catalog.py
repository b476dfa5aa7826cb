"""The driver's side of the catalog: Spark's DDL as Lance namespace operations, JSON in and JSON out.

One `Connection` per configured catalog. The server is asked through the released REST client; the table's own
manifest is then opened directly, because Lance's JSON schema loses timestamp units, zones and decimals.

Each change of ALTER TABLE is one commit of Lance. A path of a column is the names from the top-level column down, as
Spark writes them: `element` stands for the items of an array, `key` and `value` for those of a map.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lance
import lance.namespace
import msgspec
import pyarrow as pa
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DescribeNamespaceRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    DropTableRequest,
    LanceNamespace,
    ListNamespacesRequest,
    ListTablesRequest,
    RenameTableRequest,
)

from headwater.decoding.arrow import read_schema
from headwater.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from headwater.names import ObjectId, format_name
from headwater.paging import all_pages
from headwater.rest.client import connect_rest, headers_of, native, token_headers
from headwater.spark.access_file import options_of
from headwater.spark.fresh import LAKE, Streams, schema_of
from headwater.spark.protocol import (
    AddColumn,
    AnyTableChange,
    ColumnComment,
    ColumnNullable,
    ColumnType,
    DropColumn,
    RemoveProperty,
    RenameColumn,
    SetProperty,
)
from headwater.spark.served_streams import ServedStreams, server_option
from headwater.spark.stream_writes import alter_stream, check_provider, create_stream, stage_stream, written_properties
from headwater.spark.wire_values import Fold, table_of
from headwater.streams.definition import Definition
from headwater.tables.columns import alter as columns
from headwater.tables.columns.alter import COMMENT, Alteration, FieldPath, column_at, fields_of
from headwater.tables.commit.committer import TableCommitter
from headwater.tables.commit.history import timestamps
from headwater.tables.handle import TableHandle, shared_session
from headwater.tables.partitions import partitioned, partitioning
from headwater.tables.scan.table_scan import SMALL_ROWS
from headwater.tables.translate import NoDataError, translating
from headwater.types import arrow_field, arrow_type, lance_schema, spark_schema

SPARKS_PROPERTIES = ("provider", "owner", "is_managed_location")
SPARKS_OPTIONS = "option."


class Connection:
    """A catalog as the driver sees it."""

    def __init__(
        self,
        client: LanceNamespace,
        extensions: Callable[[], Any] | None = None,
        lake: str | None = None,
        server: str | None = None,
    ) -> None:
        """Stream tables are folded where their files are, `lake`, or else by a server."""
        self.client = client
        self.lake = lake
        self.home = lake if lake is not None else server
        self._streams: Streams | ServedStreams | None = None
        if lake is not None:
            self._streams = Streams(lake)
        elif server is not None:
            self._streams = ServedStreams(server)
        self._extensions = extensions
        self.committer = TableCommitter(client)

    # Namespaces -------------------------------------------------------------------------------------------------

    def list_namespaces(self, id: list[str]) -> list[str]:
        return list(all_pages(self.client.list_namespaces, ListNamespacesRequest(id=id), "namespaces"))

    def describe_namespace(self, id: list[str]) -> dict[str, str]:
        return dict(self.client.describe_namespace(DescribeNamespaceRequest(id=id)).properties or {})

    def create_namespace(self, id: list[str], properties: dict[str, str]) -> None:
        kept = {key: value for key, value in properties.items() if key != "owner"}
        self.client.create_namespace(CreateNamespaceRequest(id=id, mode="create", properties=kept or None))

    def alter_namespace(self, id: list[str], properties: dict[str, str], removed: list[str]) -> None:
        """Set and remove properties, by Headwater's extension of the protocol."""
        if "location" in properties:
            raise UnsupportedOperationError("A namespace has no location of its own: the catalog places its tables.")
        if self._extensions is None:
            raise UnsupportedOperationError("This catalog cannot change the properties of a namespace.")
        self._extensions().alter_namespace_properties({"id": id, "properties": properties, "removed": removed})

    def drop_namespace(self, id: list[str], cascade: bool) -> None:
        behavior = "Cascade" if cascade else "Restrict"
        self.client.drop_namespace(DropNamespaceRequest(id=id, mode="Fail", behavior=behavior))

    # Tables -----------------------------------------------------------------------------------------------------

    def list_tables(self, id: list[str]) -> list[str]:
        return list(all_pages(self.client.list_tables, ListTablesRequest(id=id), "tables"))

    def find(self, id: list[str]) -> TableHandle:
        """Return the handle of a table, without a version."""
        asked = DescribeTableRequest(id=id, with_table_uri=True, vend_credentials=True, load_detailed_metadata=False)
        answer = self.client.describe_table(asked)
        uri = answer.table_uri or answer.location
        if not uri:
            raise InvalidTableStateError(f"The catalog gives no location for the table {format_name(id)!r}.")
        return _handle(id, uri, answer)

    def open(self, table: TableHandle) -> lance.LanceDataset:
        """Return the newest version, as the one who orders versions tells it."""
        try:
            return self.committer.open(table)
        except NoDataError:
            # Error 19 for a folder that is no Lance table, which is listed (early document, "Table Existence").
            self.client.describe_table(DescribeTableRequest(id=list(table.id.names), load_detailed_metadata=True))
            raise TableNotFoundError(f"The table {table.name!r} holds no data at its location.") from None

    def load_table(self, id: list[str], version: str | None = None, micros: int | None = None) -> dict[str, object]:
        """Return a table for Spark: pinned reference, exact schema, statistics, properties."""
        stream = self._streams.load(id, version, micros) if self._streams is not None else None
        if stream is not None:
            return self._load_stream(id, *stream)
        found = self.find(id)
        dataset = self.open(found)
        if version is not None:
            dataset = _travel(found, dataset, version)
        elif micros is not None:
            dataset = _travel_to(found, dataset, micros)
        return describe(found.at(dataset.version), dataset)

    def _load_stream(self, id: list[str], definition: Definition, fold: Fold) -> dict[str, object]:
        """Return a stream table: as its serving copy if that is all of it, else as it will be folded."""
        found = self.find(id)
        if fold.fresh:
            return describe_log(describe_folded(found, definition, fold), definition, fold, self.lake is not None)
        dataset = self.open(found)
        return describe_log(describe(found.at(dataset.version), dataset), definition, fold, self.lake is not None)

    def refuse_rollback(self, id: list[str]) -> None:
        """Error 13 for a stream table: its rows are those of its log."""
        if self._streams is not None and self._streams.load(id, None, None) is not None:
            raise InvalidInputError(
                f"{format_name(id)} is a stream table: its rows come from its change log, so no older version can take "
                "their place. Take out what was ingested with system.undo; VERSION AS OF reads an older position."
            )

    def create_table(
        self, id: list[str], schema: dict[str, Any], properties: dict[str, str], partitions: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Reserve the name and location, then commit version 1 with the schema and no rows. USING stream: a log."""
        if check_provider(properties):
            kept = table_properties(properties)
            create_stream(self.home, id, lance_schema(schema, kept), kept, partitions)
            return self.load_table(id)
        staged = self.stage_create(id, schema, properties, partitions)
        self.committer.create(table_of(staged["table"]), schema_from(staged["arrow"]), [])
        return self.load_table(id)

    def stage_create(
        self, id: list[str], schema: dict[str, Any], properties: dict[str, str], partitions: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return a declared table to write data files into; it has no version until the one commit that fills it."""
        kept = table_properties(properties)
        if check_provider(properties):
            return stage_stream(self.home, id, lance_schema(schema, kept), kept, partitions)
        arrow = partitioned(lance_schema(schema, kept), partitions).with_metadata(kept)
        answer = self.client.declare_table(DeclareTableRequest(id=id, location=None, properties=kept or None))
        if not answer.location:
            raise InvalidTableStateError(f"The catalog gives no location for the table {format_name(id)!r}.")
        return _staged(_handle(id, answer.location, answer), arrow)

    def stage_replace(
        self, id: list[str], schema: dict[str, object], properties: dict[str, str], partitions: list[dict[str, object]]
    ) -> dict[str, object]:
        """Return an existing table whose next version will have this schema and these rows; older versions stay
        readable."""
        if check_provider(properties) or (self._streams is not None and self._streams.load(id, None, None) is not None):
            raise UnsupportedOperationError(
                f"{format_name(id)} is a stream table: REPLACE would lose its log. Drop it and create it again."
            )
        kept = table_properties(properties)
        arrow = partitioned(lance_schema(schema, kept), partitions).with_metadata(kept)
        found = self.find(id)
        return _staged(found.at(self.open(found).version), arrow)

    def drop_table(self, id: list[str]) -> None:
        self.client.drop_table(DropTableRequest(id=id))

    def rename_table(self, id: list[str], new_id: list[str]) -> None:
        request = RenameTableRequest(id=id, new_table_name=new_id[-1], new_namespace_id=new_id[:-1])
        self.client.rename_table(request)

    def alter_table(self, id: list[str], changes: Sequence[AnyTableChange]) -> dict[str, object]:
        """Make each change as one commit of the table, in the order given."""
        if self._streams is not None and self._streams.load(id, None, None) is not None:
            alter_stream(self.home, id, changes)
            return self.load_table(id)
        found = self.find(id)
        for change in changes:
            with translating(found, "alter"):
                alter(self.open(found), change)
        return self.load_table(id)


def connect(given: Mapping[str, str]) -> Connection:
    """By `uri`, `token` (sent as x-api-key and as a bearer token) and what `connect_rest` takes, or an access file."""
    options = options_of(given)
    lake = options.pop(LAKE, None)
    if "uri" not in options:
        raise InvalidInputError("The catalog has no 'uri': prepare the session with headwater.spark.configure().")
    token = options.pop("token", None)
    reached = {**options, "uri": options["uri"].rstrip("/"), **(token_headers(token) if token else {})}
    server = server_option(reached) if lake is None else None
    own = lance.namespace.RestNamespace(**native(reached, headers_of(reached)))
    return Connection(own, lambda: connect_rest(reached), lake or None, server)


def _handle(id: list[str], uri: str, answer: Any) -> TableHandle:
    """Return the handle of a table by its description or declaration."""
    options, managed = dict(answer.storage_options or {}), bool(answer.managed_versioning)
    return TableHandle(ObjectId(tuple(id)), uri, options, managed=managed, session=shared_session())


def _staged(table: TableHandle, arrow: pa.Schema) -> dict[str, object]:
    return {
        "table": table.to_json(),
        "arrow": arrow.serialize().to_pybytes().hex(),
        "schema": spark_schema(arrow),
        "partitioning": [field.to_json() for field in partitioning(arrow)],
    }


def describe(table: TableHandle, dataset: lance.LanceDataset) -> dict[str, object]:
    schema = dataset.schema
    stats = [fragment.metadata for fragment in dataset.get_fragments()]
    properties = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    return {
        "table": table.to_json(),
        "schema": spark_schema(schema),
        "rows": sum(fragment.num_rows for fragment in stats),
        "bytes": sum(file.file_size_bytes or 0 for fragment in stats for file in fragment.files),
        "properties": {**properties, "location": table.uri, "provider": "headwater", "version": str(dataset.version)},
        "filterable": filterable(schema),
        "stable_row_ids": bool(dataset.has_stable_row_ids),
        "indexed": bool(dataset.list_indices()),
        "partitioning": [field.to_json() for field in partitioning(schema)],
    }


def describe_folded(table: TableHandle, definition: Definition, fold: Fold) -> dict[str, object]:
    """Return the rows that a fold gives, told as those of a table."""
    schema = schema_of(definition)
    return {
        "table": table.to_json(),
        "schema": spark_schema(schema),
        "rows": fold.rows,
        "bytes": fold.rows * 64,
        "properties": {"location": table.uri, "provider": "headwater", "version": str(fold.position)},
        "filterable": filterable(schema),
        "stable_row_ids": False,
        "indexed": False,
        "partitioning": [],
    }


def describe_log(loaded: dict[str, Any], definition: Definition, fold: Fold, near: bool) -> dict[str, Any]:
    """Return the facts of a table that a change log feeds. `near`: its files can be reached."""
    marks = {*definition.keys, *definition.sequence}
    for field in loaded["schema"]["fields"]:
        field["nullable"] = field["nullable"] and field["name"] not in marks  # no row of a state lacks one
    loaded["properties"] = {**loaded["properties"], **written_properties(definition)}
    told = {
        "keys": definition.keys,
        "sequence": definition.sequence,
        "derived": [d.name for d in definition.derived],
        "schema": spark_schema(definition.schema),
        "buckets": [field.to_json() for field in definition.buckets],
        "partitioned_by": [field.to_json() for field in definition.partition_by],
        "small": fold.rows < SMALL_ROWS,
        "orderable": near and all(field["name"] in definition.shown for field in loaded["schema"]["fields"]),
    }
    return {**loaded, "table": {**loaded["table"], "fold": msgspec.to_builtins(fold)}, "stream": told}


def filterable(schema: pa.Schema) -> dict[str, str]:
    """Return the columns (nested ones by dotted path) whose values Lance compares exactly as Spark does, with their
    kind."""
    found: dict[str, str] = {}
    for field in schema:
        _filterable(field.name, field, found)
    return found


def _filterable(path: str, field: pa.Field[pa.DataType], found: dict[str, str]) -> None:
    kind = field.type
    if "." in field.name or "`" in field.name:
        return
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            _filterable(f"{path}.{kind.field(index).name}", kind.field(index), found)
    elif pa.types.is_boolean(kind):
        found[path] = "boolean"
    elif pa.types.is_integer(kind) and kind != pa.uint64():
        found[path] = "integer"
    elif pa.types.is_floating(kind) and kind != pa.float16():
        found[path] = "float"
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        found[path] = "string"
    elif kind == pa.date32():
        found[path] = "date"
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        found[path] = "timestamp" if kind.tz else "timestamp_ntz"
    elif pa.types.is_decimal128(kind):
        found[path] = "decimal"


def table_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties to keep with the table: those Spark adds for its own bookkeeping are left out."""
    if "version" in properties:
        raise InvalidInputError("The property 'version' is shown by Headwater itself: choose another name.")
    kept = {key: value for key, value in properties.items() if key not in SPARKS_PROPERTIES}
    return {key: value for key, value in kept.items() if not key.startswith(SPARKS_OPTIONS)}


def schema_from(text: str) -> pa.Schema:
    return read_schema(bytes.fromhex(text))


def _travel(table: TableHandle, dataset: lance.LanceDataset, version: str) -> lance.LanceDataset:
    try:
        return dataset.checkout_version(int(version) if version.isdigit() else version)
    except (ValueError, OSError):
        what = f"version {version}" if version.isdigit() else f"tag {version!r}"
        raise TableVersionNotFoundError(f"The table {table.name!r} has no {what}.") from None


def _travel_to(table: TableHandle, dataset: lance.LanceDataset, micros: int) -> lance.LanceDataset:
    wanted = dt.datetime.fromtimestamp(micros / 1_000_000, dt.UTC)
    known = [version for version, time in timestamps(dataset).items() if time <= wanted]
    if not known:
        raise TableVersionNotFoundError(f"The table {table.name!r} has no version as old as {wanted.isoformat()}.")
    return dataset.checkout_version(max(known))


def alter(dataset: lance.LanceDataset, change: AnyTableChange) -> None:
    match change:
        case SetProperty():
            _set(dataset, change)
        case RemoveProperty():
            dataset.update_schema_metadata({change.key: None})
        case AddColumn():
            _add(dataset, change)
        case DropColumn():
            _drop(dataset, change)
        case ColumnComment():
            column = column_at(dataset.schema, change.path)
            dataset.update_field_metadata({column.path: {COMMENT: change.comment}})
        case RenameColumn() | ColumnType() | ColumnNullable():
            columns.alter(dataset, [_alteration(column_at(dataset.schema, change.path), change)])


def _set(dataset: lance.LanceDataset, change: SetProperty) -> None:
    if change.key == "version":
        raise InvalidInputError("The property 'version' is shown by Headwater itself: choose another name.")
    dataset.update_schema_metadata({change.key: change.value})


def _alteration(column: FieldPath, change: RenameColumn | ColumnType | ColumnNullable) -> Alteration:
    match change:
        case RenameColumn():
            return Alteration(column, name=change.name)
        case ColumnType():
            return Alteration(column, type=arrow_type(change.type))
        case ColumnNullable():
            return Alteration(column, nullable=change.nullable)


def _add(dataset: lance.LanceDataset, change: AddColumn) -> None:
    *above, name = change.path
    if change.position:
        raise UnsupportedOperationError(f"The column {name!r} is added after the others: leave FIRST and AFTER out.")
    if not change.nullable:
        raise UnsupportedOperationError(f"The column {name!r} is NULL in the rows that are there: leave NOT NULL out.")
    field = arrow_field({"name": name, "type": change.type, "nullable": True})
    if change.comment:
        field = field.with_metadata({COMMENT: change.comment})
    if above:
        columns.add_inside(dataset, columns.trail(dataset.schema, above), field)
    else:
        columns.add(dataset, pa.schema([field]))


def _drop(dataset: lance.LanceDataset, change: DropColumn) -> None:
    try:
        column = column_at(dataset.schema, change.path)
    except TableColumnNotFoundError:
        if change.if_exists:
            return
        raise
    if len(column.trail) > 1 and len(fields_of(column.trail[-2].type)) == 1:
        raise UnsupportedOperationError(f"The column {column} is the last one of its struct: drop the struct instead.")
    columns.drop(dataset, [column])
