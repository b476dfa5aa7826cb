"""Questions of the page about the catalog: overview, log, dropped objects, snapshots, history of an object, search.

The search covers names, properties, columns and comments. A metastore's objects are in memory: their texts are kept,
and brought up to date by what was committed since. Columns stand in the manifests of tables: a search reads a limited
number of them, a thread reads the others, and the answer says how many are left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
from lance_namespace import LanceNamespace, ListNamespacesRequest

from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore, Object
from headwater.metastore.metastore import DEFAULT_KEEP
from headwater.namespace.abilities import abilities_of
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.extensions import HANDLERS, Handler
from headwater.rest.page import lineage_questions, row_questions, sql_questions, table_questions
from headwater.rest.page.access_questions import no_keys
from headwater.rest.page.kept_facts import tables_of, texts_of
from headwater.rest.page.page_facts import (
    AccessFacts,
    CompareFacts,
    DroppedFact,
    DroppedFacts,
    EmbedFacts,
    FragmentFacts,
    HistoryFacts,
    Hit,
    LineageFacts,
    LogFacts,
    MadeKey,
    NameFacts,
    OverviewFacts,
    PinnedFact,
    QuarantineFacts,
    QueryFacts,
    QueryTables,
    RunFacts,
    SearchFacts,
    ServerFacts,
    SnapshotFact,
    SnapshotFacts,
    StreamFacts,
    TableFacts,
    VersionFacts,
)
from headwater.rest.routes import NOTHING, Permission, Route, RouteTarget
from headwater.streams.layout import QUARANTINE, RUNS
from headwater.verbs.verb import metastore_of


def names(namespace: LanceNamespace, call: Call) -> NameFacts:
    """All names of a kind (`word`) in a namespace that the caller may see: a metastore has them in memory."""
    caller, found = call.asker, metastore_of(namespace).now().names(call.id.names, call.request.word)
    everything = caller.sees_everything
    return NameFacts([name for name in found if everything or caller.may_see(call.id.child(name))])


def log(namespace: LanceNamespace, call: Call) -> LogFacts:
    """So many slots of the log up to one, as far as the caller may be told of them."""
    metastore, asked = metastore_of(namespace), call.request
    now, oldest = metastore.now(), metastore.boundary
    last = min(asked.until or now.slot, now.slot)
    first = max(oldest, last - asked.limit)
    told = Projection(call.asker, metastore)
    entries = []
    for entry in metastore.log(first):
        if entry.slot > last:
            break
        seen = told.log_entry(entry)
        if seen.changes or told.is_whole:
            entries.append(seen)
    names = {change.path for entry in entries for change in entry.changes}
    return LogFacts(entries, now.slot, first, oldest, {name for name in names if now.exists(name)})


def dropped(namespace: LanceNamespace, call: Call) -> DroppedFacts:
    """Return the dropped objects that the caller may describe, with the authors of the drops."""
    metastore = metastore_of(namespace)
    told = Projection(call.asker, metastore)
    seen = [one for one in metastore.now().dropped() if told.tells_gone(one.path)]
    authors = _authors(metastore, {one.slot for one in seen[: call.request.limit]})
    kept = int(DEFAULT_KEEP.total_seconds() * 1000)
    return DroppedFacts(
        [DroppedFact(one.kind, one.path, one.time_ms, one.time_ms + kept, authors.get(one.txn, "")) for one in seen]
    )


def _authors(metastore: Metastore, slots: set[int]) -> dict[str, str]:
    """Return the authors of the transactions of some slots, as far as the log is kept."""
    found: dict[str, str] = {}
    for slot in sorted(slots):
        if slot > metastore.boundary:
            for entry in metastore.log(slot - 1):
                if entry.slot > slot:
                    break
                found[entry.txn] = entry.author
    return found


def snapshots(namespace: LanceNamespace, call: Call) -> SnapshotFacts:
    """The named snapshots that hold a table which the caller may describe, with those."""
    metastore = metastore_of(namespace)
    now, told = metastore.now(), Projection(call.asker, metastore)
    found = []
    for one in metastore.snapshots():
        tables = [
            PinnedFact(table, now.identify(table.path)[-1:] == (table.id,))
            for table in one.tables
            if told.tells(table.path, table.id)
        ]
        if tables or call.asker.sees_everything:
            found.append(SnapshotFact(one.name, one.slot, one.time, tables))
    return SnapshotFacts(found)


def history(namespace: LanceNamespace, call: Call) -> HistoryFacts:
    """The newest transactions that touched an object, and what its properties were."""
    metastore = metastore_of(namespace)
    told, now = Projection(call.asker, metastore), metastore.now()
    found = now.history(call.id.names)
    entries = [told.history_entry(entry) for entry in found[-call.request.limit :]]
    properties = [(one.txn, told.properties(one.properties)) for one in now.revisions(call.id.names)]
    return HistoryFacts(entries, len(found), properties)


def server(namespace: LanceNamespace, call: Call) -> ServerFacts:
    """Check that the catalog answers; return its newest slot."""
    metastore = abilities_of(namespace).metastore
    try:
        namespace.list_namespaces(ListNamespacesRequest(id=[], limit=1))
    except LanceNamespaceError:
        return ServerFacts(False, None)
    return ServerFacts(True, metastore.slot if metastore is not None else None)


MAX_FOUND = 200


def search(namespace: LanceNamespace, call: Call) -> SearchFacts:
    """Objects of a metastore whose name, properties, columns or comments hold the word, that may be told of."""
    metastore = metastore_of(namespace)
    texts, low = texts_of(metastore), call.request.word.casefold()
    with texts.lock:
        texts.bring_up(metastore)
        where = {key: "name" for key, (name, _) in texts.texts.items() if low in name}
        for key, text in texts.columns.items():
            if low in text and key not in where:
                where[key] = _in_columns(text, low)
        for key, (_, more) in texts.texts.items():
            if low in more:
                where.setdefault(key, "properties")
        found = SearchFacts([], unread=len(texts.unread))
    told = Projection(call.asker, metastore)
    for key, place in where.items():
        try:
            there = metastore.by_id(key)
        except LanceNamespaceError:
            continue
        assert isinstance(there, Object)
        if told.tells(there.path, key):
            found.hits.append(Hit(there.path, there.kind, place))
        if len(found.hits) > MAX_FOUND:
            found.more = True
            break
    return found


def _in_columns(text: str, low: str) -> str:
    """Return the column that has a word in its name, or in its comment."""
    line = next((line for line in text.split("\n") if low in line), "\t")
    name, _, _ = line.partition("\t")
    return f"column {name}" if low in name else f"comment of {name}"


def overview(namespace: LanceNamespace, call: Call) -> OverviewFacts:
    """The catalog as a whole, as far as the caller may be told: its size, what waits, and what was done last."""
    metastore = metastore_of(namespace)
    told, tables = Projection(call.asker, metastore), tables_of(metastore)
    with tables.lock:
        tables.bring_up(metastore)
        kinds, unread = Counter(tables.kinds.values()), len(tables.unread)
        streams = [state for key, state in tables.streams.items() if told.tells(state.path, key)]
    size = (kinds["namespace"], kinds["table"], len(streams)) if told.is_whole else None
    rejected = [state for state in streams if state.path[-1].endswith(QUARANTINE) and state.total]
    kept = [state for state in streams if state.path != RUNS and not state.path[-1].endswith(QUARANTINE)]
    waiting = [state for state in kept if state.deltas]
    runs = next((state.path for state in streams if state.path == RUNS), None)
    newest = sorted(waiting, key=lambda state: -state.rows)[: call.request.limit]
    shown = rejected[: call.request.limit]
    return OverviewFacts(size, unread, newest, len(waiting), shown, runs, log(namespace, call))


@dataclass(frozen=True)
class Question:
    """A question of the page: the row that the dispatcher and the audit log read, its handler, how its answer is read.

    Decoders are made here and not where they are used: threads that are first at once crash the process.
    """

    route: Route
    handler: Handler
    decoder: msgspec.json.Decoder[Any]


def _question(operation: str, needs: Permission, handler: Handler, answer: object) -> Question:
    target = RouteTarget.NONE if needs == NOTHING else RouteTarget.TABLE
    route = Route(operation, "PAGE", "", needs, target, extension=True, request="PageRequest")
    return Question(route, handler, msgspec.json.Decoder(answer))


_ACCESS = {
    "PageAccess": AccessFacts,
    "PageCreateKey": MadeKey,
    "PageRevokeKey": dict,
    "PageDefineRole": dict,
    "PageRemoveRole": dict,
}
"""Questions about keys and roles with their answers: a server that has a store of keys answers them (`rest/app.py`)."""


QUESTIONS: dict[str, Question] = {
    question.route.operation: question
    for question in (
        _question("PageLog", NOTHING, log, LogFacts),
        _question("PageOverview", NOTHING, overview, OverviewFacts),
        _question("PageDropped", NOTHING, dropped, DroppedFacts),
        _question("PageSnapshots", NOTHING, snapshots, SnapshotFacts),
        _question("PageSearch", NOTHING, search, SearchFacts),
        _question("PageServer", NOTHING, server, ServerFacts),
        _question("PageCatalogLineage", NOTHING, lineage_questions.catalog_lineage, LineageFacts),
        _question("PageQueryTables", NOTHING, sql_questions.query_tables, QueryTables),
        _question("PageQuery", Permission.SELECT, sql_questions.query, QueryFacts),
        _question("PageEmbed", Permission.SELECT, row_questions.embed, EmbedFacts),
        _question("PageRuns", Permission.SELECT, row_questions.runs, RunFacts),
        _question("PageQuarantine", Permission.SELECT, row_questions.quarantine, QuarantineFacts),
        _question("PageCompare", Permission.SELECT, row_questions.compare, CompareFacts),
        *(_question(name, Permission.MANAGE, no_keys, answer) for name, answer in _ACCESS.items()),
        _question("PageNames", Permission.DESCRIBE, names, NameFacts),
        _question("PageHistory", Permission.DESCRIBE, history, HistoryFacts),
        _question("PageTable", Permission.DESCRIBE, table_questions.table, TableFacts),
        _question("PageStreams", Permission.DESCRIBE, table_questions.streams, StreamFacts),
        _question("PageLineage", Permission.DESCRIBE, lineage_questions.lineage, LineageFacts),
        _question("PageVersions", Permission.DESCRIBE, table_questions.versions, VersionFacts),
        _question("PageFragments", Permission.DESCRIBE, table_questions.fragments, FragmentFacts),
    )
}
"""Operations that name no object need no right: each answers as far as its caller may be told."""
ALL_HANDLERS: dict[str, Handler] = {
    **HANDLERS,
    **{operation: question.handler for operation, question in QUESTIONS.items()},
}
"""Handlers of our own routes and of the page's questions."""
