"""The functions of Spark SQL that the embedded engine knows, each with a rendering that has Spark's meaning.

A function that does not stand here is refused by its name. tests/spark/test_dialect.py compares each with Spark.
Aggregates and window functions are at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.sql.casts import (
    Rule,
    Term,
    Terms,
    as_int,
    cast,
    literal,
    of,
    only,
    rule,
    text_literal,
    to_common,
    two,
    whole_number,
)
from headwater.sql.operators import DATES, bounded, compare, item, remainder
from headwater.sql.sql_types import BIGINT, BOOLEAN, DOUBLE, INT, STRING, array, decimal, quoted, struct
from headwater.sql.text_functions import TEXTS

FUNCTIONS: dict[str, Rule] = {**DATES, **TEXTS}
"""Functions of one row."""
UNSTABLE = {"current_date", "current_timestamp", "now"}
"""Functions that may give something else the next time."""


# Conditions ---------------------------------------------------------------------------------------------------------


@rule(FUNCTIONS, "coalesce", "nvl", "ifnull")
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


@rule(FUNCTIONS, "nullif")
def _nullif(terms: Terms) -> Term:
    first, second = terms
    return Term(f"CASE WHEN {compare('=', first, second).text} THEN NULL ELSE {first.text} END", first.kind)


@rule(FUNCTIONS, "if")
def _if(terms: Terms) -> Term:
    condition, yes, no = terms
    (yes, no), kind = to_common([yes, no], "if")
    return Term(f"CASE WHEN {of(condition, BOOLEAN)} THEN {yes.text} ELSE {no.text} END", kind)


@rule(FUNCTIONS, "nvl2")
def _nvl2(terms: Terms) -> Term:
    first, yes, no = terms
    return _if([Term(f"({first.text} IS NOT NULL)", BOOLEAN), yes, no])


FUNCTIONS["isnull"] = lambda terms: Term(f"({terms[0].text} IS NULL)", BOOLEAN)
FUNCTIONS["isnotnull"] = lambda terms: Term(f"({terms[0].text} IS NOT NULL)", BOOLEAN)
FUNCTIONS["isnan"] = lambda terms: Term(f"coalesce(isnan({cast(terms[0], DOUBLE).text}), false)", BOOLEAN)


# Numbers ------------------------------------------------------------------------------------------------------------


@rule(FUNCTIONS, "abs")
def _abs(terms: Terms) -> Term:
    (term,) = terms
    if not term.kind.is_number:
        raise ValueError(term.kind)
    return Term(f"CAST(abs({term.text}) AS {term.kind.duck})", term.kind)


@rule(FUNCTIONS, "sign", "signum")
def _sign(terms: Terms) -> Term:
    text = cast(terms[0], DOUBLE).text
    return Term(f"CASE WHEN isnan({text}) THEN {text} ELSE CAST(sign({text}) AS DOUBLE) END", DOUBLE)


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


@rule(FUNCTIONS, "round")
def _round(terms: Terms) -> Term:
    term, digits = terms[0], whole_number(terms[1]) if len(terms) > 1 else 0
    if term.kind.is_integral:
        return term
    if term.kind.is_decimal:
        scale = min(term.kind.scale, digits)
        kind = decimal(min(term.kind.precision - term.kind.scale + 1 + scale, 38), scale)
        return Term(f"CAST({term.text} AS {kind.duck})", kind)
    if term.kind != DOUBLE or digits:
        raise ValueError("round of a DOUBLE to digits")
    return Term(f"round({term.text})", DOUBLE)


@rule(FUNCTIONS, "sqrt")
def _sqrt(terms: Terms) -> Term:
    text = cast(terms[0], DOUBLE).text
    return Term(f"CASE WHEN {text} < 0 THEN 'NaN'::DOUBLE ELSE sqrt({text}) END", DOUBLE)


FUNCTIONS["mod"] = lambda terms: remainder(*two(terms))


@rule(FUNCTIONS, "pmod")
def _pmod(terms: Terms) -> Term:
    left, right = two(terms)
    whole_number(right, 1, 2**31 - 1)
    found = remainder(left, right)
    if not found.kind.is_integral:
        raise ValueError(found.kind)
    more = f"CAST(add({found.text}, {right.text}) AS {found.kind.duck})"
    return Term(f"CASE WHEN {found.text} < 0 THEN {more} ELSE {found.text} END", found.kind)


# Arrays and structs -------------------------------------------------------------------------------------------------


def _list(term: Term) -> str:
    if term.kind.name != "array":
        raise ValueError(term.kind)
    return term.text


@rule(FUNCTIONS, "array")
def _array(terms: Terms) -> Term:
    if not terms:
        raise ValueError("an empty array")
    found, kind = to_common(list(terms), "array")
    return Term(f"[{', '.join(each.text for each in found)}]", array(kind))


@rule(FUNCTIONS, "size", "cardinality")
def _size(terms: Terms) -> Term:
    (held,) = terms
    return as_int(f"cardinality({held.text})" if held.kind.name == "map" else f"len({_list(held)})")


FUNCTIONS["array_size"] = lambda terms: as_int(f"len({_list(only(terms))})")
FUNCTIONS["element_at"] = lambda terms: item(terms[0], terms[1], 1)


def _map_part(name: str, place: int) -> Rule:
    def rule(terms: Terms) -> Term:
        (held,) = terms
        if held.kind.name != "map":
            raise ValueError(held.kind)
        return Term(f"{name}({held.text})", array(held.kind.parts[place][1]))

    return rule


FUNCTIONS |= {"map_keys": _map_part("map_keys", 0), "map_values": _map_part("map_values", 1)}


@rule(FUNCTIONS, "array_contains")
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
        f"{duck}({_list(only(terms))})", terms[0].kind.element
    )


@rule(FUNCTIONS, "sort_array")
def _sort_array(terms: Terms) -> Term:
    if len(terms) != 1 or terms[0].kind.element.parts:
        raise ValueError("another order")
    return Term(f"list_sort({_list(only(terms))}, 'ASC', 'NULLS FIRST')", terms[0].kind)


@rule(FUNCTIONS, "array_join")
def _array_join(terms: Terms) -> Term:
    held, by = terms
    if held.kind.element != STRING:
        raise ValueError(held.kind)
    plain = f"list_filter({_list(held)}, lambda x: x IS NOT NULL)"
    joined = f"coalesce(array_to_string({plain}, {text_literal(literal(by))}), '')"
    return Term(f"CASE WHEN {held.text} IS NULL THEN NULL ELSE {joined} END", STRING)


@rule(FUNCTIONS, "named_struct")
def _named_struct(terms: Terms) -> Term:
    names = [literal(term) for term in terms[::2]]
    return struct_of(list(zip(names, terms[1::2], strict=True)))


def struct_of(fields: Sequence[tuple[str, Term]]) -> Term:
    shown = ", ".join(f"{quoted(name)} := {term.text}" for name, term in fields)
    return Term(f"struct_pack({shown})", struct([(name, term.kind) for name, term in fields]))


AGGREGATES: dict[str, Rule] = {}
"""Functions of the rows of a group, or of a window."""
WINDOWS: dict[str, Rule] = {}
"""Functions of a window alone."""


@rule(AGGREGATES, "sum")
def _sum(terms: Terms) -> Term:
    (term,) = terms
    if term.kind.is_integral:
        return Term(f"sum({term.text})", BIGINT)
    if term.kind.is_decimal:
        return Term(f"sum({term.text})", decimal(min(term.kind.precision + 10, 38), term.kind.scale))
    return Term(f"sum({of(cast(term, DOUBLE), DOUBLE)})", DOUBLE)


@rule(AGGREGATES, "avg", "mean")
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


@rule(AGGREGATES, "any_value", "first", "first_value")
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
            f"{duck}({of(only(terms), BOOLEAN)})", BOOLEAN
        )
AGGREGATES["count_if"] = lambda terms: Term(f"count_if({of(only(terms), BOOLEAN)})", BIGINT)
AGGREGATES["count"] = lambda terms: Term(f"count({terms[0].text})", BIGINT)
AGGREGATES["array_agg"] = AGGREGATES["collect_list"] = lambda terms: Term(
    f"list({terms[0].text})", array(terms[0].kind)
)
AGGREGATES["collect_set"] = lambda terms: Term(f"list(DISTINCT {terms[0].text})", array(terms[0].kind))


# Windows ------------------------------------------------------------------------------------------------------------

for _name in ("row_number", "rank", "dense_rank"):
    WINDOWS[_name] = lambda terms, name=_name: Term(f"{name}()", INT)  # type: ignore[misc]
WINDOWS |= {name: lambda terms, name=name: Term(f"{name}()", DOUBLE) for name in ("percent_rank", "cume_dist")}  # type: ignore[misc]
WINDOWS["ntile"] = lambda terms: Term(f"ntile({whole_number(terms[0], 1)})", INT)


def _beside(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        value, by = terms[0], whole_number(terms[1]) if len(terms) > 1 else 1
        rest = f", {cast(terms[2], value.kind).text}" if len(terms) > 2 else ""
        return Term(f"{name}({value.text}, {by}{rest})", value.kind)

    return rule


WINDOWS |= {"lag": _beside("lag"), "lead": _beside("lead")}
