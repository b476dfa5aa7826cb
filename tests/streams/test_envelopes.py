"""Debezium messages taken many at a time are what they are one at a time: rows, what is missing, kinds, quarantine."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition, define
from headwater.streams.log.batches import shape
from headwater.streams.sources import debezium
from headwater.streams.sources.debezium import take_debezium
from headwater.streams.sources.debezium_envelopes import decode, decode_lines, decoding
from headwater.streams.sources.format_output import Taken
from headwater.streams.sources.message_values import UNAVAILABLE

COLUMNS: list[tuple[str, Any]] = [
    ("id", pa.int64()),
    ("region", pa.string()),
    ("_lsn", pa.int64()),
    ("_ts_ms", pa.int64()),
    ("total", pa.decimal128(12, 2)),
    ("weight", pa.float64()),
    ("photo", pa.binary()),
    ("at", pa.timestamp("us", "UTC")),
    ("tags", pa.list_(pa.string())),
]
SCHEMA = pa.schema(COLUMNS)
BROKEN = [
    '{"op": "c", "after": {"id": 1}, "source": 3}',
    '{"schema": 3, "payload": {"op": "c", "after": {"id": 1}}}',
    '{"schema": {"fields": [3]}, "payload": {"op": "c", "after": {"id": 1}}}',
    '{"op": "c"',
    "[]",
    "7",
    '{"op": "x", "after": {}}',
    '{"op": "u", "after": null}',
    '{"id": 1}',
    '{"op": "c"}',
]
WIRE = {
    "type": "struct",
    "fields": [
        {
            "field": side,
            "fields": [
                {
                    "field": "total",
                    "type": "bytes",
                    "name": "org.apache.kafka.connect.data.Decimal",
                    "parameters": {"scale": "2"},
                },
                {"field": "photo", "type": "bytes"},
                {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
            ],
        }
        for side in ("before", "after")
    ],
}


def row(source: random.Random, has_schema: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": source.randrange(6),
        "region": source.choice(["a", "b", "\u2028é"]),
        "total": source.choice(["1.10", "-3", None, 7, 2.5, "no number", UNAVAILABLE]),
        "weight": source.choice([1, 2.25, None, "heavy"]),
        "photo": source.choice([base64.b64encode(b"\0x").decode(), None, "%"]),
        "at": source.choice(["2026-01-01T00:00:00Z", None, "yesterday"]),
        "tags": source.choice([["a", None], [], None]),
    }
    if has_schema:
        found["total"] = source.choice([base64.b64encode(b"\x01\x10").decode(), None, UNAVAILABLE])
        found["at"] = source.choice([1_700_000_000_000_001, None])
    for name in ("total", "weight", "photo", "tags"):
        if source.random() < 0.2:
            del found[name]
    return found


def message(source: random.Random, has_schema: bool) -> Any:
    op = source.choice("ccuuurdDU")
    before, after = row(source, has_schema), row(source, has_schema)
    place = {"lsn": source.randrange(50), "ts_ms": source.choice([None, 3]), "table": "t"}
    found: dict[str, Any] = {"op": op, "source": place, "ts_ms": 9, "transaction": None}
    if op not in "cr" and (op in "dD" or source.random() < 0.7):
        found["before"] = before
    found["after"] = None if op in "dD" else after
    if source.random() < 0.02:
        return None
    if not has_schema:
        return found
    return {"schema": WIRE if source.random() < 0.9 else None, "payload": found if source.random() < 0.95 else None}


def content(text: str) -> Any:
    """What a quarantined row says, in whatever order of its columns."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def outcome(definition: Definition, taken: Taken) -> Any:
    batch = shape(definition, taken.data, "evolve")
    names = [column.name for column in definition.columns]
    ones = [True] * len(batch.events)
    return (
        batch.events.rows.to_pylist(),
        batch.events.deletes.tolist(),
        {name: mask.tolist() for name in names if (mask := batch.events.present.get(name, None)) is not None}
        | {name: ones for name in names if name not in batch.events.present},
        batch.numbers.tolist(),
        batch.bad,
        [(content(bad.row), bad.reason) for bad in taken.bad],
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("has_schema", [False, True])
def test_many_messages_at_once_are_what_they_are_one_by_one(
    seed: int, has_schema: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    keys = source.choice([["id"], ["id", "region"], []])
    definition = define(SCHEMA, keys, ["_lsn"] if keys else [])
    lines = [json.dumps(message(source, has_schema)) for _ in range(80)]
    lines += source.sample(BROKEN, seed % 4)
    if seed % 5 == 4:
        lines = [line.replace('"lsn"', '"LSN"') for line in lines]
    source.shuffle(lines)
    text = "\r\n".join([*lines, "", "  "])
    single = [f"{line}\n" for line in text.split("\n")]
    expected = outcome(definition, take_debezium(definition, single, rows_of=lambda keys: SCHEMA.empty_table()))
    monkeypatch.setattr(debezium, "_by_message", None)  # it is not needed
    taken = take_debezium(definition, text, rows_of=lambda keys: SCHEMA.empty_table())
    assert outcome(definition, taken) == expected


def test_columns_that_are_not_known_and_truncations_are_looked_at_one_by_one() -> None:
    definition = define(pa.schema([("id", pa.int64()), ("_lsn", pa.int64())]), ["id"], ["_lsn"])
    new = {"op": "c", "after": {"id": 1, "size": 2}, "source": {"lsn": 1}}
    taken = take_debezium(definition, json.dumps(new))
    assert taken.data.row(0) == {"id": 1, "size": 2, "_lsn": 1}
    truncated = json.dumps(new) + "\n" + json.dumps({"op": "t", "source": {"lsn": 2}})
    gone = take_debezium(definition, truncated, apply_as_truncates=True)
    assert gone.data.row(1) == {"_lsn": 2}
    assert gone.data.truncates is not None
    assert gone.data.truncates.tolist() == [False, True]
    ordered_by_rows = define(pa.schema([("id", pa.int64()), ("at", pa.int64())]), ["id"], ["at"])
    with pytest.raises(InvalidInputError, match="'at', which orders the table"):
        take_debezium(ordered_by_rows, json.dumps({"op": "t"}), apply_as_truncates=True)


PIECES = [
    '{"op": "c", "after": {"id": 1}}',
    '{"op": "u", "after": {"id": 2, "tags": ["}", "{"]}, "source": {"lsn": 7}}',
    '{"op": "d", "before": {"id": 3}}',
    '{"op": "c", "after": {"id": 1, "tags": ["a",',
    '"b"]}}',
    '{"op": "c", "after": {"id": 1}, "more": [{}',
    "{}]}",
    '{"op": "c",',
    '"after": {"id": 4}}',
    "null",
    "",
    " ",
]


@pytest.mark.parametrize("seed", range(200))
def test_lines_decoded_by_one_call_are_those_decoded_one_by_one(seed: int) -> None:
    chance, known = random.Random(seed), decoding(define(SCHEMA, ["id"], ["_lsn"]))
    assert known is not None
    few = PIECES[: chance.choice([3, len(PIECES)])]
    lines = ["".join(chance.choices(few, k=chance.choice([1, 1, 1, 2]))) for _ in range(chance.randrange(1, 6))]
    text = chance.choice(["\n", "\n", "\r\n"]).join(lines) + chance.choice(["", "\n"])
    found = decode_lines(known, text)
    if few == PIECES[:3] and "\r" not in text and all(line in few for line in lines):
        assert found is not None
    if found is not None:
        assert found == [decode(known, line) for line in text.rstrip("\n").split("\n")]
