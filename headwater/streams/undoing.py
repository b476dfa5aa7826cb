"""Undo of what was ingested: a delta of its own that voids others (streams.md, rule 9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.metastore import Delta, Metastore, Snapshot, Transaction
from headwater.metastore.draft import AppendedDelta
from headwater.metastore.metastore import RestoreIn
from headwater.metastore.objects import Undone
from headwater.metastore.undo import ColumnChanges
from headwater.streams.definition import from_properties
from headwater.streams.ledger import FILE, TOKEN, Ledger
from headwater.streams.opening import Stream, open_in
from headwater.streams.position_views import all_published
from headwater.streams.within import OwnLog


def void(tx: Transaction, snapshot: Snapshot, stream: Stream, positions: Collection[int]) -> AppendedDelta:
    """Void these deltas, and take their sources' records back. 19 with the reason if it cannot."""
    deltas = snapshot.deltas(stream.path, version=stream.version)
    chosen = [delta for delta in deltas if delta.position in positions]
    _check(stream, deltas, chosen, snapshot)
    whole = {delta.txn for delta in chosen} - {delta.txn for delta in deltas if delta.position not in positions}
    for source in {str(delta.properties.get("source") or "") for delta in chosen}:
        batches = {(delta.txn, name) for delta in chosen if (name := _recorded_as(delta)) is not None}
        Ledger(tx, stream.path, stream.version, source).give_back(whole, batches)
    positions = [delta.position for delta in chosen]
    properties = {"voids": positions, "call": len(tx.draft.appends)}
    return tx.append_delta(stream.path, [], "append", version=stream.version, properties=properties)


def _recorded_as(delta: Delta) -> str | None:
    """What the record of its source calls the batch that a delta is of."""
    file, token = delta.properties.get("file"), delta.properties.get("token")
    if file is not None:
        return f"{FILE}{file}"
    return f"{TOKEN}{token}" if token is not None else None


def _check(stream: Stream, deltas: Sequence[Delta], chosen: Sequence[Delta], snapshot: Snapshot) -> None:
    if not chosen:
        raise InvalidTableStateError(
            f"{stream.name} keeps no delta of what is to be undone: it was collected, or undone."
        )
    voided = {position for delta in deltas for position in delta.properties.get("voids", ())}
    if any("voids" in delta.properties for delta in chosen):
        raise InvalidTableStateError(f"What is to be undone in {stream.name} is itself an undo: ingest the rows again.")
    if any(delta.position in voided for delta in chosen):
        raise InvalidTableStateError(f"What is to be undone in {stream.name} was undone already.")
    first = min(delta.position for delta in chosen)
    bases = [0, *(each.position for each in all_published(snapshot, stream))]
    base = max(position for position in bases if position < first)
    kept = [delta.position for delta in deltas if delta.position > base]
    if kept != list(range(base + 1, deltas[-1].position + 1)):
        raise InvalidTableStateError(
            f"{stream.name} cannot be folded without position {first}: deltas after position {base} were collected."
        )


def undo_transaction(
    metastore: Metastore,
    txn: Any,
    dry_run: bool = False,
    restore: RestoreIn | None = None,
    within: Transaction | None = None,
) -> Undone:
    """Undo a committed transaction by a new one, or `within` one; what it landed in stream tables is voided. 19 with
    the reasons.

    `restore` makes the next version of a Lance table like an older one.
    """

    def void_in(tx: Transaction, path: tuple[str, ...], version: str, whose: str) -> AppendedDelta:
        log: Any = metastore.now() if within is None else OwnLog(within)
        stream = open_in(tx, path, version)
        deltas = log.deltas(stream.path, version=stream.version)
        return void(tx, log, stream, [delta.position for delta in deltas if delta.txn == whose])

    return metastore.undo(txn, dry_run, void_in, restore, within, column_changes)


def column_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> ColumnChanges:
    """What became of the columns of a stream table, by the properties of its version before and after."""
    was, has = from_properties(before), from_properties(after)
    if was is None or has is None:
        return ColumnChanges(set(), set())
    types = {column.id: column.type for column in was.columns}
    widened = {column.id for column in has.columns if types.get(column.id, column.type) != column.type}
    return ColumnChanges({column.id for column in has.columns if column.id >= was.next_id}, widened)


def landed_from(
    deltas: Sequence[Delta],
    *,
    source: str | None,
    files: Collection[str] | None,
    token: str | None,
    among: Collection[tuple[str, str]] | None = None,
) -> list[int]:
    """The positions of what was taken from a source: one of its files, one batch, or all of it, and nothing else that
    the same transaction has done.

    `files` are the names that the file may have; `among` transactions with the names of files that count.
    """
    voided = {position for delta in deltas for position in delta.properties.get("voids", ())}

    def matches(delta: Delta) -> bool:
        known = delta.properties
        return (
            delta.position not in voided
            and (source is None or known.get("source") == source)
            and (files is None or known.get("file") in files)
            and (among is None or (delta.txn, str(known.get("file"))) in among)
        )

    def whose(delta: Delta) -> tuple[str, Any]:
        return delta.txn, delta.properties.get("source")

    of_batch = {whose(delta) for delta in deltas if token is not None and delta.properties.get("token") == token}

    def is_of_batch(delta: Delta) -> bool:
        """Of the deltas that a batch was divided into one has its token, which stands for all of them."""
        known = delta.properties
        if known.get("token") is not None or known.get("source") is None or "file" in known:
            return bool(known.get("token") == token)
        return whose(delta) in of_batch

    if source is None and files is None and token is None and among is None:
        raise InvalidInputError("Say what to undo: a source, one of its files, its digest, or a token.")
    found = [delta for delta in deltas if matches(delta)]
    return [delta.position for delta in found if token is None or is_of_batch(delta)]
