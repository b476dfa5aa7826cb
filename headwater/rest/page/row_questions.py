"""Questions of the page about rows: a quarantine, runs of pipelines, a query, two versions of a table side by side.

A comparison reads only the fragments in which two versions differ, up to a limit of rows. A row is identified by the
keys of a stream table, else by its stable row id. Rows of a table with neither are compared by all their values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from lance_namespace import DescribeTableRequest, LanceNamespace, ListTableVersionsRequest

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.imports import pc, when_used
from headwater.names import ObjectId
from headwater.namespace.abilities import abilities_of
from headwater.rest.call import Call
from headwater.rest.page.page_facts import (
    ColumnChange,
    ComparedRows,
    CompareFacts,
    EmbedFacts,
    Moment,
    QuarantineFacts,
    QueryFacts,
    QueryTables,
    RejectedGroup,
    RejectedRow,
    RunFact,
    RunFacts,
    RunStep,
)
from headwater.rest.page.table_questions import text_vectors
from headwater.streams.layout import LANCE, LINEAGE
from headwater.streams.rows.hashing import Hashes, hash_rows
from headwater.streams.serving.derived_columns import compute
from headwater.streams.stream_lookup import is_stream_table, open_stream
from headwater.tables.columns.fields import ROW_ID
from headwater.tables.handle import TableHandle
from headwater.tables.write.arrow import to_file
from headwater.verbs.streams import NO_STREAMS
from headwater.verbs.verb import metastore_of, require

if TYPE_CHECKING:
    import lance

queries = when_used("headwater.sql.embedded")
MAX_RESULT_BYTES = 8 << 20
_steps = msgspec.json.Decoder(list[RunStep])
MAX_ROW_TEXT = 600
ROWS_OF_GROUP = 20
MAX_GROUPS = 50
MAX_MOMENTS = 100
MAX_COMPARED = 200_000
"""Most rows of each version that a comparison reads."""
MAX_SHOWN_BYTES = 1 << 20


def quarantine(namespace: LanceNamespace, call: Call) -> QuarantineFacts:
    """Return the rejected rows of a stream table by reason and source, each group with its newest rows."""
    table = require(abilities_of(namespace).stream, NO_STREAMS)(call.id)
    rows = table.quarantine().select([*RejectedRow.__struct_fields__])
    found = rows.set_column(0, "row", pc.utf8_slice_codeunits(rows["row"], 0, MAX_ROW_TEXT))
    newest = found.sort_by([("time", "descending")]).to_pylist()
    counts = Counter((row["reason"], row["source"]) for row in newest)
    groups = []
    for (reason, source), total in counts.most_common(MAX_GROUPS):
        some = [row for row in newest if (row["reason"], row["source"]) == (reason, source)][:ROWS_OF_GROUP]
        groups.append(RejectedGroup(reason, source, total, [RejectedRow(**row) for row in some]))
    return QuarantineFacts(groups, len(newest))


def embed(namespace: LanceNamespace, call: Call) -> EmbedFacts:
    """Return the vector that the function of a derived column computes for a text. A worker calls the function.

    The last input gets the text (a title comes before its text), and others are empty.
    """
    definition = open_stream(metastore_of(namespace).now(), call.id.names).definition
    derived = next((one for one in definition.derived if one.name == call.request.name), None)
    if derived is None or derived.name not in text_vectors(definition):
        raise InvalidInputError(
            f"The column {call.request.name[:80]!r} has no function that makes a vector of a text: paste a vector."
        )
    texts = {name: pa.array([call.request.word if name == derived.inputs[-1] else ""]) for name in derived.inputs}
    vector = compute(derived, pa.table(texts))[0].as_py()
    if vector is None:
        raise InvalidInputError(f"The function of {derived.name!r} made no vector of this text.")
    return EmbedFacts([float(value) for value in vector])


def runs(namespace: LanceNamespace, call: Call) -> RunFacts:
    """Return the newest runs of pipelines, with their steps; the caller may select from the table of runs."""
    table = require(abilities_of(namespace).stream, NO_STREAMS)(call.id)
    names = [*RunFact.__struct_fields__]
    found = table.to_arrow(columns=names).sort_by([("began", "descending")])
    newest = found.slice(0, call.request.limit).to_pylist()
    return RunFacts([_run(row) for row in newest], found.num_rows)


def _run(row: dict[str, Any]) -> RunFact:
    """Return a run; one that has not ended has no counts yet."""
    counts = {name: row[name] or 0 for name in ("rows", "quarantined", "late")}
    return RunFact(**{**row, **counts, "steps": _steps.decode(row["steps"] or "[]")})


def compare(namespace: LanceNamespace, call: Call) -> CompareFacts:
    """Return the differences between two versions of a table: columns, and rows added, removed and changed.

    Without `until` the newest version is compared, and without `since` the moment before `until`.
    """
    handle, asked = handle_of(namespace, call.id), call.request
    after = handle.open() if asked.until is None else handle.at(asked.until).open()
    moments, until = _moments(namespace, call.id), int(after.version)
    since = asked.since or next((one.version for one in moments if one.version < until), 1)
    if since > until:
        raise InvalidInputError(f"Compare an older version with a newer one: {since} is after {until}.")
    before = handle.at(since).open()
    columns, keys = _columns(before.schema, after.schema), _keys(namespace, call.id)
    return _with_rows(CompareFacts(since, until, columns, keys, 0, moments), before, after, asked.limit)


def _moments(namespace: LanceNamespace, id: ObjectId) -> list[Moment]:
    """Return the newest versions that people know, newest first: a publish makes several, and ends with one of them."""
    asked = ListTableVersionsRequest(id=list(id.names), limit=MAX_MOMENTS, descending=True)
    listed = namespace.list_table_versions(asked).versions or []
    found = [Moment(int(one.version), one.timestamp_millis) for one in listed]
    metastore = abilities_of(namespace).metastore
    if metastore is None or not is_stream_table(snapshot := metastore.now(), id.names):
        return found
    deltas = snapshot.deltas(id.names, min((one.version for one in found), default=1) - 1, format=LANCE)
    ended = {delta.position for delta in deltas if LINEAGE in delta.properties}
    return [one for one in found if one.version in ended]


def handle_of(namespace: LanceNamespace, id: ObjectId) -> TableHandle:
    """Return the handle that opens a table of a catalog."""
    told = namespace.describe_table(DescribeTableRequest(id=list(id.names), with_table_uri=True))
    client = namespace if told.managed_versioning else None
    return TableHandle(id, str(told.table_uri or told.location), dict(told.storage_options or {}), client)


def _keys(namespace: LanceNamespace, id: ObjectId) -> list[str]:
    """Return the keys of a stream table; none for other tables, and for catalogs without a metastore."""
    if abilities_of(namespace).metastore is None:
        return []
    try:
        return list(open_stream(metastore_of(namespace).now(), id.names).definition.keys)
    except LanceNamespaceError:
        return []


def _columns(before: pa.Schema, after: pa.Schema) -> list[ColumnChange]:
    old, new = ({field.name: str(field.type) for field in schema} for schema in (before, after))
    names = dict.fromkeys((*old, *new))
    return [ColumnChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _with_rows(facts: CompareFacts, before: lance.LanceDataset, after: lance.LanceDataset, limit: int) -> CompareFacts:
    """Add the rows to the facts, unless too many differ."""
    parts = _differing(before, after), _differing(after, before)
    count = max(sum(part.count_rows() for part in some) for some in parts)
    stable = before.has_stable_row_ids and after.has_stable_row_ids
    is_keyed = bool(facts.by) and all(
        name in schema.names for name in facts.by for schema in (before.schema, after.schema)
    )
    by = facts.by if is_keyed else ([ROW_ID] if stable else [])
    facts = msgspec.structs.replace(facts, by=[name for name in by if name != ROW_ID], read=count)
    if count > MAX_COMPARED:
        return facts
    shared = [name for name in before.schema.names if name in after.schema.names]
    old, new = _rows(before, parts[0], bool(by)), _rows(after, parts[1], bool(by))
    return _split(facts, old, new, by, shared, limit)


def _differing(one: lance.LanceDataset, other: lance.LanceDataset) -> list[Any]:
    """Return the fragments of a version that the other version does not have as they are."""
    known = {fragment.fragment_id: _state(fragment) for fragment in other.get_fragments()}
    return [part for part in one.get_fragments() if known.get(part.fragment_id) != _state(part)]


def _state(fragment: lance.LanceFragment) -> tuple[object, ...]:
    return fragment.deletion_file(), tuple((file.path, tuple(file.fields)) for file in fragment.metadata.files)


def _rows(dataset: lance.LanceDataset, fragments: list[Any], with_id: bool) -> pa.Table:
    if not fragments:
        ids = [pa.field(ROW_ID, pa.uint64())] if with_id else []
        return pa.schema([*dataset.schema, *ids]).empty_table()
    found: pa.Table = dataset.scanner(fragments=fragments, with_row_id=with_id).to_table()
    return found


def _split(
    facts: CompareFacts, old: pa.Table, new: pa.Table, by: list[str], shared: list[str], limit: int
) -> CompareFacts:
    """Sort rows of both versions into added, removed and changed ones; `by` identifies a row, else all its values."""
    values = _hashes(old, shared), _hashes(new, shared)
    ids = (_hashes(old, by), _hashes(new, by)) if by else (_numbered(values[0]), _numbered(values[1]))
    both, at_old, at_new = np.intersect1d(*ids, return_indices=True)
    differs = values[0][at_old] != values[1][at_new] if by else np.zeros(len(both), bool)
    gone, came = np.setdiff1d(np.arange(len(old)), at_old), np.setdiff1d(np.arange(len(new)), at_new)
    places = ((new, came), (old, gone), (old, at_old[differs]), (new, at_new[differs]))
    shown = [_shown(table, place, limit) for table, place in places]
    return msgspec.structs.replace(facts, added=shown[0], removed=shown[1], old=shown[2], new=shown[3])


def _hashes(table: pa.Table, names: list[str]) -> Hashes:
    return hash_rows([table.column(name) for name in names], table.num_rows)


def _numbered(hashes: Hashes) -> Hashes:
    """Return the hashes with equal ones told apart by their order, so that two equal rows are two rows."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    starts = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(ordered) else np.empty(0, bool)
    first = np.maximum.accumulate(np.where(starts, np.arange(len(ordered)), 0)) if len(ordered) else order
    found = np.empty_like(hashes)
    found[order] = ordered + (np.arange(len(ordered)) - first).astype(np.uint64)
    return found


def _shown(table: pa.Table, places: Any, limit: int) -> ComparedRows:
    """Return the first rows at some places; columns of bytes are left out of rows that are too large to show."""
    some = table.drop_columns([ROW_ID] if ROW_ID in table.column_names else [])
    some = some.take(pa.array(places[:limit], pa.int64()))
    if some.nbytes > MAX_SHOWN_BYTES:
        some = some.select([field.name for field in some.schema if not _is_heavy(field.type)])
    return ComparedRows(len(places), to_file(some.to_reader()).hex())


def _is_heavy(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


# SQL: the page asks for the tables of a query first, and names them in the second question. The rights on each are
# checked, and noted in the audit log, before anything is read.


def query_tables(namespace: LanceNamespace, call: Call) -> QueryTables:
    """Return the names of the tables that a query reads, as it writes them."""
    return QueryTables(queries.tables_of(call.request.word))


def query(namespace: LanceNamespace, call: Call) -> QueryFacts:
    """Return the first rows of a query, or its plan if `details` is set. All tables are read at one commit."""
    asked = call.request
    if queries.tables_of(asked.word) != sorted(tuple(names) for names in asked.tables):
        raise InvalidInputError("The query reads other tables than those that the rights were checked for.")
    can = abilities_of(namespace)
    slot = can.metastore.slot if can.metastore is not None else None
    moment = _Moment(namespace if slot is None or can.at is None else can.at(slot))
    if asked.details:
        return QueryFacts(plan=queries.plan(asked.word, moment), slot=slot)
    found = queries.run(asked.word, moment, True, asked.limit + 1, is_fixed=True)
    if found.nbytes > MAX_RESULT_BYTES:
        raise InvalidInputError(
            f"The rows hold more than {MAX_RESULT_BYTES >> 20} MiB, more than a page shows: select fewer columns."
        )
    rows = found.slice(0, asked.limit)
    return QueryFacts(to_file(rows.to_reader()).hex(), found.num_rows > asked.limit, slot=slot)


@dataclass(frozen=True)
class _Moment:
    """A catalog at one commit, as the embedded engine reads it."""

    namespace: LanceNamespace

    def __getitem__(self, names: tuple[str, ...]) -> _Table:
        return _Table(self.namespace, ObjectId(names))


@dataclass(frozen=True)
class _Table:
    """A table of a query: the dataset of a plain table, the rows of a stream table."""

    namespace: LanceNamespace
    id: ObjectId

    @property
    def is_stream(self) -> bool:
        session = abilities_of(self.namespace).session
        return session is not None and is_stream_table(session.state(), self.id.names)

    def dataset(self) -> lance.LanceDataset:
        return handle_of(self.namespace, self.id).open()

    def to_arrow(self) -> pa.Table:
        return require(abilities_of(self.namespace).stream, NO_STREAMS)(self.id).to_arrow()
