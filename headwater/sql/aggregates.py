"""Aggregates and window functions of Spark SQL that the embedded engine knows."""

from __future__ import annotations

from headwater.sql.casts import Rule, Term, Terms, cast, of, only, rule, whole
from headwater.sql.sql_types import BIGINT, BOOLEAN, DOUBLE, INT, array, decimal

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
WINDOWS["ntile"] = lambda terms: Term(f"ntile({whole(terms[0], 1)})", INT)


def _beside(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        value, by = terms[0], whole(terms[1]) if len(terms) > 1 else 1
        rest = f", {cast(terms[2], value.kind).text}" if len(terms) > 2 else ""
        return Term(f"{name}({value.text}, {by}{rest})", value.kind)

    return rule


WINDOWS |= {"lag": _beside("lag"), "lead": _beside("lead")}
