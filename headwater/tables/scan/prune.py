"""Partition pruning: finds the fragments that a filter can match by their partition values, before any file is read.

A filter arrives as a tree of `{"op": ..., "args": [...]}`, `{"column": name}` and `{"literal": value}`; what the JVM
could not say is `{"op": "unknown"}`. Every predicate is judged by the outcomes it may have for the rows of a
fragment (true, false, null), so that NOT, AND and OR stay exact: a fragment without the outcome true is skipped, one
with no other is counted without being read.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.imports import lance
from headwater.tables.partitions import NamedValue, digest, field_ids, first_of, parts_of, transformed

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

Json = dict[str, Any]
TRUE, FALSE, NULL = 1, 2, 4
ANY = TRUE | FALSE | NULL
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>", "<=>": "<=>"}
ATOMS = {*_FLIPPED, "IN", "IS_NULL", "IS_NOT_NULL", "STARTS_WITH"}


@dataclass(frozen=True)
class KnownColumn:
    """A column of the table: its field id and its type."""

    id: int
    kind: Any


@dataclass(frozen=True)
class PartitionFilter:
    """A filter over the columns of one version, evaluated on partition values."""

    filter: Json
    columns: dict[str, KnownColumn]

    def outcomes(self, fragment: FragmentMetadata) -> int:
        parts = parts_of(fragment)
        return _outcomes(self.filter, self.columns, parts) if parts else ANY


def partition_filter(dataset: lance.LanceDataset, filter: Json | None) -> PartitionFilter | None:
    """Return the evaluator of a filter; None without a filter."""
    if not filter:
        return None
    kinds = {field.name: field.type for field in dataset.schema}
    return PartitionFilter(filter, {name: KnownColumn(id, kinds[name]) for name, id in field_ids(dataset).items()})


def may_match(dataset: lance.LanceDataset, filter: Json | None) -> list[FragmentMetadata]:
    """Return the fragments with rows for which the filter may be true."""
    found = [fragment.metadata for fragment in dataset.get_fragments()]
    judged = partition_filter(dataset, filter)
    return [each for each in found if judged is None or judged.outcomes(each) & TRUE]


def whole_rows(dataset: lance.LanceDataset, filter: Json | None) -> tuple[int, list[int]]:
    """Return the rows of fragments that match as a whole, and the ids of fragments that match in part."""
    judged = partition_filter(dataset, filter)
    rows, left = 0, []
    for fragment in (each.metadata for each in dataset.get_fragments()):
        found = ANY if judged is None else judged.outcomes(fragment)
        if found == TRUE:
            rows += fragment.num_rows
        elif found & TRUE:
            left.append(fragment.id)
    return rows, left


def _outcomes(tree: Json, columns: dict[str, KnownColumn], parts: Sequence[NamedValue]) -> int:
    op, arguments = tree["op"], tree.get("args", [])
    if op in ("AND", "OR"):
        found = [_outcomes(each, columns, parts) for each in arguments]
        return conjunction(found) if op == "AND" else negation(conjunction([negation(each) for each in found]))
    if op == "NOT":
        return negation(_outcomes(arguments[0], columns, parts))
    if op in ("true", "false"):
        return TRUE if op == "true" else FALSE
    return _atom(op, arguments, columns, parts)


def conjunction(found: Sequence[int]) -> int:
    """Return the possible outcomes of AND over the possible outcomes of its operands."""
    total = TRUE
    for each in found:
        true = total & each & TRUE
        false = (total | each) & FALSE
        null = NULL if (total | each) & NULL and total & ~FALSE and each & ~FALSE else 0
        total = true | false | null
    return total


def negation(found: int) -> int:
    return (found & NULL) | (FALSE if found & TRUE else 0) | (TRUE if found & FALSE else 0)


def _atom(op: str, arguments: Sequence[Json], columns: dict[str, KnownColumn], parts: Sequence[NamedValue]) -> int:
    if len(arguments) == 2 and "literal" in arguments[0] and op in _FLIPPED:
        op, arguments = _FLIPPED[op], [arguments[1], arguments[0]]
    if op not in ATOMS or not arguments or arguments[0].get("column") not in columns:
        return ANY
    if any("literal" not in each or each["literal"] is None for each in arguments[1:]):
        return ANY
    column = columns[arguments[0]["column"]]
    literals = [_value(each) for each in arguments[1:]]
    total = ANY
    for part in parts:
        if part.field == column.id:
            total &= _told(op, literals, part, column.kind)
    return total


def _value(literal: Json) -> Any:
    value = literal["literal"]
    return decimal.Decimal(value) if literal.get("decimal") else value


def _told(op: str, literals: Sequence[Any], part: NamedValue, kind: Any) -> int:
    """Return the possible outcomes of a predicate on one column, by one partition value."""
    if part.value is None and part.digest is None:
        return {"IS_NULL": TRUE, "IS_NOT_NULL": FALSE, "<=>": FALSE}.get(op, NULL)
    if op in ("IS_NULL", "IS_NOT_NULL"):
        return TRUE if op == "IS_NOT_NULL" else FALSE
    if op == "IN":
        each = [_compared("=", literal, part, kind) for literal in literals]
        return negation(conjunction([negation(found) for found in each])) if each else ANY
    if op == "<>":
        return negation(_compared("=", literals[0], part, kind))
    if op == "STARTS_WITH":
        return _starts(literals[0], part)
    return _compared("=" if op == "<=>" else op, literals[0], part, kind)


def _compared(op: str, literal: Any, part: NamedValue, kind: Any) -> int:
    if part.digest is not None:
        text = isinstance(literal, str) and part.transform == "identity"
        return FALSE if text and op == "=" and digest(literal.encode()) != part.digest else TRUE | FALSE
    if part.transform == "bucket":
        return _bucketed(op, literal, part, kind)
    if isinstance(literal, str) != isinstance(part.value, str) or isinstance(literal, bool) != isinstance(
        part.value, bool
    ):
        return TRUE | FALSE
    if part.transform == "identity":
        return _ranged(op, literal, part.value, part.value)
    if isinstance(literal, str):
        return _prefixed(op, literal, part)
    dates = kind == pa.date32()
    low = first_of(part.value, part.transform, part.width, dates=dates)
    high = first_of(part.value + 1, part.transform, part.width, dates=dates) - 1
    return _ranged(op, literal, low, high)


def _bucketed(op: str, literal: Any, part: NamedValue, kind: Any) -> int:
    """Compare by bucket: equal values have equal buckets, and a bucket has no order."""
    if op != "=" or isinstance(literal, (bool, decimal.Decimal)):
        return TRUE | FALSE
    text = isinstance(literal, str)
    if text != (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return TRUE | FALSE
    bucket = transformed(pa.array([literal], pa.string() if text else pa.int64()), "bucket", part.width)[0].as_py()
    return TRUE | FALSE if bucket == part.value else FALSE


def _ranged(op: str, literal: Any, low: Any, high: Any) -> int:
    """Return the possible outcomes of comparing a value between low and high with a literal."""
    if op == "=":
        true, false = low <= literal <= high, not (low == high == literal)
    elif op in ("<", "<="):
        true, false = (low < literal, high >= literal) if op == "<" else (low <= literal, high > literal)
    else:
        true, false = (high > literal, low <= literal) if op == ">" else (high >= literal, low < literal)
    return (TRUE if true else 0) | (FALSE if false else 0)


def _prefixed(op: str, literal: str, part: NamedValue) -> int:
    """Return the possible outcomes of comparing a text, known by its first `width` characters, with a literal."""
    prefix = part.value
    if len(prefix) < part.width:
        return _ranged(op, literal, prefix, prefix)
    cut = literal[: part.width]
    if op == "=":
        true, false = cut == prefix, True
    elif op in ("<", "<="):
        true, false = (prefix < literal if op == "<" else prefix <= literal), cut <= prefix
    else:
        true, false = cut <= prefix, (prefix <= literal if op == ">" else prefix < literal)
    return (TRUE if true else 0) | (FALSE if false else 0)


def _starts(literal: Any, part: NamedValue) -> int:
    if part.digest is not None or not isinstance(part.value, str) or not isinstance(literal, str):
        return TRUE | FALSE
    if part.transform == "identity" or len(part.value) < part.width:
        return TRUE if part.value.startswith(literal) else FALSE
    if not part.value.startswith(literal[: part.width]):
        return FALSE
    return TRUE if len(literal) <= part.width else TRUE | FALSE
