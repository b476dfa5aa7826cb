"""Questions of the page about the catalog: its log, dropped objects, snapshots, the history of an object."""

from __future__ import annotations

from lance_namespace import LanceNamespace, ListNamespacesRequest

from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore
from headwater.metastore.metastore import DEFAULT_KEEP
from headwater.namespace.abilities import abilities_of
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.page.page_facts import (
    DroppedFact,
    DroppedFacts,
    HistoryFacts,
    LogFacts,
    NameFacts,
    PinnedFact,
    ServerFacts,
    SnapshotFact,
    SnapshotFacts,
)
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
