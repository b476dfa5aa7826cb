"""Several changes of a catalog in one commit: transactions of a metastore catalog, and batches (BatchCommitTables)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import lance_namespace as api
from lance_namespace import LanceNamespace

from headwater.arguments import check_options
from headwater.clock import SystemClock
from headwater.errors import LanceNamespaceError, UnsupportedOperationError
from headwater.names import ObjectId
from headwater.namespace.metastore import MetastoreNamespace
from headwater.namespace.requests import parse_request
from headwater.namespace.transactions.open_transactions import commit, session_of
from headwater.retry import retry

MAX_RUNS = 100
Answer = TypeVar("Answer")
Face = Callable[[Any], Any]
"""Returns the `Catalog` of a namespace, for the user of a transaction."""


class CatalogTransaction(ABC):
    """A transaction: `with catalog.transaction("why") as tx:` commits all changes of `tx` at its end, or none.

    `tx` reads the state in which the transaction began, with its own changes. If another writer has changed what `tx`
    has read, the commit raises ConcurrentModification (14) and changes nothing; `catalog.run` then begins again.
    Appended rows conflict with nothing: the commit puts them on top of what others have written.
    """

    slot: int | None = None
    """The commit of the transaction; None until it is committed."""

    def __init__(self, inside: LanceNamespace, face: Face) -> None:
        self._inside: Any = inside
        self._face = face

    def __enter__(self) -> Any:
        return self._face(self._inside)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._abort()
        else:
            self.slot = self._commit()

    @abstractmethod
    def _commit(self) -> int | None: ...

    @abstractmethod
    def _abort(self) -> None: ...


class LocalTransaction(CatalogTransaction):
    """A transaction of a metastore that this process has opened."""

    def __init__(self, namespace: MetastoreNamespace, message: str, author: str | None, face: Face) -> None:
        super().__init__(namespace.within(namespace.metastore.transaction(message, author)), face)
        self._namespace = namespace

    def _commit(self) -> int | None:
        return session_of(commit(self._namespace, self._inside)).tx.slot

    def _abort(self) -> None:
        session_of(self._inside).tx.rollback()


class HttpTransaction(CatalogTransaction):
    """A transaction of a server, which makes each operation in it. A client that is gone leaves nothing behind."""

    def _commit(self) -> int | None:
        return int(self._inside.commit())

    def _abort(self) -> None:
        with suppress(LanceNamespaceError):
            self._inside.abort()


def run(
    begin: Callable[[], CatalogTransaction], work: Callable[[Any], Answer], attempts: int, namespace: object
) -> Answer:
    """Call `work` in a transaction, and again in a new one after a conflict, at most `attempts` times."""

    def act(transaction: CatalogTransaction) -> Answer:
        with transaction as tx:
            return work(tx)

    clock = namespace.clock if isinstance(namespace, MetastoreNamespace) else SystemClock()
    return retry(clock, attempts, begin, act, longest=6)


def metastore_of(namespace: object) -> MetastoreNamespace:
    """Return a namespace as a metastore catalog; raise Unsupported (0) for any other kind."""
    if isinstance(namespace, MetastoreNamespace):
        return namespace
    raise UnsupportedOperationError(
        "This kind of catalog has no transactions and no history: a metastore catalog on local disk or a store has."
    )


class Batch:
    """A batch of changes. The end of its block makes all of them in one commit; an exception makes none."""

    def __init__(self, namespace: LanceNamespace, id: Callable[[Any], ObjectId]) -> None:
        self._namespace = namespace
        self._id = id
        self._operations: list[dict[str, object]] = []

    def declare_table(
        self, name: object, location: str | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        self._add("declare_table", name, location=location, properties=dict(properties or {}) or None)

    def deregister_table(self, name: object) -> None:
        self._add("deregister_table", name)

    def create_version(self, name: object, version: int, manifest_path: str, **details: object) -> None:
        """Make a staged manifest the next version of a table."""
        check_options(details, ("branch", "manifest_size", "e_tag", "metadata", "naming_scheme"), "create_version")
        self._add("create_table_version", name, version=version, manifest_path=manifest_path, **details)

    def delete_versions(self, name: object, first: int, last: int) -> None:
        """Delete the versions from `first` to `last`, both included."""
        self._add("delete_table_versions", name, ranges=[{"start_version": first, "end_version": last + 1}])

    def commit(self) -> None:
        operations, self._operations = self._operations, []
        if operations:
            request = parse_request(api.BatchCommitTablesRequest, {"operations": operations})
            self._namespace.batch_commit_tables(request)

    def _add(self, operation: str, name: object, **fields: object) -> None:
        given = {key: value for key, value in fields.items() if value is not None}
        self._operations.append({operation: {"id": list(self._id(name).names), **given}})

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.commit()
