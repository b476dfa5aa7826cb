"""Questions of the page about the catalog: names, dropped objects, snapshots, history of an object, search.

The search covers names, properties, columns and comments. A metastore's objects are in memory: their texts are kept,
and brought up to date by what was committed since. Columns stand in the manifests of tables: a search reads a limited
number of them, a thread reads the others, and the answer says how many are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
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
from headwater.rest.page import lineage_questions, row_questions, table_questions
from headwater.rest.page.access_questions import no_keys
from headwater.rest.page.kept_facts import KeptTable, Tables, commits_of, tables_of, texts_of
from headwater.rest.page.overview_facts import CatalogSize, CommitFact, LogFacts, OverviewFacts, TableState, TableUpkeep
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
    MadeKey,
    NameFacts,
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
    holds,
)
from headwater.rest.routes import NOTHING, Permission, Route, RouteTarget
from headwater.streams.layout import QUARANTINE, RUNS
from headwater.verbs.verb import metastore_of

CHANGES_SHOWN = 20
COMMITS_PER_LINE = 4
"""Commits that the front page is told of for each that it shows: those that only note a run are left out."""


def log(namespace: LanceNamespace, call: Call) -> LogFacts:
    """Return those of `limit` commits up to one that hold `word`, as far as the caller may be told of them."""
    return _log(namespace, call, call.request.limit)


def _log(namespace: LanceNamespace, call: Call, limit: int) -> LogFacts:
    metastore, asked = metastore_of(namespace), call.request
    now, oldest = metastore.now(), metastore.boundary
    last = min(asked.until or now.slot, now.slot)
    first = max(oldest, last - limit)
    told, kept = Projection(call.asker, metastore), commits_of(metastore)
    commits = [
        _cut(commit)
        for slot in range(first + 1, last + 1)
        for commit in (_visible_commit(told, each) for each in kept.of(metastore, slot))
        if (commit.entry.changes or told.is_whole) and holds(asked.word, *_texts_of(commit))
    ]
    names = {change.path for commit in commits for change in commit.entry.changes}
    return LogFacts(commits, now.slot, first, oldest, {name for name in names if now.exists(name)})


def _visible_commit(told: Projection, commit: CommitFact) -> CommitFact:
    """Return a commit as a caller may be told of it; one with a scope is told of the first changes alone."""
    if told.is_whole:
        return commit
    entry = told.log_entry(commit.entry)
    return CommitFact(entry, len(entry.changes))


def _texts_of(commit: CommitFact) -> list[str]:
    entry = commit.entry
    return [entry.author, entry.message, *(" / ".join(change.path) for change in entry.changes)]


def _cut(commit: CommitFact) -> CommitFact:
    shown = commit.entry.changes[:CHANGES_SHOWN]
    return msgspec.structs.replace(commit, entry=msgspec.structs.replace(commit.entry, changes=shown))


def overview(namespace: LanceNamespace, call: Call) -> OverviewFacts:
    """Return the catalog as a whole, as far as the caller may be told: size, growth, what waits, the last commits."""
    metastore, most = metastore_of(namespace), call.request.limit
    told, tables = Projection(call.asker, metastore), tables_of(metastore)
    with tables.lock:
        tables.bring_up(metastore)
        size, unread, growth = _size(tables), len(tables.unread), tables.growth()
        needy = list(tables.needy.items())
    seen = [table for key, table in needy if told.tells(table.path, key)]
    logs = [table.log for table in seen if table.log is not None]
    rejected = [log for log in logs if log.path[-1].endswith(QUARANTINE) and log.total]
    own = [log for log in logs if log.path != RUNS and not log.path[-1].endswith(QUARANTINE)]
    waiting, stale = [log for log in own if log.deltas], [log for log in own if log.stale]
    upkeep = _upkeep(seen)
    return OverviewFacts(
        size if told.is_whole else None,
        growth if told.is_whole else None,
        unread,
        _largest(waiting, "rows", most),
        len(waiting),
        _largest(rejected, "total", most),
        len(rejected),
        _largest(stale, "stale_rows", most),
        len(stale),
        nlargest(most, upkeep, key=lambda one: one.small + one.worn),
        len(upkeep),
        RUNS if metastore.now().exists(RUNS) and told.tells(RUNS) else None,
        _log(namespace, call, most * COMMITS_PER_LINE),
    )


def _largest(found: Sequence[TableState], field: str, most: int) -> list[TableState]:
    return nlargest(most, found, key=lambda state: int(getattr(state, field)))


def _size(tables: Tables) -> CatalogSize:
    told = tables.counts
    return CatalogSize(
        told["namespace"], told["table"], told["stream"], told["rows"], told["bytes"], told["unmeasured"]
    )


def _upkeep(tables: Sequence[KeptTable]) -> list[TableUpkeep]:
    return [
        TableUpkeep(table.path, table.size.small, table.size.worn)
        for table in tables
        if table.size is not None and table.size.wants_upkeep
    ]


def names(namespace: LanceNamespace, call: Call) -> NameFacts:
    """Return names in a namespace that the caller may see and that hold `word`: `limit` of them from the place `since`
    on.

    A metastore has the names in memory. Only those that are shown leave it.
    """
    now, asked = metastore_of(namespace).now(), call.request
    every = [_visible(call, now.names(call.id.names, kind)) for kind in ("namespace", "table")]
    found = [_holding(names, asked.word.casefold()) for names in every]
    first = asked.since or 0
    folders = found[0][first : first + asked.limit]
    after = max(0, first - len(found[0]))
    leaves = found[1][after : after + asked.limit - len(folders)]
    return NameFacts(list(folders), list(leaves), (len(found[0]), len(found[1])), sum(map(len, every)))


def _visible(call: Call, names: Sequence[str]) -> Sequence[str]:
    if call.asker.sees_everything:
        return names
    return [name for name in names if call.asker.may_see(call.id.child(name))]


def _holding(names: Sequence[str], low: str) -> Sequence[str]:
    """Return the names that hold a text, whatever their case."""
    return [name for name in names if low in name.casefold()] if low else names


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
    """Return the named snapshots that hold a table which the caller may describe, with those."""
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
    """Return the newest transactions that touched an object, and what its properties were."""
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
        _question("PageQueryTables", NOTHING, row_questions.query_tables, QueryTables),
        _question("PageQuery", Permission.SELECT, row_questions.query, QueryFacts),
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
