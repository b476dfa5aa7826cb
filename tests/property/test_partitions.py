"""Names of data files and pruning: whatever the values and the filter are, no row is ever lost."""

from __future__ import annotations

import datetime as dt
import decimal
import string
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lance.fragment import DataFile, FragmentMetadata

from headwater.errors import InvalidInputError
from headwater.tables.partitions import (
    NamedValue,
    PartitionField,
    file_name,
    format_part,
    parse_name,
    parted,
    partitioned,
    partitioning,
    parts_of,
)
from headwater.tables.scan.prune import FALSE, NULL, TRUE, KnownColumn, PartitionFilter

SAFE = set(string.ascii_letters + string.digits + "-_.")
LETTERS = "abcXYZ019 /\\.%_-=:'\"*?\x00\n\u00e9\u6f22\U0001f30a"
OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
TEXTS = st.one_of(
    st.text(LETTERS, max_size=60), st.sampled_from(["", "/", "..", "../../etc", "%2F", "a.b-c_d", "Ünï", "x" * 500])
)
TIMES = st.integers(-(10**17), 10**17)
COLUMNS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "text": (pa.string(), TEXTS, ("identity", "bucket", "truncate")),
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1), ("identity", "bucket", "truncate")),
    "date": (pa.date32(), st.integers(-(10**6), 10**6), ("identity", "years", "months", "days", "bucket")),
    "time": (pa.timestamp("us"), TIMES, ("identity", "years", "months", "days", "hours", "bucket")),
    "flag": (pa.bool_(), st.booleans(), ("identity",)),
    "price": (pa.decimal128(9, 2), st.decimals(-99999, 99999, places=2), ("identity",)),
}


def column(kind: Any, values: list[Any]) -> Any:
    if kind == pa.date32() or pa.types.is_timestamp(kind):
        return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    return pa.array(values, kind)


def literal(value: Any) -> dict[str, Any]:
    is_decimal = isinstance(value, decimal.Decimal)
    return {"literal": str(value), "decimal": True} if is_decimal else {"literal": value}


@st.composite
def filters(draw: st.DrawFn, values: Any) -> dict[str, Any]:
    """A filter on column `c`, with parts about other things."""
    literals = values.map(literal)
    operators, here = st.sampled_from(OPERATORS), {"column": "c"}
    atoms = st.one_of(
        st.builds(lambda op, value: {"op": op, "args": [here, value]}, operators, literals),
        st.builds(lambda op, value: {"op": op, "args": [value, here]}, operators, literals),
        st.builds(lambda found: {"op": "IN", "args": [here, *found]}, st.lists(literals, min_size=1, max_size=3)),
        st.builds(lambda op: {"op": op, "args": [here]}, st.sampled_from(["IS_NULL", "IS_NOT_NULL"])),
        st.just({"op": "unknown"}),
    )

    def combined(inner: Any) -> Any:
        several = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            st.builds(lambda found: {"op": "NOT", "args": [found]}, inner),
            st.builds(lambda op, found: {"op": op, "args": found}, st.sampled_from(["AND", "OR"]), several),
        )

    tree = st.recursive(atoms, combined, max_leaves=6)
    return dict(draw(tree))


def judged(tree: dict[str, Any], value: Any, unknown: bool | None) -> bool | None:
    """SQL's answer for one row, where `unknown` is what the parts about other things say."""
    op, arguments = tree["op"], tree.get("args", [])
    if op == "unknown":
        return unknown
    if op in ("AND", "OR", "NOT"):
        found = [judged(each, value, unknown) for each in arguments]
        if op == "NOT":
            return None if found[0] is None else not found[0]
        decisive = op == "OR"
        return decisive if decisive in found else None if None in found else not decisive
    if op in ("IS_NULL", "IS_NOT_NULL"):
        return bool((value is None) == (op == "IS_NULL"))
    flipped = "literal" in arguments[0]
    others = [decimal.Decimal(a["literal"]) if a.get("decimal") else a["literal"] for a in arguments if "literal" in a]
    if value is None:
        return False if op == "<=>" else None
    if op == "IN":
        return bool(value in others)
    left, right = (others[0], value) if flipped else (value, others[0])
    order = (left > right) - (left < right)
    signs = {"=": (0,), "<=>": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
    return order in signs[op]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_fragment_is_skipped_only_if_no_row_matches_and_counted_only_if_all_do(data: st.DataObject) -> None:
    kind, values, transforms = COLUMNS[data.draw(st.sampled_from(sorted(COLUMNS)))]
    field = PartitionField("c", data.draw(st.sampled_from(transforms)), data.draw(st.sampled_from([1, 3, 16])))
    pool = data.draw(st.lists(values, min_size=1, max_size=6))
    rows = data.draw(st.lists(st.one_of(st.sampled_from(pool), st.none()), min_size=1, max_size=20))
    tree = data.draw(filters(st.one_of(st.sampled_from(pool), values)))
    judge = PartitionFilter(tree, {"c": KnownColumn(7, kind)})
    table = pa.table({"c": column(kind, rows), "n": range(len(rows))})
    seen = 0
    for key, found in parted(table, [(7, field)]):
        outcomes = judge.outcomes(FragmentMetadata(0, [DataFile(file_name(key), [7])], found.num_rows))
        numbers: list[Any] = found.column("n").to_pylist()
        for number in numbers:
            answers = {judged(tree, rows[number], unknown) for unknown in (True, False, None)}
            assert all(outcomes & {True: TRUE, False: FALSE, None: NULL}[answer] for answer in answers)
        seen += found.num_rows
    assert seen == len(rows)


@settings(deadline=None)
@given(TEXTS)
@example("x" * 33)
def test_a_name_is_safe_short_and_says_the_value_or_its_digest(text: str) -> None:
    name = file_name([format_part(12345, "identity", 0, text.encode())] * 5)
    assert set(name) <= SAFE
    assert len(name) < 250
    for part in parse_name(name):
        assert part.field == 12345
        assert part.value == text or (part.value is None and part.digest is not None)


@settings(deadline=None)
@given(st.text(LETTERS, max_size=80))
def test_a_name_of_another_client_says_nothing(name: str) -> None:
    assert parse_name(f"{name.replace('-', '')}.lance") == []


def test_a_fragment_tells_its_partition_only_while_the_named_file_holds_the_field() -> None:
    name = file_name([format_part(3, "identity", 0, b"eu")])
    assert parts_of(FragmentMetadata(0, [DataFile(name, [3, 4])], 1)) == [NamedValue(3, "identity", 0, "eu")]
    rewritten = FragmentMetadata(0, [DataFile(name, [-2, 4]), DataFile("other.lance", [3])], 1)
    assert parts_of(rewritten) == []
    overlay = lance.LanceOperation.DataOverlayFile(DataFile("cell.lance", [3]), [0])
    assert parts_of(FragmentMetadata(0, [DataFile(name, [3, 4])], 1, overlays=[overlay])) == []


def test_partition_fields_stay_with_their_column_and_go_with_its_type() -> None:
    kinds: dict[str, Any] = {"a": pa.string(), "b": pa.timestamp("us"), "c": pa.int32()}
    schema = pa.schema(kinds)
    asked = [PartitionField("b", "days"), PartitionField("a", "identity"), PartitionField("b", "bucket", 4)]
    made = partitioned(schema, [field.to_json() for field in asked])
    assert partitioning(made) == tuple(asked)
    renamed = made.set(0, made.field(0).with_name("z"))
    assert partitioning(renamed)[1] == PartitionField("z", "identity")
    retyped = made.set(1, made.field(1).with_type(pa.float64()))
    assert partitioning(retyped) == (PartitionField("a", "identity"),)


@pytest.mark.parametrize(
    ("column", "transform", "width"),
    [("f", "identity", 0), ("a", "days", 0), ("a", "bucket", 0), ("a", "nope", 0), ("d", "hours", 0)],
)
def test_what_cannot_be_a_partition_is_refused(column: str, transform: str, width: int) -> None:
    kinds: dict[str, Any] = {"a": pa.string(), "f": pa.float64(), "d": pa.date32()}
    schema = pa.schema(kinds)
    with pytest.raises(InvalidInputError):
        partitioned(schema, [{"column": column, "transform": transform, "width": width}])


def test_times_before_1970_are_in_the_partition_they_belong_to() -> None:
    moment = dt.datetime(1969, 12, 31, 23, 30)
    rows = pa.table({"c": pa.array([moment], pa.timestamp("us"))})
    for transform, value in (("years", -1), ("months", -1), ("days", -1), ("hours", -1)):
        [(key, _)] = parted(rows, [(0, PartitionField("c", transform))])
        assert parse_name(file_name(key))[0].value == value
