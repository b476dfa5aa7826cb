"""Filters of Spark's Python data source API in Lance's SQL. Pure; None stands for "cannot be said"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headwater.tables.expressions import literal

_COMPARE = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "EqualNullSafe": "IS NOT DISTINCT FROM",
}
_TEXT = {"StringStartsWith": "starts_with", "StringEndsWith": "ends_with", "StringContains": "contains"}


def filter_sql(filter: Any, filterable: Mapping[str, str]) -> str | None:
    """One filter, or None when Spark has to apply it."""
    kind = type(filter).__name__
    if kind == "Not":
        inner = filter_sql(filter.child, filterable)
        return f"(NOT {inner})" if inner is not None else None
    column = _column(filter.attribute, filterable)
    if column is None:
        return None
    if kind == "IsNull" or kind == "IsNotNull":
        return f"({column} IS {'NOT ' if kind == 'IsNotNull' else ''}NULL)"
    if kind == "In":
        items = [_literal(value) for value in filter.value]
        return None if not items or None in items else f"({column} IN ({', '.join(map(str, items))}))"
    value = _literal(filter.value)
    if value is None:
        return None
    if kind in _TEXT:
        return f"{_TEXT[kind]}({column}, {value})"
    return f"({column} {_COMPARE[kind]} {value})" if kind in _COMPARE else None


def _column(path: tuple[str, ...], filterable: Mapping[str, str]) -> str | None:
    return "`" + "`.`".join(path) + "`" if ".".join(path) in filterable else None


def _literal(value: Any) -> str | None:
    """A value as Spark hands it over. Zero and NaN floats compare otherwise in Arrow than in Spark."""
    if isinstance(value, float) and (value == 0 or not math.isfinite(value)):
        return None
    return literal(value)
