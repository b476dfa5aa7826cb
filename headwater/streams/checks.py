"""Checks: SQL that the rows of a batch should hold. A row holds one only where the answer is TRUE, not NULL.

`warn` counts the rows that do not, `drop` puts them into the quarantine (`check:<name>`), `fail` refuses all.
Deletes are not judged, nor is a row by a check that names a column which the row lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.imports import lance
from headwater.streams.events import Events
from headwater.tables.expressions import check_sql, words
from headwater.tables.translate import first_line
from headwater.types import aligned
from headwater.wording import many

Mask = npt.NDArray[np.bool_]
WARN, DROP, FAIL = "warn", "drop", "fail"


@dataclass(frozen=True)
class Check:
    """A named condition on rows, and what becomes of those that do not hold it."""

    name: str
    sql: str
    action: str = WARN


@dataclass(frozen=True)
class Judged:
    """Which rows did not hold a check."""

    check: Check
    failed: Mask


EXPECT = {"expect": WARN, "expect_or_drop": DROP, "expect_or_fail": FAIL}
"""The properties of a table that are checks of its own, `<kind>.<name>`, and what each kind does."""


def checks_of(properties: Mapping[str, str]) -> tuple[Check, ...]:
    """The checks that a table has of its own; 13 if SQL cannot be one, or two have one name."""
    found: dict[str, Check] = {}
    for property, text in sorted(properties.items()):
        kind, _, name = property.partition(".")
        if kind not in EXPECT:
            continue
        if not name or name in found:
            raise InvalidInputError(f"The property {property!r} must name a check, and each check once.")
        check_sql(property, text)
        found[name] = Check(name, text, EXPECT[kind])
    return tuple(found.values())


def with_own(own: Sequence[Check], given: Sequence[Check]) -> list[Check]:
    """A table's own checks and those given with a call, which go first where both have one name."""
    names = {check.name for check in given}
    return [*given, *(check for check in own if check.name not in names)]


def try_checks(checks: Sequence[Check], schema: pa.Schema) -> None:
    """13 for a check that cannot be run on rows of a schema."""
    if checks:
        _answers(checks, schema.empty_table())


def judge(checks: Sequence[Check], events: Events) -> list[Judged]:
    """Every check over the events of a batch; a `fail` that fails is an error that names the first such row."""
    if not checks or not len(events):
        return []
    answers = _answers(checks, events.rows)
    found = []
    for check, holds in zip(checks, answers, strict=True):
        failed = ~holds & ~events.deletes & _complete(check, events)
        if check.action == FAIL and failed.any():
            row = int(np.flatnonzero(failed)[0])
            shown = str(events.rows.slice(row, 1).to_pylist()[0])[:200]
            raise InvalidInputError(
                f"The check {check.name!r} ({check.sql}) does not hold for {many(int(failed.sum()), 'row')}, the first "
                f"is row {row} (counted from 0): {shown}. Nothing was taken."
            )
        found.append(Judged(check, failed))
    return found


def _complete(check: Check, events: Events) -> Mask:
    """The rows that have every column which the check names."""
    complete = np.ones(len(events), bool)
    named = {word.strip('"`').split(".")[0] for word in words(check.sql)}
    for name, mask in events.present.items():
        if name in named:
            complete &= mask
    return complete


def _answers(checks: Sequence[Check], rows: pa.Table) -> list[Mask]:
    columns = {f"c{place}": check_sql(f"check {check.name!r}", check.sql) for place, check in enumerate(checks)}
    reader = pa.RecordBatchReader.from_batches(rows.schema, (aligned(batch) for batch in rows.to_batches()))
    dataset = lance.write_dataset(reader, "memory://checked")
    try:
        table = dataset.scanner(columns=columns, scan_in_order=True).to_table()
    except LanceNamespaceError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise _wrong(checks, dataset, error) from None
    found = []
    for place, check in enumerate(checks):
        column = table.column(f"c{place}")
        if not pa.types.is_boolean(column.type):
            raise InvalidInputError(f"The check {check.name!r} ({check.sql}) answers {column.type}, not true or false.")
        found.append(column.fill_null(False).to_numpy().astype(bool))
    return found


def _wrong(checks: Sequence[Check], dataset: lance.LanceDataset, error: Exception) -> InvalidInputError:
    """The check that cannot be run, by running each alone."""
    for check in checks:
        try:
            dataset.scanner(columns={"c": check_sql("check", check.sql)}, limit=1).to_table()
        except (OSError, ValueError, RuntimeError) as own:
            return InvalidInputError(f"The check {check.name!r} ({check.sql}) cannot be run: {first_line(own)}")
    return InvalidInputError(f"A check cannot be run: {first_line(error)}")
