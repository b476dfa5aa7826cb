"""Checks: conditions in Spark SQL that the rows of a batch should hold. A row holds one only where it is TRUE.

`warn` counts the rows that do not, `drop` puts them into the quarantine (`check:<name>`), `fail` refuses all.
Deletes are not judged, nor is a row by a check that names a column which the row lacks.

A property whose name is nearly one of a stream table's would silently make another table, and is refused. A table may
have properties of its users by any other name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.sql.embedded import EmbeddedEngine, shared
from headwater.sql.spark_parser import SqlError, UnsupportedSqlError, check_quotes, columns_of, parse_condition
from headwater.streams.fold.events import Events
from headwater.streams.rows.row_keys import Mask
from headwater.wording import many

WARN, DROP, FAIL = "warn", "drop", "fail"
REMEDY = "a check runs in that engine on Spark too, so write it in other words, or as the WHERE of a view."


@dataclass(frozen=True)
class Check:
    """A named condition on rows, and what becomes of those that do not hold it."""

    name: str
    sql: str
    action: str = WARN


@dataclass(frozen=True)
class Judged:
    """Rows that failed a check."""

    check: Check
    failed: Mask


EXPECT = {"expect": WARN, "expect_or_drop": DROP, "expect_or_fail": FAIL}
"""The properties of a table that are checks of its own, `<kind>.<name>`, and what each kind does."""


def checks_of(properties: Mapping[str, str]) -> tuple[Check, ...]:
    """Return the checks that a table has of its own; 13 if SQL cannot be one, or two have one name."""
    found: dict[str, Check] = {}
    for property, text in sorted(properties.items()):
        kind, _, name = property.partition(".")
        if kind not in EXPECT:
            continue
        if not name or name in found:
            raise InvalidInputError(f"The property {property!r} must name a check, and each check once.")
        if not text.strip():
            raise InvalidInputError(f"{property} is empty: leave it out, or give a SQL expression.")
        found[name] = Check(name, text, EXPECT[kind])
    return tuple(found.values())


def with_own(own: Sequence[Check], given: Sequence[Check]) -> list[Check]:
    """Return a table's own checks and those given with a call, which go first where both have one name."""
    names = {check.name for check in given}
    return [*given, *(check for check in own if check.name not in names)]


def try_checks(checks: Sequence[Check], schema: pa.Schema) -> None:
    """13 for a check that cannot be run on rows of a schema."""
    if checks:
        _answers(checks, schema.empty_table())


def judge(checks: Sequence[Check], events: Events) -> list[Judged]:
    """Return every check over the events of a batch; a `fail` that fails is an error that names the first such row."""
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
                f"is row {row} (counted from 0): {shown}. Nothing was loaded."
            )
        found.append(Judged(check, failed))
    return found


def _complete(check: Check, events: Events) -> Mask:
    """Return the rows that have every column which the check names."""
    complete = np.ones(len(events), bool)
    named = columns_of(parse_condition(check.sql))
    for name, mask in events.present.items():
        if name.lower() in named:
            complete &= mask
    return complete


def _answers(checks: Sequence[Check], rows: pa.Table) -> list[Mask]:
    """Return for each check the rows that hold it."""
    with shared() as engine:
        try:
            return _outcomes(engine, checks, rows)
        except (SqlError, UnsupportedSqlError) as error:
            raise _wrong(engine, checks, rows, error) from None


def _outcomes(engine: EmbeddedEngine, checks: Sequence[Check], rows: pa.Table) -> list[Mask]:
    for check in checks:
        check_quotes(check.sql, rows.schema.names)
    table: Any = engine.answers([parse_condition(check.sql) for check in checks], rows)
    return [column.fill_null(False).to_numpy().astype(bool) for column in table.columns]


def _wrong(engine: EmbeddedEngine, checks: Sequence[Check], rows: pa.Table, error: Exception) -> InvalidInputError:
    """Return the error of the check that cannot be run, by running each alone."""
    for check in checks:
        try:
            _outcomes(engine, [check], rows)
        except SqlError as own:
            return InvalidInputError(f"The check {check.name!r} ({check.sql}) cannot be run: {own}")
        except UnsupportedSqlError as own:
            return InvalidInputError(f"The check {check.name!r} ({check.sql}) cannot be run. {own}: {REMEDY}")
    return InvalidInputError(f"A check cannot be run: {error}")


ARGUMENTS = {
    "keys": "keys are told as such: keys=[...], or at creation TBLPROPERTIES ('keys' = 'a,b')",
    "sequence": "the sequence is told as such: sequence=[...], or at creation TBLPROPERTIES ('sequence' = 'a,b')",
    "partition_by": "partitions are told as such: partition_by=[...], or PARTITIONED BY (...)",
}
"""Options of a new table that are not properties of it."""
PROPERTIES = ("late", "lateness", "contract", "log_retention", "history")
FAMILIES = ("column", *EXPECT)
"""What stands before the dot, and a name of the user's behind it."""
MEANT = {"key": "keys", "primarykey": "keys", "primarykeys": "keys"}
FREE = frozenset(("contact", "retention"))
"""Words of their own, however near."""
CLOSE, SHORT = 0.85, 5
"""How alike two names are, and names so short that a letter makes another word."""


def check_property_names(names: Iterable[str]) -> None:
    """Error 13 for a name that nearly is one of ours, with the one that was meant."""
    for name in names:
        head, dot, rest = name.partition(".")
        if name in ARGUMENTS:
            raise InvalidInputError(f"{name!r} is not a property of a stream table: {ARGUMENTS[name]}.")
        if name in PROPERTIES or (dot and head in FAMILIES):
            continue
        meant = _meant(head, FAMILIES) if dot else _meant(name, (*PROPERTIES, *ARGUMENTS))
        if meant is not None:
            right = f"{meant}{dot}{rest}"
            told = ARGUMENTS.get(right, f"write {right!r}")
            raise InvalidInputError(
                f"{name!r} is not a property that a stream table knows, and nearly one: {told}. A property of your own "
                "needs another name."
            )


def _meant(name: str, known: Iterable[str]) -> str | None:
    plain = _plain(name)
    by_plain = {_plain(each): each for each in known}
    if plain in by_plain:
        return by_plain[plain]
    if plain in MEANT and MEANT[plain] in by_plain.values():
        return MEANT[plain]
    long = [each for each in by_plain if len(each) > SHORT]
    close = difflib.get_close_matches(plain, long, 1, CLOSE) if plain not in FREE else []
    return by_plain[close[0]] if close else None


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())
