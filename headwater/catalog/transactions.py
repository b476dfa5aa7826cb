"""Transactions over any number of tables and names of a catalog that has them (a metastore)."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from headwater.errors import UnsupportedOperationError
from headwater.namespace.appending import session_of
from headwater.namespace.metastore import MetastoreNamespace
from headwater.namespace.rebasing import commit
from headwater.retry import retry

MAX_RUNS = 100
Answer = TypeVar("Answer")
Face = Callable[[MetastoreNamespace], Any]
"""How a namespace becomes the catalog that a user holds."""


class CatalogTransaction:
    """`with catalog.transaction("why") as tx:` gives a catalog whose changes are made when the block ends, all or none.

    What it reads stays as it was when it began, but for its own changes. If another writer changed what it read, the
    end is ConcurrentModification (14), and nothing was changed: `catalog.run` begins anew by itself. Rows that it only
    appends conflict with nobody: they are staged again on top of what others have written.
    """

    def __init__(self, namespace: MetastoreNamespace, message: str, author: str | None, face: Face) -> None:
        self._namespace = namespace
        self._face = face
        self._inside = namespace.within(namespace.metastore.transaction(message, author))

    @property
    def slot(self) -> int | None:
        """The slot that holds the transaction, once it is committed."""
        return session_of(self._inside).tx.slot

    def __enter__(self) -> Any:
        return self._face(self._inside)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            session_of(self._inside).tx.rollback()
        else:
            self._inside = commit(self._namespace, self._inside)


def run(
    namespace: MetastoreNamespace, work: Callable[[Any], Answer], message: str, attempts: int, face: Face
) -> Answer:
    """Do `work` in a transaction; when it conflicts, again in a new one."""

    def act(transaction: CatalogTransaction) -> Answer:
        with transaction as tx:
            return work(tx)

    return retry(namespace.clock, attempts, lambda: CatalogTransaction(namespace, message, None, face), act, longest=6)


def metastore_of(namespace: object) -> MetastoreNamespace:
    """The metastore catalog that this is, or Unsupported (0) that says which kind has what was asked for."""
    if isinstance(namespace, MetastoreNamespace):
        return namespace
    raise UnsupportedOperationError(
        "This kind of catalog has no transactions and no history: a metastore catalog on local disk or a store has."
    )
