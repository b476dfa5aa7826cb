"""Functions of Spark SQL over dates and timestamps. Every time zone is UTC."""

from __future__ import annotations

from headwater.sql.casts import (
    Rule,
    Term,
    Terms,
    as_int,
    cast,
    in_years,
    int_text,
    literal,
    of,
    only,
    refuse,
    rule,
    text_literal,
)
from headwater.sql.sql_types import BIGINT, DATE, STRING, TIMESTAMP, SqlDatatype

_PATTERNS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_TRUNCATED = {"year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month"}
_TRUNCATED |= {"mm": "month", "week": "week"}
_SMALL = {"day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second"}
DATES: dict[str, Rule] = {}
"""Functions of dates and timestamps."""


def _moment(term: Term) -> str:
    """Return a date or timestamp as DuckDB's TIMESTAMP: every time zone is UTC."""
    if term.kind == STRING and isinstance(term.value, str):
        return cast(cast(term, TIMESTAMP), SqlDatatype("timestamp_ntz")).text
    if not term.kind.is_moment and term.kind.name != "void":
        raise ValueError(term.kind)
    return cast(term, SqlDatatype("timestamp_ntz")).text


def _day(term: Term) -> str:
    if term.kind == STRING and isinstance(term.value, str):
        return cast(term, DATE).text
    return of(term, DATE)


def _part(name: str, more: str = "") -> Rule:
    return lambda terms: as_int(f"{name}({_moment(only(terms))}){more}")


PARTS = {
    "year": _part("year"), "quarter": _part("quarter"), "month": _part("month"), "day": _part("day"),
    "dayofmonth": _part("day"), "dayofyear": _part("dayofyear"), "dayofweek": _part("dayofweek", " + 1"),
    "weekday": _part("isodow", " - 1"), "weekofyear": _part("weekofyear"), "hour": _part("hour"),
    "minute": _part("minute"), "second": _part("second"),
}  # fmt: skip
DATES |= PARTS
DATES["date_add"] = lambda terms: Term(f"({_day(terms[0])} + {int_text(terms[1])})", DATE)
DATES["date_sub"] = lambda terms: Term(f"({_day(terms[0])} - {int_text(terms[1])})", DATE)
DATES["dateadd"] = DATES["date_add"]


@rule(DATES, "datediff", "date_diff")
def _datediff(terms: Terms) -> Term:
    end, start = terms
    return as_int(f"({_day(end)} - {_day(start)})")


@rule(DATES, "add_months")
def _add_months(terms: Terms) -> Term:
    months = int_text(terms[1])
    return Term(f"CAST({_day(terms[0])} + to_months({months}) AS DATE)", DATE)


DATES["last_day"] = lambda terms: Term(f"last_day({_day(only(terms))})", DATE)
DATES["to_date"] = lambda terms: cast(only(terms), DATE)
DATES["date"] = DATES["to_date"]
DATES["to_timestamp"] = lambda terms: cast(only(terms), TIMESTAMP)


@rule(DATES, "trunc")
def _trunc(terms: Terms) -> Term:
    unit = _TRUNCATED[literal(terms[1]).lower()]
    return Term(f"CAST(date_trunc('{unit}', {_day(terms[0])}) AS DATE)", DATE)


@rule(DATES, "date_trunc")
def _date_trunc(terms: Terms) -> Term:
    unit = {**_TRUNCATED, **_SMALL}[literal(terms[0]).lower()]
    return Term(f"CAST(date_trunc('{unit}', {_moment(terms[1])}) AS TIMESTAMPTZ)", TIMESTAMP)


@rule(DATES, "date_format")
def _date_format(terms: Terms) -> Term:
    pattern, text = literal(terms[1]), _moment(terms[0])
    shown = ""
    while pattern:
        token = next((each for each in _PATTERNS if pattern.startswith(each)), pattern[0])
        if token in _PATTERNS and pattern[len(token) : len(token) + 1] == token[0]:
            raise ValueError("a longer field")
        if token not in _PATTERNS and token not in " -/:.,":
            raise ValueError("another field")
        shown, pattern = shown + _PATTERNS.get(token, token), pattern[len(token) :]
    odd = refuse("date_format of a year beyond 9999")
    known = f"{text} IS NULL OR {in_years(text)}"
    return Term(f"CASE WHEN {known} THEN strftime({text}, {text_literal(shown)}) ELSE {odd} END", STRING)


def _epoch(unit: str, parts: int) -> Rule:
    def rule(terms: Terms) -> Term:
        text = of(terms[0], TIMESTAMP)
        return Term(f"(epoch_us(date_trunc('{unit}', CAST({text} AS TIMESTAMP))) // {parts})", BIGINT)

    return rule


DATES |= dict.fromkeys(("unix_seconds", "unix_timestamp", "to_unix_timestamp"), _epoch("second", 1_000_000))
DATES |= {"unix_millis": _epoch("milliseconds", 1000), "unix_micros": _epoch("microseconds", 1)}


@rule(DATES, "timestamp_seconds")
def _timestamp_seconds(terms: Terms) -> Term:
    seconds = cast(terms[0], BIGINT).text if terms[0].kind.is_integral else of(terms[0], BIGINT)
    return Term(f"CAST(make_timestamp({seconds} * 1000000) AS TIMESTAMPTZ)", TIMESTAMP)


@rule(DATES, "make_date")
def _make_date(terms: Terms) -> Term:
    texts = [cast(term, BIGINT).text for term in terms if term.kind.is_integral]
    year, month, day = texts
    return Term(f"make_date({year}, {month}, {day})", DATE)


DATES["current_date"] = lambda terms: Term("CAST(current_timestamp AS DATE)", DATE)
DATES["current_timestamp"] = DATES["now"] = lambda terms: Term("current_timestamp", TIMESTAMP)
