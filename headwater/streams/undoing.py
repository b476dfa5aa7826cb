"""Undo of what was ingested: a delta of its own that voids others (streams.md, rule 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.metastore import Delta, Metastore, Snapshot, Transaction
from headwater.metastore.draft import AppendedDelta
from headwater.metastore.metastore import RestoreIn
from headwater.metastore.objects import Undone
from headwater.streams.ledger import Ledger
from headwater.streams.opening import Stream, open_in
from headwater.streams.position_views import all_published
from headwater.streams.within import OwnLog


def void(tx: Transaction, snapshot: Snapshot, stream: Stream, txns: Sequence[str]) -> AppendedDelta:
    """Void the deltas of these transactions, and take their sources' records back. 19 with the reason if it cannot."""
    deltas = snapshot.deltas(stream.path, version=stream.version)
    chosen = [delta for delta in deltas if delta.txn in set(txns)]
    _check(stream, deltas, chosen, snapshot)
    for source in {str(delta.properties.get("source") or "") for delta in chosen}:
        Ledger(tx, stream.path, stream.version, source).give_back({delta.txn for delta in chosen})
    positions = [delta.position for delta in chosen]
    properties = {"voids": positions, "call": len(tx.draft.appends)}
    return tx.append_delta(stream.path, [], "append", version=stream.version, properties=properties)


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
        return void(tx, log, open_in(tx, path, version), [whose])

    return metastore.undo(txn, dry_run, void_in, restore, within)


def txns_of(
    deltas: Sequence[Delta], *, source: str | None, file: str | None, token: str | None, among: set[str] | None = None
) -> list[str]:
    """The transactions that took something from a source: one of its files, one batch, or all of it; only `among`."""
    voided = {position for delta in deltas for position in delta.properties.get("voids", ())}

    def matches(delta: Delta) -> bool:
        known = delta.properties
        return (
            delta.position not in voided
            and (source is None or known.get("source") == source)
            and (file is None or known.get("file") == file)
            and (token is None or known.get("token") == token)
            and (among is None or delta.txn in among)
        )

    if source is None and file is None and token is None and among is None:
        raise InvalidInputError("Say what to undo: a source, one of its files, its digest, or a token.")
    return list(dict.fromkeys(delta.txn for delta in deltas if matches(delta)))
