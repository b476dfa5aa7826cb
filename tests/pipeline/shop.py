"""A small shop on disk: a pipeline file, Debezium files, and a SQLite database as the source and the oracle."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

SPEND = "SELECT customer, sum(total) AS spent, count(*) AS orders FROM raw.orders GROUP BY customer"
PIPELINE = """
[pipeline]
name = "shop"
catalog = "./lake"

[[source]]
name = "orders_cdc"
path = "landing/orders/*.json"
format = "debezium"
into = "raw.orders"

[[source]]
name = "catalogue"
path = "landing/products/*.json"
into = "raw.products"

[table."raw.orders"]
schema = "id BIGINT NOT NULL, customer BIGINT, total DECIMAL(12,2), note STRING, updated_at BIGINT"
keys = ["id"]
sequence_by = ["updated_at"]
lateness = "1000000"
contract = "evolve"
stored_as_scd_type = 2
expect = { positive = "total >= 0" }
expect_or_drop = { has_customer = "customer IS NOT NULL" }
expect_or_fail = {}

[view."mart.spend"]
sql = "SELECT customer, sum(total) AS spent, count(*) AS orders FROM raw.orders GROUP BY customer"
keys = ["customer"]

[table."raw.products"]
keys = ["sku"]
[table."raw.products".columns.embedding]
function = "shop_features:embed"
inputs = ["title", "text"]
type = "float32[4]"
version = "1"
[[table."raw.products".index]]
column = "text"
type = "FTS"

[publish]
tables = ["raw.orders", "raw.products"]
"""
FEATURES = """
def embed(title, text):
    words = [f"{a} {b}" for a, b in zip(title.to_pylist(), text.to_pylist())]
    return [[float(len(word)), float(word.count("a")), float(word.count("e")), 1.0] for word in words]
"""


class Shop:
    """The database, and what it has said of its changes so far."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.clock = 0
        self.files = 0
        self.database = sqlite3.connect(":memory:")
        self.database.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, total TEXT, note TEXT, updated_at INTEGER)"
        )
        for name in ("orders", "products"):
            (folder / "landing" / name).mkdir(parents=True)
        self.file = folder / "pipeline.toml"
        self.file.write_text(PIPELINE)
        (folder / "shop_features.py").write_text(FEATURES)

    def orders(self) -> list[dict[str, Any]]:
        names = ("id", "customer", "total", "note", "updated_at")
        rows = self.database.execute(f"SELECT {', '.join(names)} FROM orders ORDER BY id").fetchall()
        return [dict(zip(names, row, strict=True)) for row in rows]

    def spend(self) -> list[tuple[int, str, int]]:
        """What the view should hold, as SQLite has it."""
        rows = self.database.execute(
            "SELECT customer, sum(cast(total AS REAL)), count(*) FROM orders GROUP BY customer ORDER BY customer"
        )
        return [(customer, f"{spent:.2f}", count) for customer, spent, count in rows]

    def change(self, times: int) -> list[dict[str, Any]]:
        """Random inserts, updates and deletes; their change events."""
        return [event for _ in range(times) if (event := self._change()) is not None]

    def _change(self) -> dict[str, Any] | None:
        self.clock += 1
        known = [row["id"] for row in self.orders()]
        kind = self.random.choice("ccuud") if known else "c"
        if kind == "c":
            row = self._row(self.clock)
            self.database.execute("INSERT INTO orders VALUES (:id, :customer, :total, :note, :updated_at)", row)
            return self._event("c", None, row)
        id = self.random.choice(known)
        before = next(row for row in self.orders() if row["id"] == id)
        if kind == "u":
            after = {**self._row(id), "id": id}
            self.database.execute(
                "UPDATE orders SET customer = :customer, total = :total, note = :note, updated_at = :updated_at "
                "WHERE id = :id",
                after,
            )
            return self._event("u", before, after)
        self.database.execute("DELETE FROM orders WHERE id = ?", (id,))
        return self._event("d", {**before, "updated_at": self.clock}, None)

    def _row(self, id: int) -> dict[str, Any]:
        total = f"{self.random.randrange(10_000) / 100:.2f}"
        note = self.random.choice([None, "gift", "o'clock \u00e9"])
        return {"id": id, "customer": self.random.randrange(5), "total": total, "note": note, "updated_at": self.clock}

    def _event(self, op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"op": op, "before": before, "after": after, "source": {"lsn": self.clock}}

    def deliver(self, events: list[dict[str, Any]], name: str | None = None) -> Path:
        self.files += 1
        path = self.folder / "landing" / "orders" / (name or f"{self.files:04d}.json")
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return path

    def products(self, rows: list[dict[str, Any]]) -> Path:
        self.files += 1
        path = self.folder / "landing" / "products" / f"{self.files:04d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
