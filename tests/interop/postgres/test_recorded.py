"""Recorded changes of a real PostgreSQL, as Debezium wrote them: the table is what was selected, at every moment."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

from headwater.metastore import Metastore
from headwater.streams.table import StreamTable
from tests.interop.postgres.compared import OPTIONS, SCHEMAS, differences
from tests.interop.postgres.recording import WAYS, Recording, load, of_table

recording: Callable[[], Recording] = cache(load)


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[Metastore]:
    with Metastore(tmp_path / "lake") as opened:
        yield opened


def table_of(metastore: Metastore, name: str) -> StreamTable:
    return StreamTable.create(metastore, [name], SCHEMAS[name], keys="id", sequence="_lsn")


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("way", [way["name"] for way in WAYS])
def test_a_stream_table_is_what_the_database_selects(metastore: Metastore, way: str, name: str) -> None:
    table, kept = table_of(metastore, name), recording()
    for first, last in ((0, 2), (3, 3)):  # a batch until all but the truncation, and one from there
        lines = [line for part in kept.lines[way][first : last + 1] for line in of_table(part, name)]
        if lines:
            report = table.ingest("\n".join(lines), format="debezium", **OPTIONS)
            assert report.quarantined == 0, table.quarantine().to_pylist()
        assert differences(table.to_arrow(), kept.rows[last][name], name, way) == []


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("way", [way["name"] for way in WAYS])
def test_a_stream_table_is_what_the_database_selects_at_every_moment_published_or_not(
    metastore: Metastore, way: str, name: str
) -> None:
    table, kept = table_of(metastore, name), recording()
    for number, part in enumerate(kept.lines[way]):
        lines = list(of_table(part, name))
        if lines:
            assert table.ingest("\n".join(lines), format="debezium", **OPTIONS).quarantined == 0
        assert differences(table.to_arrow(), kept.rows[number][name], name, way) == []
        table.publish()
        assert differences(table.to_arrow(), kept.rows[number][name], name, way) == []


def _columns(lines: list[str]) -> dict[str, list[Any]]:
    """A topic as Kafka's source of Spark gives it: keys and values are bytes."""
    records = [json.loads(line) for line in lines]
    return {part: [each[part] and each[part].encode() for each in records] for part in ("key", "value")}


def _envelopes(lines: list[str]) -> pa.Table:
    texts = [json.loads(line)["value"] or "null" for line in lines]
    found = [json.loads(text.replace('"NaN"', "NaN").replace('"-Infinity"', "-Infinity")) for text in texts]
    return pa.Table.from_pylist(
        [{key: each[key] for key in ("op", "before", "after", "source")} for each in found if each]
    )


FRAMES: dict[str, Callable[[list[str]], Any]] = {
    "arrow": lambda lines: pa.table(_columns(lines)),
    "batches": lambda lines: pa.table(_columns(lines)).to_batches(2),
    "reader": lambda lines: pa.table(_columns(lines)).to_reader(),
    "pandas": lambda lines: pd.DataFrame({"value": [json.loads(line)["value"] for line in lines]}),
    "polars": lambda lines: pl.DataFrame({"value": [json.loads(line)["value"] for line in lines]}),
    "envelopes": _envelopes,
    "messages": lambda lines: [json.loads(json.loads(line)["value"] or "null") for line in lines],
    "records": lambda lines: [json.loads(line) for line in lines],
}


@pytest.mark.parametrize(
    "frame", [name if name == "arrow" else pytest.param(name, marks=pytest.mark.long) for name in FRAMES]
)
def test_frames_of_messages_are_taken_whole(metastore: Metastore, frame: str) -> None:
    table, kept = table_of(metastore, "vectors"), recording()
    data = FRAMES[frame]([line for part in kept.lines["plain"] for line in of_table(part, "vectors")])
    assert table.ingest(data, format="debezium", **OPTIONS).quarantined == 0, table.quarantine().to_pylist()
    assert differences(table.to_arrow(), kept.rows[-1]["vectors"], "vectors") == []


def test_files_of_records_are_taken_in_the_order_of_their_numbers(metastore: Metastore, tmp_path: Path) -> None:
    table, kept = table_of(metastore, "items"), recording()
    endings = (".json", ".json.gz", ".ndjson.gz", ".jsonl")
    for number, lines in enumerate(kept.lines["schemas"]):
        text = "\n".join(of_table(lines, "items")).encode()
        path = tmp_path / f"changes-{8 + number}{endings[number]}"
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    report = table.ingest(str(tmp_path / "changes-*"), format="debezium", **OPTIONS)
    assert report.quarantined == 0, table.quarantine().to_pylist()
    assert differences(table.to_arrow(), kept.rows[-1]["items"], "items") == []
