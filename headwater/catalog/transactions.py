"""Transactions over any number of tables and names of a catalog that has them: a metastore, near or behind a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, TypeVar

from lance_namespace import LanceNamespace

from headwater.clock import SystemClock
from headwater.errors import LanceNamespaceError, UnsupportedOperationError
from headwater.namespace.appending import session_of
from headwater.namespace.metastore import MetastoreNamespace
from headwater.namespace.rebasing import commit
from headwater.retry import retry

MAX_RUNS = 100
Answer = TypeVar("Answer")
Face = Callable[[Any], Any]
"""How a namespace becomes the catalog that a user holds."""


class CatalogTransaction(ABC):
    """`with catalog.transaction("why") as tx:` gives a catalog whose changes are made when the block ends, all or none.

    What it reads stays as it was when it began, but for its own changes. If another writer changed what it read, the
    end is ConcurrentModification (14), and nothing was changed: `catalog.run` begins anew by itself. Rows that it only
    appends conflict with nobody: they go on top of what others have written.
    """

    slot: int | None = None
    """The slot that holds the transaction, once it is committed."""

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


class NearTransaction(CatalogTransaction):
    """Of a metastore that this process has opened."""

    def __init__(self, namespace: MetastoreNamespace, message: str, author: str | None, face: Face) -> None:
        super().__init__(namespace.within(namespace.metastore.transaction(message, author)), face)
        self._namespace = namespace

    def _commit(self) -> int | None:
        return session_of(commit(self._namespace, self._inside)).tx.slot

    def _abort(self) -> None:
        session_of(self._inside).tx.rollback()


class Begins(Protocol):
    """A catalog behind a server that has transactions."""

    def begin(self, message: str) -> LanceNamespace: ...


class RemoteTransaction(CatalogTransaction):
    """Of a server, which makes each operation in it, and holds nothing that a client who is gone could leave."""

    def __init__(self, namespace: Begins, message: str, face: Face) -> None:
        super().__init__(namespace.begin(message), face)

    def _commit(self) -> int | None:
        return int(self._inside.commit())

    def _abort(self) -> None:
        with suppress(LanceNamespaceError):
            self._inside.abort()


def run(
    begin: Callable[[], CatalogTransaction], work: Callable[[Any], Answer], attempts: int, namespace: object
) -> Answer:
    """Do `work` in a transaction; when it conflicts, again in a new one."""

    def act(transaction: CatalogTransaction) -> Answer:
        with transaction as tx:
            return work(tx)

    clock = namespace.clock if isinstance(namespace, MetastoreNamespace) else SystemClock()
    return retry(clock, attempts, begin, act, longest=6)


def metastore_of(namespace: object) -> MetastoreNamespace:
    """The metastore catalog that this is, or Unsupported (0) that says which kind has what was asked for."""
    if isinstance(namespace, MetastoreNamespace):
        return namespace
    raise UnsupportedOperationError(
        "This kind of catalog has no transactions and no history: a metastore catalog on local disk or a store has."
    )
