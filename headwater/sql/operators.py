"""Operators of Spark SQL under ANSI, as expressions of DuckDB: arithmetic, comparisons, LIKE, indexes, intervals.

Also its functions over dates and timestamps. Every time zone is UTC.
"""

from __future__ import annotations

import re

from headwater.sql.casts import (
    Rule,
    Term,
    Terms,
    as_int,
    cast,
    fail,
    in_years,
    int_text,
    literal,
    literal_decimal,
    of,
    only,
    refuse,
    rule,
    text_literal,
    to_common,
)
from headwater.sql.spark_parser import UnsupportedSqlError
from headwater.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    SqlDatatype,
    decimal,
)

DIVIDE_BY_ZERO = "[DIVIDE_BY_ZERO] Division by zero."
UNITS = {"DAY": 1, "WEEK": 7}
LARGE_UNITS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_LITERAL = re.compile(r"CAST\((?:-?\d+|'(?:[^']|'')*'|NULL) AS [A-Z]+(?:\(\d+, \d+\))?\)|'(?:[^']|'')*'")
_FAILING = re.compile(r"error\(|CAST\(|make_|abs\(|add\(|subtract\(|multiply\(|[-+*] ")
_CALLS = {"+": "add", "-": "subtract", "*": "multiply"}
SMALL_UNITS = ("HOUR", "MINUTE", "SECOND")


def arithmetic(symbol: str, left: Term, right: Term) -> Term:
    """Return a + b, a - b or a * b in the type that Spark gives it; DuckDB raises an error on overflow too."""
    has_decimal = left.kind.is_decimal or right.kind.is_decimal
    if has_decimal and not (left.kind.is_fractional or right.kind.is_fractional):
        return _decimal_arithmetic(symbol, left, right)
    if symbol == "-" and left.kind == right.kind == DATE:
        raise UnsupportedSqlError("the difference of two dates as an interval (use datediff)")
    (left, right), kind = to_common([left, right], f"{symbol!r}")
    if not kind.is_number:
        raise UnsupportedSqlError(f"{symbol!r} of {kind}")
    return _whole(symbol, left, right) if kind.is_integral else Term(f"({left.text} {symbol} {right.text})", kind)


def _whole(symbol: str, left: Term, right: Term) -> Term:
    """Return arithmetic of integers as a call: DuckDB makes `i > 4`, which cannot overflow, of `i + 1 > 5`."""
    return Term(f"{_CALLS[symbol]}({left.text}, {right.text})", left.kind)


def _decimal_arithmetic(symbol: str, left: Term, right: Term) -> Term:
    if not (left.kind.is_number and right.kind.is_number):
        raise UnsupportedSqlError(f"{symbol!r} of {left.kind} and {right.kind}")
    a, b = literal_decimal(left), literal_decimal(right)
    if symbol == "*":
        kind = decimal(a.precision + b.precision + 1, a.scale + b.scale)
        _fits(kind, symbol)
        wide = decimal(kind.precision, a.scale)  # DuckDB multiplies in the width of its operands
        text = f"(CAST({left.text} AS {wide.duck}) * {cast(right, b).text})"
    else:
        scale = max(a.scale, b.scale)
        kind = decimal(max(a.precision - a.scale, b.precision - b.scale) + scale + 1, scale)
        _fits(kind, symbol)
        sides = (f"CAST({each.text} AS {kind.duck})" for each in (left, right))
        text = f"({f' {symbol} '.join(sides)})"
    return Term(f"CAST({text} AS {kind.duck})", kind)


def _fits(kind: SqlDatatype, symbol: str) -> None:
    if kind.precision > MAX_PRECISION:
        raise UnsupportedSqlError(f"{symbol!r} of decimals with more than {MAX_PRECISION} digits (cast them first)")


def divide(left: Term, right: Term) -> Term:
    """Return a / b, which is DOUBLE for numbers that are no decimals."""
    for term in (left, right):
        if not term.kind.is_number:
            raise UnsupportedSqlError(f"'/' of {left.kind} and {right.kind}")
    if DOUBLE not in (left.kind, right.kind) and (left.kind.is_decimal or right.kind.is_decimal):
        raise UnsupportedSqlError("'/' of decimals (cast them to DOUBLE)")
    return _guarded("/", cast(left, DOUBLE), cast(right, DOUBLE), DOUBLE)


def remainder(left: Term, right: Term) -> Term:
    (left, right), kind = to_common([left, right], "'%'")
    if not kind.is_number or kind.is_decimal:
        raise UnsupportedSqlError(f"'%' of {kind}")
    if kind.is_integral:  # the smallest number % -1 is 0 in Spark
        minus = Term(f"CASE WHEN {right.text} = -1 THEN CAST(1 AS {kind.duck}) ELSE {right.text} END", kind)
        return _guarded("%", left, minus, kind)
    return _guarded("%", left, right, kind)


def whole_division(left: Term, right: Term) -> Term:
    if not (left.kind.is_integral and right.kind.is_integral):
        raise UnsupportedSqlError(f"'div' of {left.kind} and {right.kind}")
    left, right = cast(left, BIGINT), cast(right, BIGINT)
    lowest = "CAST(-9223372036854775808 AS BIGINT)"
    over = f"CASE WHEN {right.text} = -1 AND {left.text} = {lowest} THEN {fail('[ARITHMETIC_OVERFLOW]')} "
    return Term(f"{over}ELSE {_guarded('//', left, right, BIGINT).text} END", BIGINT)


def _guarded(symbol: str, left: Term, right: Term, kind: SqlDatatype) -> Term:
    """Return a division that fails for zero; NULL divided by zero is NULL."""
    wrong = f"CASE WHEN {right.text} = 0 AND {left.text} IS NOT NULL THEN {fail(DIVIDE_BY_ZERO)} "
    text = f"({wrong}ELSE ({left.text} {symbol} nullif({right.text}, 0)) END)"
    return Term(f"CAST({text} AS {kind.duck})", kind)


def negative(term: Term) -> Term:
    if isinstance(term.value, int) and term.kind.is_integral:
        return number(-term.value)
    if term.kind.is_integral:
        return _whole("-", Term(f"CAST(0 AS {term.kind.duck})", term.kind), term)
    if term.kind.is_fractional or term.kind.is_decimal:
        return Term(f"(-{term.text})", term.kind)
    raise UnsupportedSqlError(f"'-' of {term.kind}")


def number(value: int) -> Term:
    """Return an integer literal: INT, or the wider type that holds it."""
    if -(2**31) <= value < 2**31:
        return Term(f"CAST({value} AS INTEGER)", INT, value)
    if -(2**63) <= value < 2**63:
        return Term(f"CAST({value} AS BIGINT)", BIGINT, value)
    raise UnsupportedSqlError("an integer of more than 64 bits")


def compare(symbol: str, left: Term, right: Term) -> Term:
    (left, right), kind = to_common([left, right], f"{symbol!r}")
    if kind.parts:
        raise UnsupportedSqlError(f"{symbol!r} of {kind}")
    return Term(f"({left.text} {symbol} {right.text})", BOOLEAN)


def bitwise(symbol: str, left: Term, right: Term) -> Term:
    (left, right), kind = to_common([left, right], f"{symbol!r}")
    if not kind.is_integral:
        raise UnsupportedSqlError(f"{symbol!r} of {kind}")
    shown = f"xor({left.text}, {right.text})" if symbol == "^" else f"({left.text} {symbol} {right.text})"
    return Term(shown, kind)


def like(left: Term, pattern: Term, escape: str = "\\") -> Term:
    """Return LIKE with a literal pattern, in which a backslash escapes what follows."""
    if left.kind != STRING or not isinstance(pattern.value, str):
        raise UnsupportedSqlError("LIKE with a pattern that is no literal text")
    rest = pattern.value.replace(escape * 2, "")
    for place, char in enumerate(rest):
        if char == escape and rest[place + 1 : place + 2] not in ("_", "%"):
            raise UnsupportedSqlError(f"LIKE with {escape!r} before a plain character")
    tail = f" ESCAPE {text_literal(escape)}" if escape in pattern.value else ""
    return Term(f"({left.text} LIKE {pattern.text}{tail})", BOOLEAN)


def logical(symbol: str, terms: list[Term]) -> Term:
    """Return AND, OR or NOT. What may fail is only computed where the terms before it leave the answer open."""
    for term in terms:
        if term.kind != BOOLEAN and term.text != "NULL":
            raise UnsupportedSqlError(f"{symbol} of {term.kind}")
    texts = [term.text for term in terms]
    first = next((place for place, text in enumerate(texts) if place and _may_fail(text)), len(texts))
    plain = f" {symbol} ".join(texts[:first])
    if first == len(texts):
        return Term(f"({plain})", BOOLEAN)
    settled = "false" if symbol == "AND" else "true"
    rest = texts[-1]
    for text in reversed(texts[first:-1]):
        rest = f"CASE WHEN {text} IS NOT DISTINCT FROM {settled} THEN {settled} ELSE ({text} {symbol} {rest}) END"
    guard = f"CASE WHEN ({plain}) IS NOT DISTINCT FROM {settled} THEN {settled} ELSE {rest} END"
    return Term(f"({plain} {symbol} {guard})", BOOLEAN)


def _may_fail(text: str) -> bool:
    """Return True for an expression that a value can make an error of."""
    return _FAILING.search(_LITERAL.sub("", text)) is not None


def item(array: Term, index: Term, first: int) -> Term:
    """Return the element of an array, or the value of a key of a map, NULL for a key that is not there.

    `first`: the index of the first element of an array, 0 for [] and 1 for element_at.
    """
    if array.kind.name == "map":
        (_, key), (_, value) = array.kind.parts
        return Term(f"map_extract({array.text}, {cast(index, key).text})[1]", value)
    if array.kind.name != "array" or not index.kind.is_integral:
        raise UnsupportedSqlError(f"an index {index.kind} of {array.kind}")
    size, at = f"len({array.text})", index.text
    wrong = f"{at} < 0 OR {at} >= {size}"
    place = f"{at} + 1"
    if first == 1:
        wrong, place = f"{at} = 0 OR abs({at}) > {size}", at
    bad = fail("[INVALID_ARRAY_INDEX] The index is out of bounds.")
    text = f"CASE WHEN {array.text} IS NULL OR {at} IS NULL THEN NULL WHEN {wrong} THEN {bad} "
    return Term(f"({text}ELSE ({array.text})[{place}] END)", array.kind.element)


def add_interval(term: Term, amount: int, unit: str) -> Term:
    """Return a date or timestamp that an interval of one unit is added to."""
    if term.kind not in (DATE, TIMESTAMP):
        raise UnsupportedSqlError(f"an interval added to {term.kind}")
    if unit in UNITS:
        step = f"INTERVAL ({amount * UNITS[unit]}) DAY"
    elif unit in LARGE_UNITS:
        step = f"INTERVAL ({amount * LARGE_UNITS[unit]}) MONTH"
    elif unit in SMALL_UNITS and term.kind != DATE:
        step = f"INTERVAL ({amount}) {unit}"
    else:
        raise UnsupportedSqlError(f"INTERVAL ... {unit} added to {term.kind}")
    return Term(f"CAST(CAST({term.text} AS TIMESTAMP) + {step} AS {term.kind.duck})", term.kind)


def bounded(term: Term, text: str, kind: SqlDatatype) -> Term:
    """Return a whole number of a DOUBLE; a value beyond 64 bits, which Spark cuts off, is refused."""
    edge = f"abs({term.text}) < 9e18"
    return Term(
        f"CASE WHEN {term.text} IS NULL OR {edge} THEN CAST({text} AS {kind.duck}) "
        f"ELSE {refuse('floor or ceil of a number beyond 64 bits')} END",
        kind,
    )


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
