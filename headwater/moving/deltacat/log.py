"""The committed transactions of a DeltaCAT root, and what each changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headwater.errors import CorruptFileError, InvalidInputError
from headwater.moving.deltacat.contents import NAMESPACE, TABLE, DeltacatContents, FoundNamespace, FoundTable, Ids
from headwater.moving.deltacat.layout import SUCCESS, DeltacatTxn, committed, decode, root_of, writes
from headwater.moving.deltacat.places import read_metadata
from headwater.store import KeyNotFoundError, Store


@dataclass(frozen=True)
class DeltacatStep:
    """A transaction, and what it touched as it was afterwards (None: it was dropped)."""

    txn: DeltacatTxn
    message: str
    namespaces: dict[Ids, FoundNamespace | None]
    tables: dict[Ids, FoundTable | None]
    problems: tuple[str, ...]
    """Revisions that could not be read: what they changed is not known."""


def read_steps(store: Store) -> Iterator[DeltacatStep]:
    """Every committed transaction in the order of their ends, which is DeltaCAT's."""
    txns = sorted(_committed(store), key=lambda txn: (txn.end, txn.id))
    if not txns:
        raise InvalidInputError("There is no DeltaCAT 2.x catalog: it has no committed transaction (txn/success/).")
    contents = DeltacatContents()
    for txn in txns:
        yield _step(store, contents, txn)


def _committed(store: Store) -> Iterator[DeltacatTxn]:
    for entry in store.list(SUCCESS):
        found = committed(entry.key)
        if found is not None:
            yield found


def _step(store: Store, contents: DeltacatContents, txn: DeltacatTxn) -> DeltacatStep:
    problems: list[str] = []
    touched: dict[Ids, None] = {}
    try:
        record = decode(txn.key, read_metadata(store, txn.key))
    except CorruptFileError as error:
        return DeltacatStep(txn, "", {}, {}, (str(error),))
    root = root_of(record)
    for write in writes(record, txn.key):
        try:
            contents.apply(write, decode(write.key, read_metadata(store, write.key)), root)
        except KeyNotFoundError:
            problems.append(f"{write.key} is missing")
        except CorruptFileError as error:
            problems.append(str(error))
        touched[write.ids] = None
    message = record.get("commit_message")
    return DeltacatStep(
        txn,
        message if isinstance(message, str) else "",
        {ids: contents.namespace(ids) for ids in touched if len(ids) == NAMESPACE},
        {ids: contents.table(ids) for ids in dict.fromkeys(ids[:TABLE] for ids in touched if len(ids) >= TABLE)},
        tuple(problems),
    )
