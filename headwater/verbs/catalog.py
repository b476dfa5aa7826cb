"""Verbs of a catalog: log, histories, undrop, undo, aliases, snapshots, maintenance, transactions, single objects.

Between begin and commit a server makes every operation with the header `x-headwater-transaction` inside the
transaction, under the same access rules as any other (rest/dispatch.py). A transaction belongs to the caller who began
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import lance_namespace as api
import msgspec
from lance_namespace import LanceNamespace
from msgspec import field

from headwater.errors import InvalidInputError
from headwater.metastore import LogEntry, Metastore, Snapshot, Transaction
from headwater.metastore.records.objects import Collected, Diff, HistoryEntry, NamedSnapshot, Undone
from headwater.names import ObjectId
from headwater.namespace.abilities import Transactions
from headwater.namespace.requests import parse_moment
from headwater.namespace.versions import Cleaned, Optimized
from headwater.paging import all_pages
from headwater.streams.stream_lookup import undrop_stream
from headwater.verbs.verb import (
    NOTHING,
    ObjectRequest,
    Permission,
    SessionKind,
    VerbRequest,
    VerbSession,
    WorkPlace,
    require,
    verb,
)

MAX_ENTRIES = 10_000
Moment = int | str
"""A commit, or a time with a zone or the name of a snapshot as a text (`namespace/requests.py`)."""


class ReadLog(VerbRequest, frozen=True, kw_only=True):
    """Arguments of ReadLog. `after`: a commit; `limit`: entries at most, 0 for the newest commit alone.

    `wait_seconds`: how long a server waits for the next commit (30 at most).
    `below`: the names of a namespace or table, from the root down; only changes of it and below it are told.
    """

    after: Moment | None = None
    wait_seconds: float = 0
    limit: int = 1000
    below: tuple[str, ...] = ()


class LogPage(msgspec.Struct, frozen=True):
    """Transactions in order, and the newest commit of the catalog.

    `until`: the commit up to which the page tells all, where the next page begins.
    """

    slot: int
    entries: Sequence[LogEntry]
    until: int = 0


class DescribeHistory(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of DescribeHistory."""


class DescribeDifference(VerbRequest, frozen=True, kw_only=True):
    """Arguments of DescribeDifference. `before`: the oldest commit by default; `after`: the newest."""

    before: Moment | None = None
    after: Moment | None = None


class Undrop(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of Undrop."""


class AddAlias(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of AddAlias. `alias`: the other name, in the same namespace."""

    alias: str


class RemoveAlias(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of RemoveAlias."""

    alias: str


class UndoTransaction(VerbRequest, frozen=True, kw_only=True):
    """Arguments of UndoTransaction. `txn`: the id of a transaction, as log and histories have it."""

    txn: str
    dry_run: bool = False


class TakeSnapshot(VerbRequest, frozen=True, kw_only=True):
    """Arguments of TakeSnapshot. `tables`: their names; all tables by default."""

    name: str
    tables: list[list[str]] | None = None


class ListSnapshots(VerbRequest, frozen=True, kw_only=True):
    """Arguments of ListSnapshots."""


class DropSnapshot(VerbRequest, frozen=True, kw_only=True):
    """Arguments of DropSnapshot."""

    name: str


class VerifyCatalog(VerbRequest, frozen=True, kw_only=True):
    """Arguments of VerifyCatalog."""


class Finding(msgspec.Struct, frozen=True):
    """One disagreement of catalog and storage (`VersionProblem`)."""

    kind: str
    id: tuple[str, ...] | None
    key: str
    message: str
    note: bool = False


class CollectCatalog(VerbRequest, frozen=True, kw_only=True):
    """Arguments of CollectCatalog. Both ages are 7 days by default."""

    keep_seconds: float | None = None
    grace_seconds: float | None = None
    dry_run: bool = False


def seen_by(session: VerbSession) -> Metastore | Snapshot:
    """Return what a session reads: the past, the state that its transaction began with, or the newest state."""
    metastore, here = require(session.can.metastore), require(session.can.session)
    return here.moment or (metastore if here.transaction is None else metastore.at(here.transaction.slot))


def only_below(entry: LogEntry, below: Sequence[str]) -> LogEntry | None:
    """Return a transaction with its changes of an object and below it; None if it has none. No names: all of it."""
    if not below:
        return entry
    found = tuple(change for change in entry.changes if tuple(change.path[: len(below)]) == tuple(below))
    return msgspec.structs.replace(entry, changes=found) if found else None


def commit_after(metastore: Metastore, request: ReadLog) -> int:
    """Return the commit after which the log is read, by default the oldest that is kept."""
    found = metastore.boundary if request.after is None else parse_moment(request.after)
    if not isinstance(found, int):
        raise InvalidInputError("The log is read after a slot: `after` is a number.")
    return found


@verb("log", NOTHING, WorkPlace.SERVER, SessionKind.PAST)
def read_log(session: VerbSession, request: ReadLog) -> LogPage:
    """Return the transactions after a slot; with `wait_seconds` the server waits for the next one.

    All entries of a commit are on one page, so that its number is where the next page begins. Pages are cut by what the
    caller may be told: the end of one would tell of changes that it may not see.
    """
    metastore = require(session.can.metastore)
    seen, found = seen_by(session), list[LogEntry]()
    newest = seen.slot
    after = commit_after(metastore, request) if request.limit else newest
    if after > newest and seen is metastore:
        raise InvalidInputError(
            f"There is no commit {after} yet: the newest is {newest}. If you followed this catalog up to there, it is "
            "another one now, such as an older state that was restored."
        )
    until = max(newest, after)
    for entry in metastore.log(after) if newest > after else ():
        if entry.slot > newest:
            break
        if len(found) >= min(max(request.limit, 1), MAX_ENTRIES) and entry.slot != found[-1].slot:
            until = found[-1].slot
            break
        told = only_below(session.told(entry), request.below)
        found += [told] if told is not None else []
    return LogPage(newest, found, until)


@verb("object/{id}/history", Permission.DESCRIBE, WorkPlace.SERVER, SessionKind.PAST, "entries")
def history(session: VerbSession, request: DescribeHistory) -> Sequence[HistoryEntry]:
    """Return every transaction that touched a namespace or table, through renames."""
    return seen_by(session).history(request.id)


@verb("diff", Permission.DESCRIBE, WorkPlace.SERVER, SessionKind.PAST)
def diff(session: VerbSession, request: DescribeDifference) -> Diff:
    """Return the differences between the states of slots `before` and `after`."""
    metastore = require(session.can.metastore)
    before = metastore.boundary if request.before is None else parse_moment(request.before)
    return metastore.diff(before, metastore.slot if request.after is None else parse_moment(request.after))


@verb("object/{id}/undrop", Permission.WRITE, WorkPlace.SERVER, SessionKind.TRANSACTION, "kind")
def undrop_object(session: VerbSession, request: Undrop) -> str:
    """Bring back the object that was dropped last under a name, and return its kind."""
    change = require(session.can.session).change
    return change(lambda tx: undrop_stream(tx, request.id), f"undrop {ObjectId(request.id)}")


@verb("object/{id}/alias", Permission.WRITE, WorkPlace.SERVER, SessionKind.TRANSACTION)
def add_alias(session: VerbSession, request: AddAlias) -> None:
    """Add an alias: one more name for a namespace or table, beside its own."""
    require(session.can.session).change(lambda tx: tx.alias(request.id, request.alias), f"alias {request.alias}")


@verb("object/{id}/unalias", Permission.WRITE, WorkPlace.SERVER, SessionKind.TRANSACTION)
def remove_alias(session: VerbSession, request: RemoveAlias) -> None:
    """Remove an alias of a namespace or table."""
    require(session.can.session).change(lambda tx: tx.unalias(request.id, request.alias), f"unalias {request.alias}")


@verb("undo", Permission.WRITE, WorkPlace.LONG, SessionKind.TRANSACTION)
def undo_transaction(session: VerbSession, request: UndoTransaction) -> Undone:
    """Undo a transaction by a new one. Needs `write` on all that it touched, and `drop` for objects that it created."""
    return require(session.can.undo)(request.txn, request.dry_run)


@verb("snapshot", Permission.MANAGE, WorkPlace.SERVER, SessionKind.TRANSACTION)
def take_snapshot(session: VerbSession, request: TakeSnapshot) -> NamedSnapshot | None:
    """Pin the newest state of all tables, or of these, under a name.

    In a transaction that is the state at its own commit, and the answer is empty. What a snapshot pins stays until the
    snapshot is dropped, so it needs `manage`.
    """
    if not request.name:
        raise InvalidInputError("A snapshot needs a name: `name` is empty.")
    metastore, here = require(session.can.metastore), require(session.can.session)

    def pin(tx: Transaction | None) -> NamedSnapshot | None:
        if tx is None:
            return metastore.snapshot(request.name, request.tables)
        return tx.snapshot(request.name, request.tables)

    return here.within(pin)


@verb("snapshots", Permission.DESCRIBE, WorkPlace.SERVER, SessionKind.ANY, "snapshots")
def snapshots(session: VerbSession, request: ListSnapshots) -> Sequence[NamedSnapshot]:
    """Return the named snapshots, with the version and position of every table."""
    return require(session.can.metastore).snapshots(require(session.can.session).transaction)


@verb("drop_snapshot", Permission.MANAGE, WorkPlace.SERVER, SessionKind.TRANSACTION)
def drop_snapshot(session: VerbSession, request: DropSnapshot) -> None:
    """Drop a named snapshot; a collection then frees what only it needed."""
    change = require(session.can.session).change
    change(lambda tx: tx.drop_snapshot(request.name), f"drop snapshot {request.name}")


@verb("verify", Permission.MANAGE, WorkPlace.LONG, field="problems")
def verify(session: VerbSession, request: VerifyCatalog) -> list[Finding]:
    """Return everything on which the catalog and its storage disagree."""
    found = require(session.can.verify, "cannot be verified")()
    return [
        Finding(item.kind, None if item.id is None else item.id.names, item.key, item.message, item.note)
        for item in found
    ]


@verb("collect", Permission.MANAGE, WorkPlace.LONG)
def collect(session: VerbSession, request: CollectCatalog) -> Collected:
    """Delete history older than `keep_seconds`, and files that no state needs; a dry run returns what would go."""
    free = require(session.can.collect, "cannot be collected")
    return free(_age(request.keep_seconds), _age(request.grace_seconds), request.dry_run)


def _age(seconds: float | None) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise InvalidInputError(f"An age is a number of seconds of at most 999,999,999 days, not {seconds}.") from None


MAX_MESSAGE_CHARS = 4096


class BeginTransaction(VerbRequest, frozen=True, kw_only=True):
    """Arguments of BeginTransaction."""

    message: str = ""


class CommitTransaction(VerbRequest, frozen=True, kw_only=True):
    """Arguments of CommitTransaction."""

    transaction: str


class AbortTransaction(VerbRequest, frozen=True, kw_only=True):
    """Arguments of AbortTransaction."""

    transaction: str


@verb("transaction/begin", NOTHING, WorkPlace.SERVER, field="transaction")
def begin(session: VerbSession, request: BeginTransaction) -> str:
    """Begin a transaction and return its id, for the header x-headwater-transaction."""
    length = len(request.message)
    if length > MAX_MESSAGE_CHARS:
        raise InvalidInputError(f"The message has {length} characters: at most {MAX_MESSAGE_CHARS} are kept.")
    return _transactions(session).begin(session.caller, request.message, session.author)


@verb("transaction/commit", NOTHING, field="slot")
def commit(session: VerbSession, request: CommitTransaction) -> int:
    """Commit all changes of a transaction in one slot. Error 14 names what others changed."""
    return _transactions(session).commit(session.caller, request.transaction)


@verb("transaction/abort", NOTHING, WorkPlace.SERVER)
def abort(session: VerbSession, request: AbortTransaction) -> None:
    """Abort a transaction."""
    _transactions(session).abort(session.caller, request.transaction)


def _transactions(session: VerbSession) -> Transactions:
    return require(session.can.transactions, "has no transactions: a metastore catalog has")


class DescribeLevel(VerbRequest, frozen=True, kw_only=True):
    """Arguments of DescribeLevel."""


@verb("level", Permission.DESCRIBE, WorkPlace.SERVER, SessionKind.ANY, "level")
def level(session: VerbSession, request: DescribeLevel) -> int | None:
    """Return N if every table of the catalog is at level N: it is leveled. Null if it is not, or has no table."""
    return level_of(session.namespace)


def level_of(namespace: LanceNamespace) -> int | None:
    """Return the level of all tables of any catalog, by its lists (lance-objects.md, "Leveled Namespace")."""
    levels, waiting = set[int](), [ObjectId()]
    while waiting and len(levels) < 2:
        id = waiting.pop()
        names = list(id.names)
        if namespace.list_tables(api.ListTablesRequest(id=names, limit=1)).tables:
            levels.add(id.level + 1)
        waiting += map(
            id.child, all_pages(namespace.list_namespaces, api.ListNamespacesRequest(id=names), "namespaces")
        )
    return levels.pop() if len(levels) == 1 else None


class AlterNamespaceProperties(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of AlterNamespaceProperties: properties to set, and names of properties to remove."""

    properties: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


class RenameNamespace(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of RenameNamespace. `new_id`: the names that the namespace gets, from the root down."""

    new_id: list[str] | None = None


class CleanUpTableVersions(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of CleanUpTableVersions: the versions that stay."""

    keep_versions: int | None = None
    keep_days: float | None = None
    grace_seconds: float | None = None


class OptimizeTable(CleanUpTableVersions, frozen=True, kw_only=True):
    """Arguments of OptimizeTable. `versions` are those that stay."""


@verb("namespace/{id}/properties", Permission.WRITE, WorkPlace.SERVER, SessionKind.TRANSACTION, "properties")
def alter_namespace(session: VerbSession, request: AlterNamespaceProperties) -> dict[str, str] | None:
    """Set and remove properties of a namespace; the others stay."""
    alter = require(session.can.alter_namespace, "cannot change the properties of a namespace")
    properties: dict[str, str] | None = alter(msgspec.to_builtins(request)).properties
    return properties


@verb("namespace/{id}/rename", Permission.WRITE, WorkPlace.SERVER, SessionKind.TRANSACTION, "properties")
def rename_namespace(session: VerbSession, request: RenameNamespace) -> dict[str, str] | None:
    """Rename or move a namespace with all below it; no data moves."""
    rename = require(session.can.rename_namespace, "cannot rename a namespace: a metastore catalog can")
    properties: dict[str, str] | None = rename(msgspec.to_builtins(request)).properties
    return properties


@verb("table/{id}/clean_up", Permission.DROP, WorkPlace.LONG, SessionKind.TRANSACTION)
def clean_up(session: VerbSession, request: CleanUpTableVersions) -> Cleaned:
    """Delete old versions of a table and the files that only they need."""
    found: Cleaned = require(session.can.clean_up, "cannot clean up tables")(list(request.id), **_policy(request))
    return found


@verb("table/{id}/optimize", Permission.DROP, WorkPlace.LONG, SessionKind.TRANSACTION)
def optimize(session: VerbSession, request: OptimizeTable) -> Optimized:
    """Merge small fragments of a table, update its indices, then delete old versions."""
    found: Optimized = require(session.can.optimize, "cannot optimize tables")(list(request.id), **_policy(request))
    return found


def _policy(request: CleanUpTableVersions) -> dict[str, float]:
    named = {"keep_versions": request.keep_versions, "keep_days": request.keep_days}
    given = {**named, "grace_seconds": request.grace_seconds}
    return {name: value for name, value in given.items() if value is not None}
