"""A stream table inside an open transaction: what was committed before, and what the transaction has landed itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from headwater.metastore import Delta, Object, Snapshot, Transaction
from headwater.streams.layout import DELTA

Path = Sequence[str]


class OwnLog:
    """A transaction, asked as a snapshot is. Its own deltas follow what it began with, at provisional positions: they
    get their real ones when it commits, after those that others have landed by then."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    @property
    def slot(self) -> int:
        return self._tx.draft.base.at

    def exists(self, path: Path) -> bool:
        return self._tx.exists(path)

    def versions(self, path: Path) -> list[Object]:
        return self._tx.versions(path)

    def get_stream(
        self, path: Path, id: str | None = None, *, format: str = DELTA, version: str | None = None
    ) -> Object:
        return self._tx.get_stream(path, id, format=format, version=version)

    def deltas(self, path: Path, after: int = 0, *, format: str = DELTA, version: str | None = None) -> list[Delta]:
        found = self._tx.deltas(path, after, format=format, version=version)
        return [*found, *(own for own in self._own(path, format, version) if own.position > after)]

    def get_delta(self, path: Path, position: int, *, format: str = DELTA, version: str | None = None) -> Delta:
        for own in self._own(path, format, version):
            if own.position == position:
                return own
        return self._tx.get_delta(path, position, format=format, version=version)

    def newest_delta(self, path: Path, *, format: str = DELTA, version: str | None = None) -> Delta | None:
        own = self._own(path, format, version)
        return own[-1] if own else self._tx.newest_delta(path, format=format, version=version)

    def last_position(self, path: Path, *, format: str = DELTA, version: str | None = None) -> int:
        own = self._own(path, format, version)
        return own[-1].position if own else self._tx.last_position(path, format=format, version=version)

    def _own(self, path: Path, format: str, version: str | None) -> list[Delta]:
        home = self._tx.get_stream(path, format=format, version=version).home
        appends = [each for each in self._tx.draft.appends if each.stream_home == home]
        if not appends:
            return []
        position, found = self._tx.last_position(path, format=format, version=version), list[Delta]()
        for each in appends:
            position = each.wanted if each.wanted is not None else position + 1
            properties: dict[str, Any] = dict(each.properties)
            found.append(Delta(position, each.type, each.files, each.partition, properties, self.slot, self._tx.id, 0))
        return found


def own_log(tx: Transaction) -> Snapshot:
    """The same for who asks a snapshot: it answers what one of the log is asked."""
    return cast(Snapshot, OwnLog(tx))


@contextmanager
def landing(tx: Transaction) -> Iterator[None]:
    """What is read of a log here does not bind the transaction: landing never conflicts with other writers' landing."""
    before = set(tx.draft.reads)
    yield
    tx.draft.reads -= {read for read in tx.draft.reads - before if read.startswith("d")}


@contextmanager
def by_position(tx: Transaction, path: Path, version: str) -> Iterator[None]:
    """Rows that are read of a log here bind the transaction by the log's last position: a publish changes no state."""
    OwnLog(tx).last_position(path, version=version)
    before = set(tx.draft.reads)
    yield
    tx.draft.reads &= before
