"""The functions of Spark SQL that the embedded engine knows, each with a rendering that has Spark's meaning.

A function that does not stand here is refused by its name. tests/spark/test_dialect.py compares each with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.sql.casts import Term, as_int, cast, in_years, refuse, text_literal, to_common
from headwater.sql.kinds import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    Kind,
    array,
    decimal,
    quoted,
    struct,
)
from headwater.sql.operators import bounded, compare, item, remainder
from headwater.sql.parsing import UnsupportedSqlError

Terms = Sequence[Term]
Rule = Callable[[Terms], Term]
FUNCTIONS: dict[str, Rule] = {}
"""Functions of one row."""
AGGREGATES: dict[str, Rule] = {}
"""Functions of the rows of a group, or of a window."""
WINDOWS: dict[str, Rule] = {}
"""Functions of a window alone."""
UNSTABLE = {"current_date", "current_timestamp", "now"}
"""Functions that may give something else the next time."""
# Characters whose upper and lower case are one character each, the same to Java and to DuckDB.
_CASED = r"^[\x00-\x7F\x{A0}-\x{B4}\x{B6}-\x{DE}\x{E0}-\x{FE}\x{400}-\x{45F}\x{3000}-\x{9FFF}\x{AC00}-\x{D7A3}]*$"
_PATTERNS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_TRUNCATED = {"year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month"}
_TRUNCATED |= {"mm": "month", "week": "week"}
_SMALL = {"day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second"}


def _rule(table: dict[str, Rule], *names: str) -> Callable[[Rule], Rule]:
    def keep(rule: Rule) -> Rule:
        table.update(dict.fromkeys(names, rule))
        return rule

    return keep


def call(table: dict[str, Rule], name: str, terms: Terms) -> Term:
    """Return a call of a known function. UnsupportedSqlError: it is not known for these arguments."""
    try:
        return table[name](terms)
    except (ValueError, IndexError, KeyError):
        kinds = ", ".join(str(term.kind) for term in terms)
        raise UnsupportedSqlError(f"{name}({kinds})") from None


def _of(term: Term, *kinds: Kind) -> str:
    """Return the text of an argument of one of these types; a literal text is read as a moment."""
    if term.kind in kinds:
        return term.text
    if term.kind.name == "void" or (term.kind.is_moment and kinds[0].is_moment):
        return cast(term, kinds[0]).text
    raise ValueError(term.kind)


def _int(term: Term) -> str:
    if not term.kind.is_integral or term.kind == BIGINT:
        raise ValueError(term.kind)
    return cast(term, INT).text


def _literal(term: Term) -> str:
    if not isinstance(term.value, str):
        raise ValueError("no literal text")
    return term.value


def _whole(term: Term, lowest: int = 0, highest: int = 10_000) -> int:
    if not isinstance(term.value, int) or not lowest <= term.value <= highest:
        raise ValueError("no literal number")
    return term.value


# Conditions ---------------------------------------------------------------------------------------------------------


@_rule(FUNCTIONS, "coalesce", "nvl", "ifnull")
def _coalesce(terms: Terms) -> Term:
    found, kind = to_common(list(terms), "coalesce")
    return Term(f"coalesce({', '.join(each.text for each in found)})", kind)


def _extremes(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        found, kind = to_common(list(terms), name)
        if kind.parts or len(found) < 2:
            raise ValueError(kind)
        return Term(f"{name}({', '.join(each.text for each in found)})", kind)

    return rule


FUNCTIONS["greatest"], FUNCTIONS["least"] = _extremes("greatest"), _extremes("least")


@_rule(FUNCTIONS, "nullif")
def _nullif(terms: Terms) -> Term:
    first, second = terms
    return Term(f"CASE WHEN {compare('=', first, second).text} THEN NULL ELSE {first.text} END", first.kind)


@_rule(FUNCTIONS, "if")
def _if(terms: Terms) -> Term:
    condition, yes, no = terms
    (yes, no), kind = to_common([yes, no], "if")
    return Term(f"CASE WHEN {_of(condition, BOOLEAN)} THEN {yes.text} ELSE {no.text} END", kind)


@_rule(FUNCTIONS, "nvl2")
def _nvl2(terms: Terms) -> Term:
    first, yes, no = terms
    return _if([Term(f"({first.text} IS NOT NULL)", BOOLEAN), yes, no])


FUNCTIONS["isnull"] = lambda terms: Term(f"({terms[0].text} IS NULL)", BOOLEAN)
FUNCTIONS["isnotnull"] = lambda terms: Term(f"({terms[0].text} IS NOT NULL)", BOOLEAN)
FUNCTIONS["isnan"] = lambda terms: Term(f"coalesce(isnan({cast(terms[0], DOUBLE).text}), false)", BOOLEAN)


# Numbers ------------------------------------------------------------------------------------------------------------


@_rule(FUNCTIONS, "abs")
def _abs(terms: Terms) -> Term:
    (term,) = terms
    if not term.kind.is_number:
        raise ValueError(term.kind)
    return Term(f"CAST(abs({term.text}) AS {term.kind.duck})", term.kind)


@_rule(FUNCTIONS, "sign", "signum")
def _sign(terms: Terms) -> Term:
    (term,) = terms
    return Term(f"CAST(sign({cast(term, DOUBLE).text}) AS DOUBLE)", DOUBLE)


def _rounded(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        (term,) = terms
        if term.kind.is_integral:
            return cast(term, BIGINT)
        if term.kind.is_decimal:
            kind = decimal(term.kind.precision - term.kind.scale + 1, 0)
            return Term(f"CAST({name}({term.text}) AS {kind.duck})", kind)
        return bounded(term, f"{name}({cast(term, DOUBLE).text})", BIGINT)

    return rule


FUNCTIONS |= {"floor": _rounded("floor"), "ceil": _rounded("ceil"), "ceiling": _rounded("ceil")}


@_rule(FUNCTIONS, "round")
def _round(terms: Terms) -> Term:
    term, digits = terms[0], _whole(terms[1]) if len(terms) > 1 else 0
    if term.kind.is_integral:
        return term
    if term.kind.is_decimal:
        scale = min(term.kind.scale, digits)
        kind = decimal(min(term.kind.precision - term.kind.scale + 1 + scale, 38), scale)
        return Term(f"CAST({term.text} AS {kind.duck})", kind)
    if term.kind != DOUBLE or digits:
        raise ValueError("round of a DOUBLE to digits")
    return Term(f"round({term.text})", DOUBLE)


@_rule(FUNCTIONS, "sqrt")
def _sqrt(terms: Terms) -> Term:
    text = cast(terms[0], DOUBLE).text
    return Term(f"CASE WHEN {text} < 0 THEN 'NaN'::DOUBLE ELSE sqrt({text}) END", DOUBLE)


FUNCTIONS["mod"] = lambda terms: remainder(*terms)


# Texts --------------------------------------------------------------------------------------------------------------


def _cased(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        text = _of(terms[0], STRING)
        odd = refuse(f"{name} of letters that Java changes by rules of its own")
        known = f"{text} IS NULL OR regexp_full_match({text}, {text_literal(_CASED)})"
        return Term(f"CASE WHEN {known} THEN {name}({text}) ELSE {odd} END", STRING)

    return rule


FUNCTIONS |= dict.fromkeys(("upper", "ucase"), _cased("upper")) | dict.fromkeys(("lower", "lcase"), _cased("lower"))


@_rule(FUNCTIONS, "length", "char_length", "character_length", "len")
def _length(terms: Terms) -> Term:
    (term,) = terms
    return as_int(f"length({_of(term, STRING)})" if term.kind != BINARY else f"octet_length({term.text})")


def _trimmed(name: str) -> Rule:
    return lambda terms: Term(f"{name}({_of(*terms, STRING)}, ' ')", STRING)


FUNCTIONS |= {name: _trimmed(name) for name in ("trim", "ltrim", "rtrim")}


@_rule(FUNCTIONS, "substring", "substr")
def _substring(terms: Terms) -> Term:
    text, start = _of(terms[0], STRING), _whole(terms[1], -10_000)
    size = f", {_whole(terms[2], 0, 2**31 - 1)}" if len(terms) > 2 else ""
    return Term(f"substring({text}, {start or 1}{size})", STRING)


FUNCTIONS["left"] = lambda terms: Term(f"left({_of(terms[0], STRING)}, {_whole(terms[1])})", STRING)
FUNCTIONS["right"] = lambda terms: Term(f"right({_of(terms[0], STRING)}, {_whole(terms[1])})", STRING)


@_rule(FUNCTIONS, "concat")
def _concat(terms: Terms) -> Term:
    if not terms or any(term.kind.parts or term.kind == BINARY for term in terms):
        raise ValueError("no texts")
    return Term("(" + " || ".join(cast(term, STRING).text for term in terms) + ")", STRING)


@_rule(FUNCTIONS, "concat_ws")
def _concat_ws(terms: Terms) -> Term:
    _literal(terms[0])
    return Term(f"concat_ws({', '.join(_of(term, STRING) for term in terms)})", STRING)


@_rule(FUNCTIONS, "replace")
def _replace(terms: Terms) -> Term:
    text, old, new = terms[0], terms[1], terms[2] if len(terms) > 2 else Term("''", STRING, "")
    if not _literal(old):
        raise ValueError("nothing to replace")
    return Term(f"replace({_of(text, STRING)}, {old.text}, {_of(new, STRING)})", STRING)


def _found(text: Term, part: Term) -> Term:
    if not _literal(part):
        raise ValueError("nothing to find")
    return as_int(f"strpos({_of(text, STRING)}, {part.text})")


FUNCTIONS["instr"] = lambda terms: _found(*terms)
FUNCTIONS["locate"] = lambda terms: _found(terms[1], terms[0]) if len(terms) == 2 else _found(*terms)
FUNCTIONS["position"] = FUNCTIONS["locate"]
for _name, _duck in (("startswith", "starts_with"), ("endswith", "suffix"), ("contains", "contains")):
    FUNCTIONS[_name] = lambda terms, duck=_duck: Term(  # type: ignore[misc]
        f"{duck}({_of(terms[0], STRING)}, {_of(terms[1], STRING)})", BOOLEAN
    )


def _padded(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        size, pad = _whole(terms[1], 0, 1000), _literal(terms[2]) if len(terms) > 2 else " "
        if not pad:
            raise ValueError("nothing to pad with")
        return Term(f"{name}({_of(terms[0], STRING)}, {size}, {text_literal(pad)})", STRING)

    return rule


FUNCTIONS |= {name: _padded(name) for name in ("lpad", "rpad")}


@_rule(FUNCTIONS, "split_part")
def _split_part(terms: Terms) -> Term:
    text, by, place = terms
    if not _literal(by):
        raise ValueError("nothing to split by")
    return Term(f"split_part({_of(text, STRING)}, {by.text}, {_whole(place, 1)})", STRING)


FUNCTIONS["md5"] = lambda terms: Term(f"md5({_of(*terms, STRING)})", STRING)


@_rule(FUNCTIONS, "sha2")
def _sha2(terms: Terms) -> Term:
    if _whole(terms[1]) not in (0, 256):
        raise ValueError("another size")
    return Term(f"sha256({_of(terms[0], STRING)})", STRING)


# Dates and times ----------------------------------------------------------------------------------------------------


def _moment(term: Term) -> str:
    """Return a date or timestamp as DuckDB's TIMESTAMP: every time zone is UTC."""
    if term.kind == STRING and isinstance(term.value, str):
        return cast(cast(term, TIMESTAMP), Kind("timestamp_ntz")).text
    if not term.kind.is_moment and term.kind.name != "void":
        raise ValueError(term.kind)
    return cast(term, Kind("timestamp_ntz")).text


def _day(term: Term) -> str:
    if term.kind == STRING and isinstance(term.value, str):
        return cast(term, DATE).text
    return _of(term, DATE)


def _part(name: str, more: str = "") -> Rule:
    return lambda terms: as_int(f"{name}({_moment(*terms)}){more}")


PARTS = {
    "year": _part("year"), "quarter": _part("quarter"), "month": _part("month"), "day": _part("day"),
    "dayofmonth": _part("day"), "dayofyear": _part("dayofyear"), "dayofweek": _part("dayofweek", " + 1"),
    "weekday": _part("isodow", " - 1"), "weekofyear": _part("weekofyear"), "hour": _part("hour"),
    "minute": _part("minute"), "second": _part("second"),
}  # fmt: skip
FUNCTIONS |= PARTS
FUNCTIONS["date_add"] = lambda terms: Term(f"({_day(terms[0])} + {_int(terms[1])})", DATE)
FUNCTIONS["date_sub"] = lambda terms: Term(f"({_day(terms[0])} - {_int(terms[1])})", DATE)
FUNCTIONS["dateadd"] = FUNCTIONS["date_add"]


@_rule(FUNCTIONS, "datediff", "date_diff")
def _datediff(terms: Terms) -> Term:
    end, start = terms
    return as_int(f"({_day(end)} - {_day(start)})")


@_rule(FUNCTIONS, "add_months")
def _add_months(terms: Terms) -> Term:
    months = _int(terms[1])
    return Term(f"CAST({_day(terms[0])} + to_months({months}) AS DATE)", DATE)


FUNCTIONS["last_day"] = lambda terms: Term(f"last_day({_day(*terms)})", DATE)
FUNCTIONS["to_date"] = lambda terms: cast(*terms, DATE)
FUNCTIONS["date"] = FUNCTIONS["to_date"]
FUNCTIONS["to_timestamp"] = lambda terms: cast(*terms, TIMESTAMP)


@_rule(FUNCTIONS, "trunc")
def _trunc(terms: Terms) -> Term:
    unit = _TRUNCATED[_literal(terms[1]).lower()]
    return Term(f"CAST(date_trunc('{unit}', {_day(terms[0])}) AS DATE)", DATE)


@_rule(FUNCTIONS, "date_trunc")
def _date_trunc(terms: Terms) -> Term:
    unit = {**_TRUNCATED, **_SMALL}[_literal(terms[0]).lower()]
    return Term(f"CAST(date_trunc('{unit}', {_moment(terms[1])}) AS TIMESTAMPTZ)", TIMESTAMP)


@_rule(FUNCTIONS, "date_format")
def _date_format(terms: Terms) -> Term:
    pattern, text = _literal(terms[1]), _moment(terms[0])
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
        text = _of(terms[0], TIMESTAMP)
        return Term(f"(epoch_us(date_trunc('{unit}', CAST({text} AS TIMESTAMP))) // {parts})", BIGINT)

    return rule


FUNCTIONS |= dict.fromkeys(("unix_seconds", "unix_timestamp", "to_unix_timestamp"), _epoch("second", 1_000_000))
FUNCTIONS |= {"unix_millis": _epoch("milliseconds", 1000), "unix_micros": _epoch("microseconds", 1)}


@_rule(FUNCTIONS, "timestamp_seconds")
def _timestamp_seconds(terms: Terms) -> Term:
    seconds = cast(terms[0], BIGINT).text if terms[0].kind.is_integral else _of(terms[0], BIGINT)
    return Term(f"CAST(make_timestamp({seconds} * 1000000) AS TIMESTAMPTZ)", TIMESTAMP)


@_rule(FUNCTIONS, "make_date")
def _make_date(terms: Terms) -> Term:
    texts = [cast(term, BIGINT).text for term in terms if term.kind.is_integral]
    year, month, day = texts
    return Term(f"make_date({year}, {month}, {day})", DATE)


FUNCTIONS["current_date"] = lambda terms: Term("CAST(current_timestamp AS DATE)", DATE)
FUNCTIONS["current_timestamp"] = FUNCTIONS["now"] = lambda terms: Term("current_timestamp", TIMESTAMP)


# Arrays and structs -------------------------------------------------------------------------------------------------


def _list(term: Term) -> str:
    if term.kind.name != "array":
        raise ValueError(term.kind)
    return term.text


@_rule(FUNCTIONS, "array")
def _array(terms: Terms) -> Term:
    if not terms:
        raise ValueError("an empty array")
    found, kind = to_common(list(terms), "array")
    return Term(f"[{', '.join(each.text for each in found)}]", array(kind))


FUNCTIONS |= dict.fromkeys(("size", "cardinality", "array_size"), lambda terms: as_int(f"len({_list(*terms)})"))
FUNCTIONS["element_at"] = lambda terms: item(terms[0], terms[1], 1)


@_rule(FUNCTIONS, "array_contains")
def _array_contains(terms: Terms) -> Term:
    held, value = terms
    (value,), kind = to_common([value], "array_contains")
    if kind != held.kind.element:
        value = cast(value, held.kind.element)
    found = f"list_contains({_list(held)}, {value.text})"
    has_null = f"len({held.text}) <> len(list_filter({held.text}, lambda x: x IS NOT NULL))"
    text = f"CASE WHEN {held.text} IS NULL OR {value.text} IS NULL THEN NULL WHEN {found} THEN true "
    return Term(f"({text}WHEN {has_null} THEN NULL ELSE false END)", BOOLEAN)


for _name, _duck in (("array_max", "list_max"), ("array_min", "list_min")):
    FUNCTIONS[_name] = lambda terms, duck=_duck: Term(  # type: ignore[misc]
        f"{duck}({_list(*terms)})", terms[0].kind.element
    )


@_rule(FUNCTIONS, "sort_array")
def _sort_array(terms: Terms) -> Term:
    if len(terms) != 1 or terms[0].kind.element.parts:
        raise ValueError("another order")
    return Term(f"list_sort({_list(*terms)}, 'ASC', 'NULLS FIRST')", terms[0].kind)


@_rule(FUNCTIONS, "array_join")
def _array_join(terms: Terms) -> Term:
    held, by = terms
    if held.kind.element != STRING:
        raise ValueError(held.kind)
    plain = f"list_filter({_list(held)}, lambda x: x IS NOT NULL)"
    joined = f"coalesce(array_to_string({plain}, {text_literal(_literal(by))}), '')"
    return Term(f"CASE WHEN {held.text} IS NULL THEN NULL ELSE {joined} END", STRING)


@_rule(FUNCTIONS, "named_struct")
def _named_struct(terms: Terms) -> Term:
    names = [_literal(term) for term in terms[::2]]
    return struct_of(list(zip(names, terms[1::2], strict=True)))


def struct_of(fields: Sequence[tuple[str, Term]]) -> Term:
    shown = ", ".join(f"{quoted(name)} := {term.text}" for name, term in fields)
    return Term(f"struct_pack({shown})", struct([(name, term.kind) for name, term in fields]))


# Aggregates ---------------------------------------------------------------------------------------------------------


@_rule(AGGREGATES, "sum")
def _sum(terms: Terms) -> Term:
    (term,) = terms
    if term.kind.is_integral:
        return Term(f"sum({term.text})", BIGINT)
    if term.kind.is_decimal:
        return Term(f"sum({term.text})", decimal(min(term.kind.precision + 10, 38), term.kind.scale))
    return Term(f"sum({_of(cast(term, DOUBLE), DOUBLE)})", DOUBLE)


@_rule(AGGREGATES, "avg", "mean")
def _avg(terms: Terms) -> Term:
    (term,) = terms
    if not (term.kind.is_integral or term.kind.is_fractional):
        raise ValueError("avg of decimals")
    return Term(f"avg({cast(term, DOUBLE).text})", DOUBLE)


def _extreme_of(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        (term,) = terms
        if term.kind.parts or term.kind.is_opaque:
            raise ValueError(term.kind)
        return Term(f"{name}({term.text})", term.kind)

    return rule


AGGREGATES |= {"min": _extreme_of("min"), "max": _extreme_of("max")}


@_rule(AGGREGATES, "any_value", "first", "first_value")
def _first(terms: Terms) -> Term:
    (term,) = terms
    return Term(f"first({term.text})", term.kind)


def _by(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        value, order = terms
        if order.kind.parts:
            raise ValueError(order.kind)
        return Term(f"{name}({value.text}, {order.text})", value.kind)

    return rule


AGGREGATES |= {"max_by": _by("arg_max_null"), "min_by": _by("arg_min_null")}
for _names, _duck in ((("bool_and", "every"), "bool_and"), (("bool_or", "some", "any"), "bool_or")):
    for _name in _names:
        AGGREGATES[_name] = lambda terms, duck=_duck: Term(  # type: ignore[misc]
            f"{duck}({_of(*terms, BOOLEAN)})", BOOLEAN
        )
AGGREGATES["count_if"] = lambda terms: Term(f"count_if({_of(*terms, BOOLEAN)})", BIGINT)
AGGREGATES["count"] = lambda terms: Term(f"count({terms[0].text})", BIGINT)
AGGREGATES["collect_list"] = lambda terms: Term(f"list({terms[0].text})", array(terms[0].kind))
AGGREGATES["collect_set"] = lambda terms: Term(f"list(DISTINCT {terms[0].text})", array(terms[0].kind))


# Windows ------------------------------------------------------------------------------------------------------------

for _name in ("row_number", "rank", "dense_rank"):
    WINDOWS[_name] = lambda terms, name=_name: Term(f"{name}()", INT)  # type: ignore[misc]
WINDOWS |= {name: lambda terms, name=name: Term(f"{name}()", DOUBLE) for name in ("percent_rank", "cume_dist")}  # type: ignore[misc]
WINDOWS["ntile"] = lambda terms: Term(f"ntile({_whole(terms[0], 1)})", INT)


def _beside(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        value, by = terms[0], _whole(terms[1]) if len(terms) > 1 else 1
        rest = f", {cast(terms[2], value.kind).text}" if len(terms) > 2 else ""
        return Term(f"{name}({value.text}, {by}{rest})", value.kind)

    return rule


WINDOWS |= {"lag": _beside("lag"), "lead": _beside("lead")}
