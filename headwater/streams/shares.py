"""A publish in shares: each folds the events of its keys and writes their rows, on an executor if need be.

A share needs the store and no catalog. What it writes belongs to no version until the publish commits it, so one that
is done twice, or for nothing, leaves files that nothing refers to.
"""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from headwater.metastore import DataFile
from headwater.streams.batch_lines import read_tail
from headwater.streams.definition import Definition
from headwater.streams.derived import with_derived
from headwater.streams.events import Folded
from headwater.streams.given import as_json
from headwater.streams.grouping import Codes
from headwater.streams.hashing import MODULUS
from headwater.streams.log_files import Logged, Share, narrowed
from headwater.streams.marks import encode_lines
from headwater.streams.memory_pages import small_pages
from headwater.streams.merging import appended, merged
from headwater.streams.position_views import PositionView, Published
from headwater.streams.quarantine import Quarantined
from headwater.streams.serving_copy import Lake, open_version
from headwater.streams.tombstones import TombstonesAndMarks, read_remembered, write_remembered
from headwater.streams.watermark import Watermark, decoded, encoded
from headwater.streams.writing import Changes, NewFragments, write_rows_of

Json = dict[str, Any]


@dataclass(frozen=True)
class Publish:
    """A publish as planned at a slot: the view to make the serving copy equal to, what it is equal to now, and its
    newest version."""

    view: PositionView
    before: Published | None
    head: tuple[int, str] | None
    slot: int

    @property
    def current(self) -> Published | None:
        """What is published, at the newest version of the serving copy: those after it hold the same rows."""
        if self.before is None or self.head is None:
            return self.before
        return replace(self.before, version=self.head[0], manifest=self.head[1])

    @property
    def rows(self) -> int:
        """The events it takes in."""
        return sum(file.rows or 0 for delta in self.view.tail for file in delta.files)


@dataclass(frozen=True)
class Done:
    """What was written for a publish: fragments, addresses of rows to take away, and the counts after it."""

    fragments: NewFragments
    addresses: Codes
    digest: int
    count: int
    watermark: Watermark = None
    late: int = 0
    too_late: int = 0
    quarantined: tuple[Quarantined, ...] = ()
    tombstones: tuple[DataFile, ...] = ()
    lines: str | None = None

    @property
    def changed(self) -> int:
        """How many rows were written or taken away."""
        return max(sum(int(each.physical_rows) for each in self.fragments.metadata), len(self.addresses))


class Hands(Protocol):
    """Who does the shares of a publish elsewhere."""

    def shares(self, rows: int) -> int:
        """How many shares a publish of so many events is done in; 1: here."""
        ...

    def run(self, work: Publish, count: int) -> list[Json]:
        """What `share_of_work` answers for each of so many shares."""
        ...


def written(lake: Lake, work: Publish, dataset: Any, log: Logged, changes: Changes, folded: Folded) -> Done:
    """Write the changed rows, with their derived columns, as fragments."""
    definition = work.view.stream.definition
    counted = log.positions > (work.before.position if work.before is not None else 0)
    if definition.derived:
        rows = with_derived(definition, dataset, changes, work.before.derived if work.before is not None else ())
        changes = replace(changes, rows=rows)
    return Done(
        write_rows_of(lake, work.view.stream, dataset, changes),
        changes.addresses,
        changes.digest,
        changes.count,
        folded.watermark,
        int((folded.late & counted).sum()),
        int((folded.too_late & counted).sum()),
        tuple(_passed_over(definition, log, folded, counted, work.view)),
        lines=encode_lines(definition, folded.lines),
    )


def _passed_over(
    definition: Definition, log: Logged, folded: Folded, counted: Any, view: PositionView
) -> list[Quarantined]:
    """Events that did not apply, as the quarantine keeps them."""
    nobody = np.zeros(len(counted), bool)
    unplaced = nobody if folded.unplaced is None else folded.unplaced & counted
    late = folded.late & counted & ~unplaced if definition.quarantines_late else nobody
    rows: list[Quarantined] = []
    for mask, reason in ((late, "late"), (unplaced, "late_partial"), (folded.too_late & counted, "too_late")):
        places = np.flatnonzero(mask)
        found = log.events.rows.take(places).to_pylist()
        for row, place in zip(found, places.tolist(), strict=True):
            delta = view.tail[log.deltas[place]]
            source = delta.properties.get("file") or delta.properties.get("source")
            rows.append(Quarantined(as_json(row), reason, None, source, int(log.positions[place])))
    return rows


# One share, where it is done -----------------------------------------------------------------------------------------


@small_pages
def share_of_work(lake: Lake, work: Publish, share: Share) -> Json:
    """Do a share of a publish; as JSON, counts and digest as differences to what is published."""
    stream = work.view.stream
    rules = narrowed(stream.definition, None)
    current = work.current
    dataset = open_version(lake, stream, *work.head) if work.head else None
    log = read_tail(lake.store, work.view, share=share)
    if rules.keys:
        changes, folded = merged(lake, work.view, rules, log, current)
    else:
        changes, folded = appended(lake, work.view, rules, log, current)
    done = written(lake, work, dataset, log, changes, folded)
    found = TombstonesAndMarks(folded.tombstones, folded.marks)
    tombstones = write_remembered(lake.store, lake.clock, stream, found, folded.watermark)
    known = current or Published(0, 0, "")
    return {
        **done.fragments.to_json(),
        "addresses": packed(done.addresses),
        "digest": str((done.digest - known.digest) % MODULUS),
        "count": done.count - known.rows,
        "watermark": encoded(done.watermark),
        "late": done.late,
        "too_late": done.too_late,
        "quarantined": [dataclasses.asdict(row) for row in done.quarantined],
        "tombstones": [[file.path, file.rows, file.bytes] for file in tombstones],
        "lines": done.lines,
    }


# All shares, where they are committed --------------------------------------------------------------------------------


def together(lake: Lake, work: Publish, answers: Sequence[Json]) -> Done:
    """What all shares have done. Their tombstones and marks stay in the files they wrote: see `remembered_of`."""
    known = work.current or Published(0, 0, "")
    addresses = [unpacked(each["addresses"]) for each in answers]
    return Done(
        NewFragments.from_json(answers),
        np.concatenate([np.empty(0, np.int64), *addresses]),
        (known.digest + sum(int(each["digest"]) for each in answers)) % MODULUS,
        known.rows + sum(each["count"] for each in answers),
        decoded(answers[0]["watermark"]),
        sum(each["late"] for each in answers),
        sum(each["too_late"] for each in answers),
        tuple(Quarantined(**row) for each in answers for row in each["quarantined"]),
        tuple(DataFile(*file) for each in answers for file in each["tombstones"]),
        answers[0]["lines"],
    )


def remembered_of(lake: Lake, definition: Definition, done: Done) -> TombstonesAndMarks:
    """The tombstones and marks that shares wrote, whose files are not needed then."""
    found = read_remembered(lake.store, definition, narrowed(definition, None), done.tombstones)
    for file in done.tombstones:
        lake.store.delete(file.path)
    return found


def packed(addresses: Codes) -> str:
    """Addresses as text; they are close together, so their differences are small."""
    steps = np.diff(np.sort(addresses), prepend=0).astype("<i8")
    return base64.b64encode(zlib.compress(steps.tobytes(), 1)).decode()


def unpacked(text: str) -> Codes:
    steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")
    found: Codes = np.cumsum(steps).astype(np.int64)
    return found
