"""Undo of what was ingested: a delta of its own that voids others (streams.md, rule 9).

A batch landed as deltas of its table and, where it had bad rows, as one of the quarantine: they are undone as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.metastore import Delta, Metastore, Reading, Transaction
from headwater.metastore.commit.draft import AppendedDelta
from headwater.metastore.commit.table_parts import FIRST_VERSION
from headwater.metastore.commit.undo_deltas import ColumnChanges
from headwater.metastore.metastore import RestoreIn
from headwater.metastore.records.objects import Undone
from headwater.streams.definition import from_properties
from headwater.streams.fold.events import MARKED
from headwater.streams.layout import DELTA, QUARANTINE, sibling
from headwater.streams.log.batches import OF_VERSION, ORIGIN, QUEUE, RETRY_OF, batch_of, is_quarantine
from headwater.streams.log.source_ledger import FILE, TOKEN, LedgerEntry, give_back
from headwater.streams.reading.position_views import all_published
from headwater.streams.stream_lookup import Stream, open_in


class LandedPart(NamedTuple):
    """A delta that a batch landed as: rows of its table, or in the quarantine those that it could not take."""

    delta: Delta
    origin: Mapping[str, Any]
    is_voided: bool
    is_quarantined: bool

    @property
    def txn(self) -> str:
        """The transaction that it came with: rows that were taken again out of the quarantine keep it."""
        return str(self.origin.get(RETRY_OF, self.delta.txn))


class TakenOut(NamedTuple):
    """Result of an undo: the delta that voids others (None: only quarantined rows went), the number it voids, and the
    rows that left the quarantine.
    """

    made: AppendedDelta | None
    deltas: int
    quarantined: int


Choice = Callable[[Sequence[LandedPart]], Sequence[LandedPart]]


def parts_of(
    deltas: Sequence[Delta], quarantined: Sequence[Delta] = (), version: str = FIRST_VERSION
) -> list[LandedPart]:
    """Return the deltas that landed in a version of a table and its quarantine, without rows found late by a publish.

    The quarantine is one for all table versions.
    """
    own, beside = _voided(deltas), _voided(quarantined)
    mine = (each for each in quarantined if each.properties.get(OF_VERSION, FIRST_VERSION) == version)
    kept = [each for each in mine if ORIGIN in each.properties]
    return [
        *(LandedPart(each, each.properties, each.position in own, False) for each in deltas),
        *(LandedPart(each, each.properties[ORIGIN], each.position in beside, True) for each in kept),
    ]


def _voided(deltas: Sequence[Delta]) -> set[int]:
    return {position for delta in deltas for position in delta.properties.get("voids", ())}


def take_out(tx: Transaction, log: Reading, stream: Stream, choose: Choice) -> TakenOut:
    """Void what is chosen of what landed in a table, with the rows that it had quarantined, and take the records of its
    sources back. 19 with the reason if it cannot."""
    deltas, beside = log.deltas(stream.path, version=stream.version), _quarantine_of(tx, stream)
    kept = log.deltas(beside.path, version=beside.version) if beside is not None else []
    parts = parts_of(deltas, kept, stream.version)
    chosen = choose(parts)
    if not chosen:
        raise InvalidTableStateError(
            f"{stream.name} keeps no delta of what is to be undone: it was collected, or undone."
        )
    own = [part.delta for part in chosen if not part.is_quarantined]
    bad = [part.delta for part in chosen if part.is_quarantined]
    made = void(tx, log, stream, deltas, own) if own else None
    if beside is not None and bad:
        void(tx, log, beside, kept, bad)
    given = _give_back(tx, stream, parts, chosen)
    _check_rows(stream, deltas, chosen, given)
    if beside is not None and kept and kept[0].position > 1:
        _check_kept(beside, {entry.txn for entry in given if entry.quarantined} - {batch_of(delta) for delta in kept})
    return TakenOut(made, len(own), sum(file.rows or 0 for delta in bad for file in delta.files))


def void(
    tx: Transaction, log: Reading, stream: Stream, deltas: Sequence[Delta], chosen: Sequence[Delta], **told: object
) -> AppendedDelta:
    """Return a delta that voids some deltas of a log; 19 with the reason if that cannot be done. `told`:
    properties."""
    oldest = _check(stream, deltas, chosen, log)
    # A collection drops all up to some publish: if it drops any delta that the fold needs now, then the oldest one.
    tx.depend_on_delta(stream.path, oldest, format=DELTA, version=stream.version)
    if stream.path[-1].endswith(QUARANTINE):
        tx.last_position(stream.path, version=stream.version)  # its rows are taken out once: by an undo or by a retry
    properties = {"voids": [delta.position for delta in chosen], "call": tx.deltas_made, **told}
    return tx.append_delta(stream.path, [], "append", version=stream.version, properties=properties)


def _quarantine_of(tx: Transaction, stream: Stream) -> Stream | None:
    path = sibling(stream.path, QUARANTINE)
    return open_in(tx, path) if tx.exists(path) and is_quarantine(tx, path) else None


def _give_back(
    tx: Transaction, stream: Stream, parts: Sequence[LandedPart], chosen: Sequence[LandedPart]
) -> list[LedgerEntry]:
    """Take back what the records of the sources say of the chosen: of whole transactions all of it."""
    places = {(part.is_quarantined, part.delta.position) for part in chosen}
    left = {part.txn for part in parts if (part.is_quarantined, part.delta.position) not in places}
    whole = {part.txn for part in chosen} - left
    batches = {(part.txn, name) for part in chosen if (name := _recorded_as(part.origin)) is not None}
    sources = {str(part.origin.get("source") or "") for part in chosen}
    return [entry for each in sources for entry in give_back(tx, stream.path, stream.version, each, whole, batches)]


def _recorded_as(origin: Mapping[str, object]) -> str | None:
    """Return the name of a delta's batch in the record of its source."""
    file, token = origin.get("file"), origin.get("token")
    if file is not None:
        return f"{FILE}{file}"
    return f"{TOKEN}{token}" if token is not None else None


def _check_rows(
    stream: Stream, deltas: Sequence[Delta], chosen: Sequence[LandedPart], given: Sequence[LedgerEntry]
) -> None:
    """19 where what was quarantined came with rows of the table, or may have, and their deltas were collected."""
    if deltas and deltas[0].position == 1:
        return
    for txn in {part.txn for part in chosen} - {delta.txn for delta in deltas}:
        entries = [entry for entry in given if entry.txn == txn]
        if not entries or any(entry.rows for entry in entries):
            raise InvalidTableStateError(
                f"{stream.name} has rows of what is to be undone, and the deltas they came with were collected: they "
                "cannot be taken out."
            )


def _check_kept(quarantine: Stream, lacking: Collection[str]) -> None:
    if lacking:
        raise InvalidTableStateError(
            f"{quarantine.name} has rows of what is to be undone, and the deltas they came with were collected: they "
            "cannot be taken out. Drop the quarantine to undo the rest."
        )


def _check(stream: Stream, deltas: Sequence[Delta], chosen: Sequence[Delta], snapshot: Reading) -> int:
    """Return the oldest position that the fold needs without the chosen; 19 with the reason if it cannot be folded."""
    voided = _voided(deltas)
    if any("voids" in delta.properties for delta in chosen):
        raise InvalidTableStateError(f"What is to be undone in {stream.name} is itself an undo: ingest the rows again.")
    if any(delta.position in voided for delta in chosen):
        raise InvalidTableStateError(f"What is to be undone in {stream.name} was undone already.")
    first, publishes = min(delta.position for delta in chosen), all_published(snapshot, stream)
    base = max(position for position in (0, *(each.position for each in publishes)) if position < first)
    if any(each.position > base and each.rules < MARKED for each in publishes):
        raise InvalidTableStateError(
            f"{stream.name} was published by older rules of the fold since position {first}, and no state is folded "
            "across a change of them: it cannot be undone. Land rows that change it back."
        )
    kept = [delta.position for delta in deltas if delta.position > base]
    if kept != list(range(base + 1, deltas[-1].position + 1)):
        raise InvalidTableStateError(
            f"{stream.name} cannot be folded without position {first}: deltas after position {base} were collected."
        )
    return base + 1


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

    def void_in(tx: Transaction, path: tuple[str, ...], version: str, whose: str) -> bool:
        """Return True if it had landed rows there: a quarantine, which has a log of its own, may have all of them."""
        log: Reading = metastore.now() if within is None else within
        stream = open_in(tx, path, version)
        deltas = log.deltas(stream.path, version=stream.version)
        retried = {position for delta in deltas if QUEUE in delta.properties for position in delta.properties["voids"]}
        found = [delta for delta in deltas if batch_of(delta) == whose]
        chosen = [delta for delta in found if delta.position not in retried]
        given = give_back(tx, stream.path, stream.version, None, {whose})
        if chosen:
            void(tx, log, stream, deltas, chosen)
        elif found:  # all of it left the quarantine
            tx.last_position(stream.path, version=stream.version)
        elif any(entry.rows for entry in given):
            raise InvalidTableStateError(f"{stream.name} keeps no delta of what is to be undone: it was collected.")
        elif not given:
            raise InvalidTableStateError(
                f"What is to be undone in {stream.name} was undone already, or is itself an undo: ingest the rows "
                "again."
            )
        return bool(found)

    return metastore.undo(txn, dry_run, void_in, restore, within, column_changes)


def column_changes(before: Mapping[str, object], after: Mapping[str, object]) -> ColumnChanges:
    """Return the changes of a stream table's columns between two properties of its version."""
    was, has = from_properties(before), from_properties(after)
    if was is None or has is None:
        return ColumnChanges(set(), set())
    types = {column.id: column.type for column in was.columns}
    widened = {column.id for column in has.columns if types.get(column.id, column.type) != column.type}
    return ColumnChanges({column.id for column in has.columns if column.id >= was.next_id}, widened)


def landed_by(parts: Sequence[LandedPart], txn: str) -> list[LandedPart]:
    """Return the deltas that a transaction landed, and those that were retried of it."""
    return [part for part in parts if part.txn == txn and not (part.is_quarantined and part.is_voided)]


def landed_from(
    parts: Sequence[LandedPart],
    *,
    source: str | None,
    files: Collection[str] | None,
    token: str | None = None,
    batches: Collection[tuple[str, str]] = (),
    among: Collection[tuple[str, str]] | None = None,
) -> list[LandedPart]:
    """Return the deltas that came from a source: one of its files, one batch, or all of it, and nothing else of the
    same transaction.

    `files` are the names that the file may have; `batches` what was taken with the token, as a transaction and a
    source; `among` transactions with the names of files that count.
    """
    if source is None and files is None and token is None and among is None:
        raise InvalidInputError("Say what to undo: a source, one of its files, its digest, or a token.")

    def matches(part: LandedPart) -> bool:
        known = part.origin
        return (
            not part.is_voided
            and (source is None or known.get("source") == source)
            and (files is None or known.get("file") in files)
            and (among is None or (part.txn, str(known.get("file"))) in among)
        )

    def whose(part: LandedPart) -> tuple[str, object]:
        return part.txn, part.origin.get("source")

    of_batch = {*batches, *(whose(part) for part in parts if token is not None and part.origin.get("token") == token)}

    def is_of_batch(part: LandedPart) -> bool:
        """Return True for a delta of the batch. At most one of its deltas has the token, for all of them."""
        known = part.origin
        if known.get("token") is not None or known.get("source") is None or "file" in known:
            return bool(known.get("token") == token)
        return whose(part) in of_batch

    found = [part for part in parts if matches(part)]
    return found if token is None else [part for part in found if is_of_batch(part)]
