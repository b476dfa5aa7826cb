"""Ranges of tables of PostgreSQL: what is asked of the server, and the rows that its texts are."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.decoding.files import read_texts
from headwater.streams.sources.postgres import BlockRange, CopiedColumn, CopiedTable, block_ranges, column_of, taken_of


def test_empty_values_are_null_and_quoted_ones_are_texts() -> None:
    data = b'1,"",NA\n2,,"two\nlines ""q"" ,"\n3,null,\\.\n'
    assert read_texts(data, ["a", "b", "c"]).to_pylist() == [
        {"a": "1", "b": "", "c": "NA"},
        {"a": "2", "b": None, "c": 'two\nlines "q" ,'},
        {"a": "3", "b": "null", "c": "\\."},
    ]
    assert read_texts(b'\n""\nx\n', ["only"]).to_pylist() == [{"only": None}, {"only": ""}, {"only": "x"}]
    assert read_texts(b"", ["a"]).num_rows == 0
    assert read_texts(b'"' + b"x\n" * (1 << 20) + b'"\n', ["long"]).num_rows == 1


@pytest.mark.parametrize("blocks", [0, 1, 7, 1000])
@pytest.mark.parametrize("most", [1, 8192, 100_000, 1 << 30])
def test_ranges_have_every_block_once(blocks: int, most: int) -> None:
    found = block_ranges(CopiedTable("public", "t", 1, 1, ()), blocks, blocks * 8192 * 3, most)
    ends = [each.end for each in found]
    assert found[0].first == 0
    assert ends[-1] is None
    assert [each.first for each in found[1:]] == ends[:-1]
    assert all(each.first < each.end for each in found if each.end is not None)
    assert all((each.end - each.first) * 8192 * 3 <= max(most, 8192 * 3) for each in found if each.end is not None)


def test_names_are_quoted_and_only_the_table_itself_is_asked() -> None:
    columns = CopiedColumn('a"b', pa.int32()), CopiedColumn("raw", pa.binary()), CopiedColumn("l", pa.list_(pa.int32()))
    table = CopiedTable("Sales", "t", 1, 1, columns)
    assert BlockRange(table, 0, 8).sql == (
        'COPY (SELECT "a""b", encode("raw", \'hex\'), to_json("l") FROM ONLY "Sales"."t" '
        "WHERE ctid >= '(0,0)' AND ctid < '(8,0)') TO STDOUT (FORMAT csv)"
    )
    assert "ctid < " not in BlockRange(table, 8, None).sql


def test_types_that_only_debezium_reads_have_no_column() -> None:
    def kind(type_name: str, modifier: int = -1, is_list: bool = False, is_enum: bool = False) -> Any:
        found = column_of("c", type_name, modifier, is_list, is_enum)
        return None if found is None else found.kind

    assert kind("numeric", (12 << 16 | 2) + 4) == pa.decimal128(12, 2)
    assert kind("numeric") == pa.decimal128(38, 9)
    assert kind("numeric", (2 << 16 | 0x7FE) + 4) is None  # numeric(2, -2)
    assert kind("mood", is_enum=True) == pa.string()
    assert kind("int4", is_list=True) == pa.list_(pa.int32())
    assert [kind(name) for name in ("interval", "money", "point", "hstore", "int4range")] == [None] * 5
    assert [kind(name, is_list=True) for name in ("bytea", "json", "numeric")] == [None] * 3


def test_texts_are_values_and_one_that_does_not_fit_is_quarantined() -> None:
    kinds = {
        "id": pa.int32(),
        "price": pa.decimal128(12, 2),
        "seen": pa.timestamp("us", "UTC"),
        "raw": pa.binary(),
        "flag": pa.bool_(),
        "days": pa.list_(pa.date32()),
    }
    first = ["1", "1.50", "2024-01-01 10:00:00.5+00", "00ff", "false", '["2024-02-29",null]']
    texts = pa.table({name: [own, None, own] for name, own in zip(kinds, first, strict=True)})
    texts = texts.set_column(2, "seen", pa.array([first[2], None, "infinity"]))
    taken = taken_of(texts, [CopiedColumn(*each) for each in kinds.items()], {"_lsn": 0})
    assert [taken.data.row(at) for at in range(taken.data.length)] == [
        {
            "id": 1,
            "price": Decimal("1.50"),
            "seen": datetime(2024, 1, 1, 10, 0, 0, 500000, UTC),
            "raw": b"\x00\xff",
            "flag": False,
            "days": [date(2024, 2, 29), None],
            "_lsn": 0,
        },
        {**dict.fromkeys(kinds), "_lsn": 0},
    ]
    assert taken.data.reads is not None
    assert taken.data.reads.all()
    assert [(each.reason, each.column) for each in taken.bad] == [("bad_value", "seen")]
    assert '"infinity"' in taken.bad[0].row
