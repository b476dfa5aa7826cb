"""A SQLite database as the source, changed at random; its changes as Debezium events, delivered as badly as it may be.

Delivery: duplicated, delayed by whole deliveries, shuffled, and batched anew. The database itself is the oracle.
"""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog import Catalog
from headwater.pipeline import ingest, publish
from headwater.streams.table import StreamTable

Row = dict[str, Any]
NAMES = ("id", "region", "n", "note")


class Database:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lsn = 0
        self.delayed: list[Row] = []
        self.sent: list[Row] = []
        self.files = 0
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE TABLE t (id INTEGER, region TEXT, n REAL, note TEXT, PRIMARY KEY (id, region))")

    def rows(self) -> list[Row]:
        found = self._database.execute("SELECT id, region, n, note FROM t ORDER BY id, region")
        return [dict(zip(NAMES, row, strict=True)) for row in found]

    def change(self, times: int) -> list[Row]:
        """Random statements, and an event for each row they changed."""
        return [event for _ in range(times) for event in self._change()]

    def _change(self) -> list[Row]:
        pick = self.random
        rows = self.rows()
        kind = pick.choice(["insert", "insert", "update", "update", "many", "move", "delete"]) if rows else "insert"
        if kind == "insert":
            row = {
                "id": pick.randrange(200),
                "region": pick.choice("ab"),
                "n": pick.random(),
                "note": pick.choice("xy"),
            }
            known = next((r for r in rows if (r["id"], r["region"]) == (row["id"], row["region"])), None)
            self._database.execute("INSERT OR REPLACE INTO t VALUES (:id, :region, :n, :note)", row)
            return [self._event("u" if known else "c", known, row)]
        old = pick.choice(rows)
        if kind == "many":
            chosen = [row for row in rows if row["note"] == old["note"]][:5]
            return [event for row in chosen for event in self._update(row, {**row, "n": pick.random()})]
        if kind == "update":
            return self._update(old, {**old, "n": None, "note": pick.choice(["é", None, "o'clock"])})
        if kind == "move":
            new = {**old, "id": old["id"] + 1000 * pick.randrange(1, 9) + self.lsn * 10_000}
            return self._update(old, new)
        self._database.execute("DELETE FROM t WHERE id = ? AND region = ?", (old["id"], old["region"]))
        return [self._event("d", old, None)]

    def _update(self, old: Row, new: Row) -> list[Row]:
        values = {**{f"old_{name}": old[name] for name in ("id", "region")}, **new}
        self._database.execute(
            "UPDATE t SET id = :id, n = :n, note = :note WHERE id = :old_id AND region = :old_region", values
        )
        return [self._event("u", old, new)]

    def _event(self, op: str, before: Row | None, after: Row | None) -> Row:
        self.lsn += 1
        return {"op": op, "before": before, "after": after, "source": {"lsn": self.lsn}}

    def deliver(self, folder: Path, events: list[Row], is_last: bool = False) -> None:
        """Files of events: some wait for the next delivery, some come again, all in any order and number of files."""
        waiting = [] if is_last else [event for event in events if self.random.random() < 0.2]
        now = [*self.delayed, *(event for event in events if event not in waiting)]
        now += self.random.sample(self.sent, min(len(self.sent), 7))
        self.delayed, self.sent = waiting, [*self.sent, *events]
        self.random.shuffle(now)
        parts = self.random.randrange(1, 4)
        for part in range(parts):
            self.files += 1
            lines = [json.dumps(event) for event in now[part::parts]]
            (folder / f"{self.files:04d}.json").write_text("\n".join(lines) + "\n" if lines else "")


def create(catalog: Catalog) -> None:
    schema: dict[str, Any] = {"id": "bigint", "region": "string", "n": "double", "note": "string", "_lsn": "bigint"}
    catalog.create_stream_table(
        "raw.t", schema, keys=["id", "region"], sequence=["_lsn"], properties={"history": "scd2"}
    )


def follow(catalog: Catalog, folder: Path, seed: int, rhythm: int, spark: Any = None, times: int = 6) -> None:
    """Take what a database says of itself, publish at every so many deliveries, and compare every way to read."""
    database = Database(seed)
    feed: dict[tuple[Any, ...], Row] = {}
    position = 0
    for delivery in range(1, times + 1):
        is_last = delivery == times
        database.deliver(folder, database.change(30), is_last)
        ingest(spark, catalog, "raw.t", str(folder / "*.json"), "debezium", name="db")
        position = replay(catalog["raw.t"], feed, position)
        if delivery % rhythm == 0 or is_last:
            publish(spark, catalog, "raw.t")
            assert plain(catalog["raw.t"].serving.to_arrow()) == plain(catalog["raw.t"].to_arrow())
    check(catalog, feed, database.rows())


def replay(table: StreamTable, feed: dict[tuple[Any, ...], Row], after: int) -> int:
    for change in table.changes(after).to_pylist():
        key = (change["id"], change["region"])
        if change["_change_type"] in ("delete", "update_preimage"):
            del feed[key]
        else:
            assert key not in feed
            feed[key] = {name: change[name] for name in NAMES}
    return table.position


def check(catalog: Catalog, feed: dict[tuple[Any, ...], Row], expected: list[Row]) -> None:
    table = catalog["raw.t"]
    assert plain(table.to_arrow()) == expected
    assert plain(table.serving.to_arrow()) == expected
    assert sorted(feed.values(), key=lambda row: (row["id"], row["region"])) == expected
    history = catalog["raw.t__history"].to_arrow()
    assert plain(history.filter(pc.is_null(history.column("valid_to")))) == expected
    assert table.verify() == []


def plain(rows: pa.Table) -> list[Row]:
    return rows.select(list(NAMES)).sort_by([("id", "ascending"), ("region", "ascending")]).to_pylist()
