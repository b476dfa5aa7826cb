"""Facts for a plan: the files of sources, their columns, and the present tables. This module changes nothing."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError
from headwater.names import object_id, parse_name
from headwater.pipeline.file_values import naming_section
from headwater.pipeline.grammar import Pipeline, Source, TableSpec, ViewSpec
from headwater.pipeline.planning import Facts, FileFact, KnownIndex, TableFact, inputs_of
from headwater.sql.slicing import NotInSlicesError, slicing_of
from headwater.sql.spark_parser import table_names
from headwater.streams.definition import DERIVED, Definition, Derived, derived_of
from headwater.streams.log.source_ledger import LedgerEntry
from headwater.streams.rows.column_types import common
from headwater.streams.rows.input_rows import as_input_rows
from headwater.streams.serving.derived_columns import is_there
from headwater.streams.sources.debezium import PLAIN, DebeziumChange, messages, parse
from headwater.streams.sources.files import SourceFile, find_files, read_lines, read_rows
from headwater.streams.table_functions import TABLE_FUNCTION, made_of, names_function
from headwater.tables.indices import index_type

DIGITS = 38
ENVELOPE = {
    "_lsn": pa.int64(),
    "_ts_ms": pa.int64(),
    "_pos": pa.int64(),
    "_file": pa.string(),
    "_txid": pa.int64(),
    "_offset": pa.int64(),
    "_partition": pa.int64(),
    "_timestamp": pa.timestamp("ms", "UTC"),
}
"""The columns that Debezium's envelope and a topic offer, for tables that order their events by them."""


def infer_columns(data: object, keys: Sequence[str], sequence: Sequence[str]) -> pa.Schema:
    """Return the schema of the first rows of a source. A column without any value has no type yet, and comes later."""
    rows = as_input_rows(data)
    fields = []
    for name, values in rows.columns.items():
        kind = _type(name, values)
        if kind is None and name in (*keys, *sequence):
            raise InvalidInputError(f"The column {name!r} has no value in the first file: write the table's schema.")
        if kind is not None:
            fields.append(pa.field(name, kind))
    known = {field.name for field in fields}
    fields += [pa.field(name, ENVELOPE[name]) for name in sequence if name in ENVELOPE and name not in known]
    return pa.schema(fields)


def _roomy(kind: pa.DataType) -> pa.DataType:
    """Return the type of values of Python: decimals tell how many digits they have, not how many there may be."""
    return pa.decimal128(DIGITS, kind.scale) if pa.types.is_decimal(kind) and kind.precision <= DIGITS else kind


def _type(name: str, values: Any) -> Any:
    if isinstance(values, list):
        try:
            kind: Any = _roomy(pa.array(values).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidInputError(
                f"The column {name!r} has values of different types in the first file: {error}. Write its schema."
            ) from None
    else:
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return None if pa.types.is_null(kind) else kind


INPUTS = "view.inputs"
"""The property of a view's table that says what it was last made of."""
GOVERNED = ("lateness", "contract", "history", TABLE_FUNCTION)


def gather(catalog: Catalog, pipeline: Pipeline, there: bool, identities: Mapping[Derived, str]) -> Facts:
    """Return the facts for a pipeline. `there`: whether there is a catalog at all. `identities`: of its functions."""
    specs = {table.name: table for table in pipeline.tables}
    names = [*specs, *(view.name for view in pipeline.views)]
    for view in pipeline.views:
        with naming_section(f"The SQL of the view {view.name} cannot be run"):
            names += [name for name in sorted(table_names(view.sql)) if object_id(parse_name(name))]
    tables = {name: catalog[name] for name in dict.fromkeys(names) if there and name in catalog}
    found = {
        name: table_fact(table, specs.get(name), id_of(catalog, name), identities) for name, table in tables.items()
    }
    storage = storage_of(catalog)
    of_files = [source for source in pipeline.sources if source.live is None]
    files = {source.name: file_facts(pipeline, source, tables.get(source.into), storage) for source in of_files}
    functions = {
        f"{spec.name}.{each.name}": identities[each] for spec in pipeline.tables for each in derived_of(spec.properties)
    }
    functions |= {spec.name: identities[spec.made_by] for spec in pipeline.tables if spec.made_by is not None}
    whole = {view.name: why_not_in_slices(view, tables) for view in pipeline.views if view.name in tables}
    return Facts(files, found, functions, whole)


def inferred(pipeline: Pipeline, spec: TableSpec, storage: Mapping[str, str]) -> pa.Schema | None:
    """Return the columns of the first file of a table's sources that has rows with values."""
    there = False
    for source in pipeline.sources:
        if source.into != spec.name or source.live is not None:
            continue
        for file in find_files(located(pipeline, source), storage, required=False):
            there = True
            if not file.size:
                continue
            found = infer_columns(first_rows(file, source.format), spec.keys, spec.sequence)
            leave = source.options.get("op_column", "op") if source.format == "op" else None
            if any(field.name != leave for field in found):
                return pa.schema([field for field in found if field.name != leave])
    if there:
        raise InvalidInputError(f"No file of {spec.name} has a row that tells its columns: write the table's schema.")
    return None


def first_rows(file: SourceFile, format: str) -> Any:
    return read_rows(file, Definition(()))[0] if format != "debezium" else changed_rows(read_lines(file))


def changed_rows(lines: str) -> list[Any]:
    """Return the rows of Debezium's messages, as far as they can be read."""
    found = [parse(message) for message in messages(lines, PLAIN) if not hasattr(message, "text")]
    return [row for change in found if isinstance(change, DebeziumChange) if (row := change.after or change.before)]


def why_not_in_slices(view: ViewSpec, tables: Mapping[str, object]) -> str:
    """Return why the SQL of a view cannot be computed for some keys only, or an empty text."""
    inputs = inputs_of(view, set(tables))
    try:
        slicing_of(view.sql, view.keys, {name: schema_of(tables[name]).names for name in inputs})
    except NotInSlicesError as reason:
        return str(reason)
    return ""


def moment_of(catalog: Catalog, name: str) -> list[object]:
    """Return the moment of a table that a view depends on: see TableFact."""
    return input_fact(catalog[name], id_of(catalog, name)).moment


def view_input(table: Any) -> dict[str, int]:
    """Return the position and the version of a table that a view reads, for the view's lineage."""
    if isinstance(table, CatalogStream):
        published = table.published
        version = published.version if published is not None and published.position == table.position else 0
        return {"position": table.position, "version": version}
    version = table.versions()[-1].version
    return {"position": version, "version": version}


def schema_of(table: Any) -> pa.Schema:
    """Return the schema that a read of the table has, with computed columns."""
    if isinstance(table, CatalogStream):
        return pa.schema(list(table.definition.shown.values()))
    found: pa.Schema = table.schema if table.versions() else pa.schema([])
    return found


def record_of(view: CatalogStream) -> dict[str, Any]:
    """Return the inputs that a view's table records for its last run."""
    found: dict[str, Any] = json.loads(view.definition.properties.get(INPUTS, "{}"))
    return found


def id_of(catalog: Catalog, name: str) -> str:
    """Return the id of a table, which a new table of the same name does not share."""
    return metastore_of(catalog.namespace).session.state().get_table_version(parse_name(name)).home


def input_fact(table: Any, id: str) -> TableFact:
    """Return the facts of a table that a view over it needs."""
    if not isinstance(table, CatalogStream):
        versions = table.versions()
        return TableFact(position=versions[-1].version if versions else 0, is_stream=False, id=id)
    definition, position = table.definition, table.position
    computed = _computed(table, position) if definition.derived else ()
    return TableFact(position, definition.schema_id, keys=definition.keys, id=id, computed=computed)


def _computed(table: CatalogStream, position: int) -> tuple[tuple[object, ...], ...]:
    """By which functions the derived columns are as published, and how far; and up to where, if there are rows after
    that: they have no values yet, and get them at the positions that they are at."""
    published = table.published
    if published is None:
        return ()
    behind = published.position if published.position < position else -1
    return tuple((each.name, each.identity, each.stale_to, behind) for each in published.derived)


def table_fact(table: Any, spec: TableSpec | None, id: str, identities: Mapping[Derived, str]) -> TableFact:
    known = input_fact(table, id)
    if not isinstance(table, CatalogStream):
        if spec is not None:
            raise InvalidInputError(f"{table.name} is a plain table: a pipeline lands changes in stream tables.")
        return known
    definition, published = table.definition, table.published
    after = published.position if published is not None else 0
    gone = [each.name for each in definition.derived if spec and f"{DERIVED}{each.name}" not in spec.properties]
    return replace(
        known,
        published=published.position if published is not None else None,
        published_schema=published.schema_id if published is not None else 0,
        rows=published.rows if published is not None else 0,
        tail_rows=sum(file.rows or 0 for delta in table.deltas(after) for file in delta.files),
        stale=_stale(table, spec, identities) if definition.derived else 0,
        indexed=indexed(table) if published is not None and spec is not None else (),
        changed=differences(definition, spec) if spec is not None else (),
        inputs=record_of(table),
        made_of=made_of(definition.properties),
        dropped=tuple(gone),
    )


def _stale(table: CatalogStream, spec: TableSpec | None, identities: Mapping[Derived, str]) -> int:
    """Return rows that a backfill would compute: of a table of the file by its functions as they are now."""
    is_same = spec is not None and derived_of(spec.properties) == table.definition.derived
    return max(table.stale(is_same, identities.__getitem__).values(), default=0)


def indexed(table: CatalogStream) -> tuple[KnownIndex, ...]:
    """Return the indices of a published table, by column."""
    found = table.serving.indices.items()
    return tuple(
        KnownIndex(column, index_type(str(index.index_type)), name) for name, index in found for column in index.columns
    )


def differences(definition: Definition, spec: TableSpec) -> tuple[str, ...]:
    """Return the differences between a table and the pipeline file."""
    found = []
    if spec.keys != definition.keys:
        found.append("keys")
    if spec.sequence != definition.sequence:
        found.append("sequence_by")
    if wanted_properties(definition, spec):
        found.append("properties")
    for field in spec.schema or ():
        known = definition.by_name.get(field.name)
        if known is None:
            found.append("columns")
        elif common(known.type, field.type) is None:
            found.append("column types")
        elif common(known.type, field.type) != known.type:
            found.append("columns")
    return tuple(dict.fromkeys(found))


def wanted_properties(definition: Definition, spec: TableSpec) -> dict[str, str | None]:
    """Return the properties to set, and with None to take away, so that the table is as the file says."""
    governed = [name for name in definition.properties if name in GOVERNED or name.startswith(DERIVED)]
    known = definition.properties
    gone: dict[str, str | None] = {name: None for name in governed if name not in spec.properties}
    new = {name: text for name, text in spec.properties.items() if not _is_same(name, known.get(name), text)}
    return {**gone, **new}


def _is_same(name: str, known: str | None, text: str) -> bool:
    """Return True for equal properties, and for one derived column whose function is where the table remembers it."""
    if known is None or known == text or not names_function(name):
        return known == text
    if name == TABLE_FUNCTION:
        one, other = ({**json.loads(each), "folder": None} for each in (known, text))
        return one == other and "folder" in json.loads(text) and os.path.isdir(str(json.loads(known).get("folder")))
    (before,), (after,) = derived_of({name: known}), derived_of({name: text})
    return before == after and after.folder is not None and is_there(before)


def file_facts(pipeline: Pipeline, source: Source, table: Any, storage: Mapping[str, str]) -> list[FileFact]:
    """Return the files of a source, and which of them are in its table. A glob that finds none has nothing new."""
    taken = table.files(source.name) if table is not None else {}
    undone = table.files(source.name, undone=True) if table is not None else {}
    return [
        FileFact(file.path, file.digest, file.size, is_taken(taken, file), is_taken(undone, file))
        for file in find_files(located(pipeline, source), storage, required=False)
    ]


def located(pipeline: Pipeline, source: Source) -> str:
    """Return the address or path of a source's files; a relative path starts at the pipeline file."""
    if "://" in source.path:
        return source.path
    return os.path.join(glob.escape(str(pipeline.folder)), os.path.expanduser(source.path))


def storage_of(catalog: Catalog) -> Mapping[str, str]:
    """Return the options of the catalog's storage, which open the object stores of sources too."""
    return dict(metastore_of(catalog.namespace).properties.storage)


def is_taken(taken: Mapping[str, Sequence[LedgerEntry]], file: SourceFile) -> bool:
    """Return True if a table has taken a file of this content from a source, by its path or its given name."""
    known = (*taken.get(file.path, ()), *taken.get(file.named, ()))
    return any(entry.digest == file.digest for entry in known)
