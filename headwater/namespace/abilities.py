"""Abilities of a catalog beyond `LanceNamespace`, as a declared value that a server reads once.

Rows go into and out of any catalog as a stream of batches where it has that ability, else as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.decoding.arrow import read_file
from headwater.metastore import Metastore
from headwater.metastore.records.objects import Collected, Undone
from headwater.metastore.sessions import Session
from headwater.names import DELIMITER, ObjectId
from headwater.store import Store
from headwater.tables.write.arrow import to_stream

if TYPE_CHECKING:
    from headwater.streams.definition import Definition
    from headwater.streams.reading.position_views import Published
    from headwater.streams.table import StreamTable

RowsIn = Callable[[Any, pa.RecordBatchReader], Any]
"""An operation that takes rows as they are read, instead of the bytes of a whole body."""


class Transactions(Protocol):
    """Transactions of callers, each by its id, whom a server keeps apart."""

    def begin(self, caller: str, message: str, author: str | None = None) -> str: ...

    def using(self, caller: str, id: str, sent: int = 0) -> AbstractContextManager[LanceNamespace]: ...

    def seen(self, caller: str, id: str) -> LanceNamespace: ...

    def commit(self, caller: str, id: str) -> int: ...

    def abort(self, caller: str, id: str) -> None: ...


@dataclass(frozen=True)
class CatalogAbilities:
    """None means that the catalog cannot, and that a server does it in the way of the plain interface, or not at all.

    `current_state` answers, without waiting for anybody, with the state that a look-up of an id is answered from; None
    when that takes more than memory. Equal states give equal answers. `lacks_schema` returns True if DescribeTable
    would read a manifest for the schema. `root` and `storage_options` say where its tables
    are and how it reaches them: for the one decision on credentials (`vending`), and nothing else. `metastore` is what
    keeps history, log and dropped objects: other kinds of catalog have none of these. `session` is where this one
    stands: the present, an open transaction or the past. `at` is the catalog as it was at a slot, a time or a named
    snapshot. `identify` tells which object a name means here, by the keys from the root down to it. `table_version` is
    the catalog with one table at another version than the active one. `call` sends the request of a verb to the server
    that the catalog is behind. `undo` takes a transaction back, or tells what that would do. `by` is the catalog in the
    name of an author, `stream` and `create_stream` are its stream tables, which `publish` makes new all at one slot,
    and `transactions` those of callers in other processes. `verify` tells on what catalog and storage disagree;
    `migrate` gives tables that are only folders their rows; `collect` forgets what is older than its first age and
    deletes what dead writers left longer than the second ago, or tells what would go. `close` waits for what goes on
    beside.
    """

    delimiter: str = DELIMITER
    store: Store | None = None
    root: str = ""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    create_table_rows: RowsIn | None = None
    insert_rows: RowsIn | None = None
    merge_rows: RowsIn | None = None
    query_rows: Callable[[api.QueryTableRequest], pa.RecordBatchReader] | None = None
    alter_namespace: Callable[[Any], Any] | None = None
    rename_namespace: Callable[[Any], Any] | None = None
    clean_up: Callable[..., Any] | None = None
    optimize: Callable[..., Any] | None = None
    current_state: Callable[[ObjectId], object | None] | None = None
    lacks_schema: Callable[[ObjectId], bool] | None = None
    retries: Callable[[], int] | None = None
    metastore: Metastore | None = None
    at: Callable[[int | datetime | str], LanceNamespace] | None = None
    session: Session | None = None
    table_version: Callable[[ObjectId, str], LanceNamespace] | None = None
    call: Callable[..., Any] | None = None
    identify: Callable[..., tuple[str, ...]] | None = None
    in_transaction: bool = False
    undo: Callable[[str, bool], Undone] | None = None
    by: Callable[[str], LanceNamespace] | None = None
    stream: Callable[[ObjectId], StreamTable] | None = None
    create_stream: Callable[[ObjectId, Definition], StreamTable] | None = None
    publish: Callable[[Sequence[ObjectId]], list[Published]] | None = None
    transactions: Transactions | None = None
    verify: Callable[[], Sequence[Any]] | None = None
    migrate: Callable[[], Sequence[str]] | None = None
    collect: Callable[[timedelta | None, timedelta | None, bool], Collected] | None = None
    close: Callable[[], None] | None = None

    remote_past: str | None = None
    """The moment that a client of a server has asked for."""

    @property
    def past(self) -> str | None:
        """The past state that the catalog shows, such as `commit 7`; None for the present."""
        moment = None if self.session is None else self.session.moment
        return self.remote_past if moment is None else f"commit {moment.slot}"

    @property
    def is_present(self) -> bool:
        """True for the newest state; False in a transaction or in the past."""
        return not self.in_transaction and (self.session is None or self.session.moment is None)


@runtime_checkable
class Able(Protocol):
    """A catalog that says what it can do; a wrapper of one passes it on."""

    def abilities(self) -> CatalogAbilities: ...


def abilities_of(namespace: LanceNamespace) -> CatalogAbilities:
    """Return the abilities that a catalog declares; without a declaration, those of the interface alone."""
    return cast(Able, namespace).abilities() if _declares(type(namespace)) else CatalogAbilities()


@lru_cache(maxsize=64)
def _declares(kind: type) -> bool:
    """Return True for a class of catalogs that is `Able`. To look through its methods is dear, so it is done once."""
    return issubclass(kind, Able)


def write_rows(namespace: LanceNamespace, method: str, request: object, reader: pa.RecordBatchReader) -> Any:
    """Call a method that takes rows."""
    can = abilities_of(namespace)
    direct = {
        "create_table": can.create_table_rows,
        "insert_into_table": can.insert_rows,
        "merge_insert_into_table": can.merge_rows,
    }[method]
    if direct is not None:  # without a detour through bytes
        return direct(request, reader)
    return getattr(namespace, method)(request, to_stream(reader))


def read_rows(namespace: LanceNamespace, request: Any) -> pa.RecordBatchReader:
    """QueryTable: the rows as they are found, or from the whole answer."""
    direct = abilities_of(namespace).query_rows
    if direct is not None:
        return direct(request)
    answer: Any = namespace.query_table(request)
    data = answer if isinstance(answer, (bytes, bytearray)) else bytes(answer.data)
    return read_file(data)
