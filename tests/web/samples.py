"""A catalog with a little of everything that the page shows."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from headwater.catalog import Catalog
from headwater.errors import LanceNamespaceError
from headwater.namespace.metastore import MetastoreNamespace
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.streams import StreamTable, lake, publish_tables

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "it's",
    "%2F",
    "a b&c=d#e?f",
    "ab\u202ecd",
    "日本",
    "{{7*7}}",
    'q"uote',
    "..%2e",
)
"""Names that a catalog takes, or took, and a page must show as they are."""


def png(width: int = 24, height: int = 16) -> bytes:
    """A small picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(
        b"\0" + bytes((x * 10 % 256, y * 15 % 256, 180)[c] for x in range(width) for c in range(3))
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def photos(start: int, count: int) -> pa.Table:
    """Rows with every kind of cell: text, numbers, vectors, an image, something nested, markup and NULL."""
    random = np.random.default_rng(start)
    vectors = pa.array(random.normal(size=(count, 64)).astype(np.float32).tolist(), pa.list_(pa.float32(), 64))
    ids = list(range(start, start + count))
    comment = {b"comment": b"what the picture shows, in words"}
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.int64()),
        pa.field("caption", pa.string(), metadata=comment),
        pa.field("picture", pa.binary()),
        pa.field("embedding", pa.list_(pa.float32(), 64)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("camera", pa.struct([("make", pa.string()), ("iso", pa.int32())])),
        pa.field("score", pa.float64()),
    ]
    return pa.table(
        [
            pa.array(ids),
            pa.array([f"river {n} <b>bold</b>" if n % 3 else f"mountain {n}" for n in ids]),
            pa.array([png() if n % 2 else b"\0\1\2 no picture" for n in ids]),
            vectors,
            pa.array([["water", "day"] for _ in ids]),
            pa.array([{"make": "Leica", "iso": 100 * (n % 8)} for n in ids]),
            pa.array([None if n % 5 == 0 else n / 7 for n in ids]),
        ],
        schema=pa.schema(fields),
    )


def letters(texts: Any) -> Any:
    """Embed a text as the number of times that it has each of three letters."""
    counts = [[float(text.count(letter)) for letter in "abc"] for text in texts.to_pylist()]
    return pa.array(counts, pa.list_(pa.float32(), 3))


def letters_of_both(titles: Any, texts: Any) -> Any:
    """Embed a title and a text together as `letters` does."""
    return letters(pa.array([f"{title} {text}" for title, text in zip(titles, texts, strict=True)]))


def fill(namespace: Any) -> Catalog:
    """Namespaces, a table with versions, tags and indices, and odd names."""
    catalog = Catalog(namespace)
    catalog.create_namespace("prod", properties={"comment": "what customers see", "team": "vision"})
    catalog.create_table("prod.photos", photos(0, 40), properties={"comment": "Pictures of rivers", "owner": "ada"})
    table = catalog["prod.photos"]
    table.append(photos(40, 25))
    table.tags["good"] = 2
    table.append(photos(65, 10))
    table.create_index("caption", "FTS")
    table.append(photos(75, 5))
    catalog.create_table("prod.users", [{"id": n, "name": f"user {n}"} for n in range(12)])
    with mock.patch("headwater.names.INVISIBLE", ()):  # a catalog of before such names were refused
        for name in HOSTILE:
            catalog.create_table(["odd", name], [{"id": 1, "text": name}])
    return catalog


def fill_metastore(namespace: MetastoreNamespace) -> Catalog:
    """The same, with a stream table that is ahead of its serving copy, and something dropped."""
    catalog = fill(namespace)
    namespace.metastore.snapshot("before", [("prod", "photos")])
    catalog.create_table("prod.old", [{"id": 1}])
    catalog.drop_table("prod.old")
    rows = pa.table({"id": [0], "what": ["event"]})
    events = StreamTable.create(namespace.metastore, ("prod", "events"), rows.schema, keys="id")
    events.upsert([{"id": n, "what": f"event {n}"} for n in range(20)])
    events.publish()
    events.upsert([{"id": n, "what": f"later {n}"} for n in range(15, 25)])
    daily = StreamTable.create(namespace.metastore, ("prod", "daily"), rows.schema, keys="id")
    daily.upsert([{"id": 1, "what": "sum"}], source="jobs")
    made_of = {"inputs": {"prod.events": {"version": 1, "position": 1}}, "sql": "SELECT count(*) FROM prod.events"}
    publish_tables(lake(namespace.metastore), [("prod", "daily")], {"prod.daily": made_of})
    return catalog


PIPELINE = """
[pipeline]
name = "shop"
catalog = "lake"
engine = "embedded"
[[source]]
name = "orders of the shop"
path = "in/*.json"
into = "raw.orders"
[table."raw.orders"]
schema = "id BIGINT NOT NULL, city STRING, total BIGINT"
keys = ["id"]
[view."sums.cities"]
sql = "SELECT city, sum(total) AS total, count(*) AS orders FROM raw.orders GROUP BY city"
keys = ["city"]
"""
WORK_PAGES = (
    "/",
    "/runs",
    "/runs?filter=failed",
    "/runs?filter=no-such-run",
    "/lineage",
    "/lineage?filter=cities",
    "/t/sums/cities?view=lineage",
    "/t/sums/cities?view=lineage&column=total",
    "/t/raw/orders?view=quarantine",
    "/t/raw/orders?view=compare",
    "/t/raw/orders?view=compare&from=1",
    "/t/raw/orders?view=compare&from=99",
    "/t/raw/orders?view=versions",
    "/t/raw/words?view=rows&near=abba&by=place",
    "/t/raw/words?view=rows&near=1%2C+2&by=place",
    "/sql",
    "/sql?sql=SELECT+city%2C+total+FROM+sums.cities+ORDER+BY+city",
    "/sql?sql=SELECT+id%2C+total+FROM+raw.orders+ORDER+BY+id&chart=line",
    "/sql?sql=SELECT+city+FROM+raw.orders&show=plan",
    "/sql?sql=SELECT+nothing",
    "/sql?sql=SELECT+id+FROM+raw.orders+WHERE+id+%3C+0",
    "/access",
    "/access?filter=no-such-key",
)
"""Pages of what runs over a catalog, in each of their states."""


def fill_work(folder: Path) -> MetastoreNamespace:
    """A catalog that a pipeline fills: a run with rejected rows, rows that changed, and a run that failed."""
    (folder / "in").mkdir()
    rows: list[dict[str, Any]] = [{"id": n, "city": CITIES[n % len(CITIES)], "total": n * n % 97} for n in range(40)]
    broken: list[dict[str, Any]] = [
        {"id": None, "city": "nowhere", "total": 1},
        {"id": 90, "city": "Bern", "total": "a lot"},
    ]
    changed: list[dict[str, Any]] = [{"id": n, "city": "Bern", "total": 1000} for n in range(38, 44)]
    (folder / "pipeline.toml").write_text(PIPELINE)
    batches: tuple[list[Any], ...] = (rows + broken, changed)
    for number, some in enumerate(batches):
        (folder / "in" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in some))
        run_pipeline(read_pipeline(folder / "pipeline.toml"))
    (folder / "in" / "late.json").write_bytes(b"\xff\xfe no JSON")
    with suppress(LanceNamespaceError):
        run_pipeline(read_pipeline(folder / "pipeline.toml"))
    namespace = MetastoreNamespace(root=str(folder / "lake"))
    place = {"function": "tests.web.samples:letters", "inputs": ["word"], "type": "float32[3]"}
    words = Catalog(namespace).create_stream_table(
        "raw.words", {"id": "int64", "word": "string"}, keys="id", properties={"column.place": json.dumps(place)}
    )
    words.upsert([{"id": n, "word": word} for n, word in enumerate(("abba", "cab", "bacca", "aaa"))])
    words.publish()
    words.upsert([{"id": 9, "word": "waits"}])
    with namespace.metastore.transaction(f"undo {LONG_PATH} in raw.orders") as tx:
        tx.create_namespace(("after",))
    return namespace


LONG_PATH = "/srv/data/landing/shops/europe/orders/0000000000000000000003.json"
"""A message of one word that is wider than a phone."""
CITIES = ("Bern", "Ulm", "Graz", "Llanfairpwllgwyngyll")
