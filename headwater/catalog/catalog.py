"""`Catalog`: namespaces, tables, transactions and the past of a catalog, by dotted names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater import notebook, streams
from headwater.arguments import check_options, checked, suggesting
from headwater.catalog.table import CatalogTable
from headwater.catalog.table_parts import near_name, new_rows, with_progress
from headwater.catalog.transactions import MAX_RUNS, Batch, CatalogTransaction, run
from headwater.catalog.transport import (
    Moment,
    Name,
    ObjectLookup,
    Remote,
    Transport,
    branches,
    follow_log,
    read_log,
    transport_of,
)
from headwater.config import Opening, Target
from headwater.errors import InvalidInputError, LanceNamespaceError, NamespaceNotFoundError
from headwater.imports import when_used
from headwater.metastore.records.objects import Collected, Diff, History, HistoryEntry, LogEntry, NamedSnapshot, Undone
from headwater.names import ObjectId, check_delimiter, format_name, object_id, parse_name
from headwater.namespace.abilities import abilities_of, write_rows
from headwater.namespace.mirror import MirrorState
from headwater.namespace.requests import build, format_moment
from headwater.namespace.versions import VersionProblem
from headwater.notebook import ShownIterator, ShownList
from headwater.paging import all_pages

if TYPE_CHECKING:
    from headwater.sql import embedded as queries
    from headwater.verbs import catalog as verbs
else:
    queries, verbs = when_used("headwater.sql.embedded"), when_used("headwater.verbs.catalog")
Answer = TypeVar("Answer")


@suggesting(near_name)
@checked
class Catalog(ObjectLookup):
    """A catalog by path, URI, profile name, or an open `LanceNamespace`.

    Dots join names. A name with a dot in it stands in quotes (`prod."a.b"`), or the whole name is a list. With a
    `delimiter` of your own, that joins names and nothing is quoted.
    Reading a catalog that does not exist raises NamespaceNotFound. Creating a namespace or table creates the catalog
    and logs a warning.
    """

    def __init__(self, target: Target | LanceNamespace | None = None, **properties: Any) -> None:
        if isinstance(target, LanceNamespace):
            check_options(properties, ("delimiter",), "A catalog over an open namespace")
        self._opening = None if isinstance(target, LanceNamespace) else Opening(target, properties)
        self.namespace: LanceNamespace = target if isinstance(target, LanceNamespace) else self._opening.namespace  # type: ignore[union-attr]
        self._delimiter: str | None = properties.get("delimiter") or None
        if self._delimiter is not None:
            check_delimiter(self._delimiter)
        self._known: Transport | None = None

    @property
    def _there(self) -> LanceNamespace:
        """The open namespace. Raises NamespaceNotFound if the catalog does not exist yet."""
        return self._opening.reading() if self._opening else self.namespace

    @property
    def _made(self) -> LanceNamespace:
        """The open namespace, after creating the catalog if it does not exist yet."""
        return self._opening.writing() if self._opening else self.namespace

    @property
    def _transport(self) -> Transport:
        """The transport of the open catalog. Raises NamespaceNotFound if the catalog does not exist yet."""
        there = self._there
        if self._known is None or self._known.namespace is not there:
            self._known = transport_of(there)
        return self._known

    @property
    def is_there(self) -> bool:
        """True if the catalog exists; the first write creates it."""
        try:
            return bool(self._there)
        except NamespaceNotFoundError:
            return False

    @property
    def level(self) -> int | None:
        """N if every table is at level N, so that the catalog is leveled; None if it is not, or has no table."""
        return verbs.level_of(self._there)

    def __repr__(self) -> str:
        return f"Catalog({self.namespace!r})"

    def _repr_html_(self) -> str:
        return notebook.catalog(self, self._all_tables(ObjectId()) if self.is_there else ())

    def __dir__(self) -> list[str]:
        return sorted(name for name in super().__dir__() if not name.startswith("_"))

    def __getitem__(self, name: Name) -> Any:
        """Return the table of a name: a `CatalogTable`, or a `CatalogStream` for a stream table."""
        there, id = self._there, self._id(name)
        table = CatalogTable(there, id)
        table.describe(load_detailed_metadata=False)
        stream = transport_of(there).stream_table(table)
        return table if stream is None else stream

    def __contains__(self, name: Name) -> bool:
        there = self._there
        try:
            there.table_exists(build(api.TableExistsRequest, id=self._list(name)))
        except LanceNamespaceError as error:
            if int(error.code) in (1, 4):
                return False
            raise
        return True

    def __iter__(self) -> Iterator[str]:
        """Iterate over the full names of all tables, sorted."""
        return iter(sorted(self._format(id) for id in self._all_tables(ObjectId())))

    def __len__(self) -> int:
        """Return the number of tables."""
        return sum(1 for _ in self._all_tables(ObjectId()))

    def __bool__(self) -> bool:
        """Return True, also for a catalog without tables."""
        return True

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    # Namespaces

    def create_namespace(self, name: Name, properties: Mapping[str, str] | None = None, exist_ok: bool = False) -> None:
        """Create a namespace, and the missing ones above it."""
        id = self._id(name)
        for above in id.ancestors:
            with suppress(InvalidInputError):  # a warehouse of Iceberg is no namespace; the last creation decides
                self._made.create_namespace(build(api.CreateNamespaceRequest, id=list(above.names), mode="ExistOk"))
        mode = "ExistOk" if exist_ok else "Create"
        request = build(api.CreateNamespaceRequest, id=list(id.names), mode=mode, properties=dict(properties or {}))
        self._made.create_namespace(request)

    def namespace_properties(self, name: Name = "") -> dict[str, str]:
        """Return the properties of a namespace, by default of the root."""
        answer = self._there.describe_namespace(build(api.DescribeNamespaceRequest, id=self._list(name)))
        return dict(answer.properties or {})

    def alter_namespace(
        self, name: Name, properties: Mapping[str, str] | None = None, removed: Iterable[str] = ()
    ) -> dict[str, str]:
        """Set and remove properties of a namespace, and return all. Unsupported (0) for some kinds of catalog."""
        id = self._id(name)
        request = verbs.AlterNamespaceProperties(id=id.names, properties=dict(properties or {}), removed=list(removed))
        transport = transport_of(self._made) if id.is_root else self._transport
        return dict(transport.call(request) or {})

    def drop_namespace(self, name: Name, cascade: bool = False) -> None:
        """Drop a namespace. Raises NamespaceNotEmpty unless `cascade` drops what is in it too."""
        behavior = "Cascade" if cascade else "Restrict"
        self._there.drop_namespace(build(api.DropNamespaceRequest, id=self._list(name), behavior=behavior))

    def namespaces(self, parent: Name = "") -> list[str]:
        """Return the names of the namespaces in a namespace, by default the root."""
        request = build(api.ListNamespacesRequest, id=self._list(parent))
        return list(all_pages(self._there.list_namespaces, request, "namespaces"))

    # Tables

    def tables(self, parent: Name = "") -> list[str]:
        """Return the names of the tables in a namespace, by default the root."""
        request = build(api.ListTablesRequest, id=self._list(parent))
        return list(all_pages(self._there.list_tables, request, "tables"))

    def create_table(
        self,
        name: Name,
        data: object = None,
        mode: str = "create",
        properties: Mapping[str, str] | None = None,
        schema: pa.Schema | Mapping[str, object] | str | None = None,
    ) -> CatalogTable:
        """Create a table and the missing namespaces above it.

        `data`: Arrow data, a data frame, a list of rows, a dataset of pyarrow or pylance, or a path or glob of files
        (Parquet, Arrow, ORC, CSV, JSON lines). None makes an empty table of `schema`. Lists of floats of equal length
        become vectors.
        `mode`: create, exist_ok or overwrite.
        `schema`: an Arrow schema, a mapping from names to types, or a text such as `id BIGINT NOT NULL, v vector(4)`.
        """
        rows = with_progress(new_rows(data, schema), f"create_table {name}")
        id = self._with_namespace(name)
        request = build(api.CreateTableRequest, id=list(id.names), mode=mode, properties=dict(properties or {}) or None)
        write_rows(self._made, "create_table", request, rows)
        return CatalogTable(self.namespace, id)

    def declare_table(
        self, name: Name, location: str | None = None, properties: Mapping[str, str] | None = None
    ) -> str:
        """Reserve a name and a location for a table that another program writes. Return the location."""
        id = self._with_namespace(name)
        request = build(
            api.DeclareTableRequest, id=list(id.names), location=location, properties=dict(properties or {}) or None
        )
        return str(self._made.declare_table(request).location)

    def register_table(
        self, name: Name, location: str, mode: str = "create", properties: Mapping[str, str] | None = None
    ) -> CatalogTable:
        """Register an existing Lance dataset inside the root under a name. No data moves."""
        id = self._with_namespace(name)
        given = dict(properties or {}) or None
        request = build(api.RegisterTableRequest, id=list(id.names), location=location, mode=mode, properties=given)
        self._made.register_table(request)
        return CatalogTable(self.namespace, id)

    def deregister_table(self, name: Name) -> str:
        """Remove a table from the catalog, keep its data, and return its location."""
        return str(self._there.deregister_table(build(api.DeregisterTableRequest, id=self._list(name))).location)

    def rename_table(self, name: Name, new: Name) -> None:
        """Rename a table, or move it to another namespace, which is created if it is missing. No data moves."""
        id = self._id(name)
        to = self._renamed(id, new, lambda: name in self)
        request = build(
            api.RenameTableRequest, id=list(id.names), new_table_name=to.name, new_namespace_id=list(to.parent.names)
        )
        self._there.rename_table(request)

    def rename_namespace(self, name: Name, new: Name) -> None:
        """Rename or move a namespace with all below it. No data moves. Missing namespaces above it are created."""
        id = self._id(name)
        to = self._renamed(id, new, lambda: self.namespace_properties(name) is not None)
        self._transport.call(verbs.RenameNamespace(id=id.names, new_id=list(to.names)))

    def drop_table(self, name: Name) -> None:
        """Drop a table. A metastore catalog can `undrop` it."""
        self._there.drop_table(build(api.DropTableRequest, id=self._list(name)))

    def batch(self) -> Batch:
        """Return a batch, whose changes are made in one commit: `with catalog.batch() as batch: ...`."""
        return Batch(self._there, self._id)

    # Stream tables

    def create_stream_table(
        self,
        name: Name,
        schema: object,
        keys: Sequence[str] | str = (),
        sequence: Sequence[str] | str = (),
        partition_by: Sequence[object] | str = (),
        properties: Mapping[str, str] | None = None,
    ) -> Any:
        """Create a stream table, whose rows come from a change log (docs/streams.md), and the namespaces above it.

        `schema`: an Arrow schema, a mapping from names to types, or a text such as `id BIGINT NOT NULL, total DOUBLE`.
        `keys`: columns that identify a row; none makes an append-only log.
        `sequence`: columns that order the changes of a key.
        """
        made = streams.define(schema, keys, sequence, partition_by, properties)
        id, there = self._with_namespace(name), self._made
        return transport_of(there).create_stream_table(CatalogTable(there, id), made)

    def publish(self, names: str | Sequence[Name]) -> list[Any]:
        """Publish stream tables in one commit: their serving copies become equal to their newest state."""
        wanted = [names] if isinstance(names, str) else names
        return transport_of(self._made).publish([self._id(name) for name in wanted])

    # Transactions

    def transaction(self, message: str = "", author: str | None = None) -> CatalogTransaction:
        """Begin a transaction: `with catalog.transaction("why") as tx: tx[...]...` commits all its changes, or none."""
        return transport_of(self._made).begin(message, author, self._beside)

    def run(self, work: Callable[[Catalog], Answer], message: str = "", attempts: int = MAX_RUNS) -> Answer:
        """Call `work` in a transaction, and again after a conflict with another writer, `attempts` times at most."""
        return run(lambda: self.transaction(message), work, attempts, self._made)

    def at(self, moment: Moment) -> Catalog:
        """Return the catalog as it was at a commit, a time with a zone or a named snapshot. It is read-only.

        Names, properties, schemas and rows are those of that state. Tags and branches, which Lance keeps in the folder
        of a table, are those of now.
        """
        return self._beside(self._transport.at(moment))

    # The past

    @property
    def slot(self) -> int:
        """The number of the newest commit; of a catalog of the past, the commit that it shows. `at` takes it."""
        return int(self._transport.call(verbs.ReadLog(limit=0)).slot)

    def history(self, name: Name) -> History:
        """Return the transactions that touched a namespace or table or its parts, oldest first, through renames."""
        names = self._id(name).names
        return ShownList(self._transport.call(verbs.DescribeHistory(id=names)), f"History of {format_name(names)}")

    def log(self, after: int | None = None, wait: float = 0) -> Iterator[LogEntry]:
        """Iterate over the transactions after a commit, in order. `wait`: seconds that a server waits for the first."""
        transport = self._transport
        return ShownIterator(lambda: read_log(transport, after, wait), "Newest commits of the log")

    def follow(self, name: Name | None = None, after: int | None = None) -> Iterator[LogEntry]:
        """Iterate over the transactions after a commit (by default the newest) as they are committed, without end.

        `name`: a namespace or table, for changes of it and below it. To go on, pass the last handled commit as `after`.
        """
        below = self._id(name).names if name is not None else ()
        return (entry for page in follow_log(self._transport, after, tuple(below)) for entry in page.entries)

    def diff(self, a: Moment, b: Moment) -> Diff:
        """Return the differences between two states: each a commit, a time with a zone or a named snapshot."""
        request = verbs.DescribeDifference(before=format_moment(a), after=format_moment(b))
        difference: Diff = self._transport.call(request)
        return difference

    def undrop(self, name: Name) -> None:
        """Bring back what was dropped last under a name, with all that was dropped with it."""
        self._transport.call(verbs.Undrop(id=self._id(name).names))

    def undo(self, transaction: str | LogEntry | HistoryEntry, dry_run: bool = False) -> Undone:
        """Undo a transaction by a new one, which restores all that it changed. A dry run returns the steps alone.

        What the transaction landed in stream tables is voided there, and its source can be taken again. Raises
        InvalidTableState (19) with the reasons if it cannot be undone.
        """
        if not isinstance(transaction, (str, LogEntry, HistoryEntry)):
            raise InvalidInputError(f"A transaction is an id, or an entry of a log or history, not {transaction!r}.")
        txn = transaction if isinstance(transaction, str) else transaction.txn
        undone: Undone = self._transport.call(verbs.UndoTransaction(txn=txn, dry_run=dry_run))
        return undone

    def verify(self) -> list[VersionProblem]:
        """Return everything on which the catalog and its storage disagree. Changes nothing."""
        return [
            VersionProblem(item.kind, None if item.id is None else ObjectId(item.id), item.key, item.message, item.note)
            for item in self._transport.call(verbs.VerifyCatalog())
        ]

    def snapshot(self, name: str, tables: Sequence[Name] | None = None) -> NamedSnapshot | None:
        """Pin the newest state of all tables, or of these, under a name. `at(name)` reads it, whatever is collected.

        A transaction pins the state of its own commit and returns None.
        """
        chosen = None if tables is None else [self._list(each) for each in tables]
        pinned: NamedSnapshot | None = self._transport.call(verbs.TakeSnapshot(name=name, tables=chosen))
        return pinned

    def snapshots(self) -> list[NamedSnapshot]:
        """Return the named snapshots, by name, each with the version and position of every table."""
        return ShownList(self._transport.call(verbs.ListSnapshots()), "Named snapshots")

    def drop_snapshot(self, name: str) -> None:
        """Drop a named snapshot; a collection then frees what only it needed."""
        self._transport.call(verbs.DropSnapshot(name=name))

    def collect(
        self, keep: timedelta | None = None, grace: timedelta | None = None, dry_run: bool = False
    ) -> Collected:
        """Delete history older than `keep`, and files that no state needs or that dead writers left.

        `grace`: the age from which files of writers count as left. Both are 7 days by default. A dry run returns what
        would go, and why. A directory catalog has no history: only files of dead writers go.
        """
        older, left = (None if age is None else age.total_seconds() for age in (keep, grace))
        request = verbs.CollectCatalog(keep_seconds=older, grace_seconds=left, dry_run=dry_run)
        return cast(Collected, self._transport.call(request))

    def query(self, sql: str, dialect: str = "spark") -> pa.Table:
        """Return the rows of one SELECT over tables of the catalog, all read at one commit; or of a DESCRIBE HISTORY.

        In a transaction the query reads the state it began with and its own changes. Needs `headwater[sql]`.
        `dialect`: `spark` (the default), or `duckdb` for SQL of the embedded engine itself.
        """
        is_fixed, is_near = abilities_of(self.namespace).in_transaction, not isinstance(self.namespace, Remote)
        return queries.run(sql, self, is_near, dialect=dialect, is_fixed=is_fixed)

    @property
    def mirror(self) -> MirrorState:
        """The state of the mirror: a read-only `__manifest` that follows this catalog for plain Lance clients."""
        return self._transport.mirrored.mirror_state()

    @mirror.setter
    def mirror(self, on: bool) -> None:
        transport_of(self._made).mirrored.turn_mirror(on)

    def close(self) -> None:
        """Wait until background work ends: housekeeping, and the mirror."""
        close = abilities_of(self.namespace).close
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failed: object) -> None:
        self.close()

    def _beside(self, namespace: LanceNamespace) -> Catalog:
        """Return a catalog over another namespace, with the same delimiter."""
        return Catalog(namespace, **({} if self._delimiter is None else {"delimiter": self._delimiter}))

    def tree(self) -> str:
        """Return the catalog as a drawing of namespaces and tables."""
        return "\n".join([".", *branches(self, ObjectId(), "")])

    def _all_tables(self, parent: ObjectId) -> Iterator[ObjectId]:
        for name in self.tables(parent.names):
            yield parent.child(name)
        for name in self.namespaces(parent.names):
            yield from self._all_tables(parent.child(name))

    def _with_namespace(self, name: Name) -> ObjectId:
        """Create the namespaces above a new table, and return its id."""
        id = self._id(name)
        if id.level > 1:
            try:
                self._made.namespace_exists(build(api.NamespaceExistsRequest, id=list(id.parent.names)))
            except LanceNamespaceError:
                self.create_namespace(id.parent.names, exist_ok=True)
        return id

    def _renamed(self, id: ObjectId, new: Name, is_there: Callable[[], bool]) -> ObjectId:
        """Return the new id of an object. If it exists and moves, create the namespaces above the new name."""
        to = self._id(new)
        is_moved = to.parent != id.parent and to.names[: id.level] != id.names
        return self._with_namespace(new) if is_moved and is_there() else to

    def _id(self, name: Name) -> ObjectId:
        return ObjectId(parse_name(name, self._delimiter)) if isinstance(name, str) else object_id(name)

    def _format(self, id: ObjectId) -> str:
        return format_name(id.names) if self._delimiter is None else id.format(self._delimiter)

    def _list(self, name: Name) -> list[str]:
        return list(self._id(name).names)
