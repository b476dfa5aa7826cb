"""What the processes of test_together.py do, each with a catalog of its own. Light to import: each starts from it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.pipeline import index, ingest, publish
from headwater.streams.serving import compaction

KEYED, LOG = "raw.keyed", "raw.log"
OWN_KEYS = 20
SHARED = -1
KEPT = timedelta(seconds=30)
PAUSE_S = 0.2
"""Between two rounds of housekeeping: what never rests leaves a small machine to nobody else."""


def events(writer: int, number: int) -> list[dict[str, object]]:
    """Changes of keys of its own, of which each seventh is a delete, and of one that all writers share."""
    own = [1_000 * writer + (number * 3 + step) % OWN_KEYS for step in range(5)]
    rows: list[dict[str, object]] = [
        {"id": id, "at": number, "note": f"{writer}-{number}", "op": "d" if (id + number) % 7 == 0 else "u"}
        for id in own
    ]
    return [*rows, {"id": SHARED, "at": 10 * number + writer, "note": f"{writer}-{number}", "op": "u"}]


def land(root: str, writer: int, rounds: int) -> None:
    """Files into a table with keys, and batches into a log, each offered twice."""
    catalog, folder = Catalog(root), Path(root).parent
    for number in range(rounds):
        file = folder / f"{writer}-{number:04d}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in events(writer, number)))
        for _ in range(2):
            ingest(None, catalog, KEYED, str(file), "op", f"s{writer}")
            catalog[LOG].append([{"id": 1_000 * writer + number}], token=f"{number}", source=f"s{writer}")


def _until(root: str, act: Callable[[Catalog], object]) -> None:
    catalog, stop = Catalog(root), Path(root).parent / "stop"
    while not stop.exists():
        act(catalog)
        time.sleep(PAUSE_S)
    act(catalog)


def keep_publishing(root: str) -> None:
    _until(root, lambda catalog: publish(None, catalog, KEYED, LOG))


def keep_compacting(root: str) -> None:
    """As if every deleted row were one too many, and every small fragment."""
    compaction.WORN, compaction.MANY = 0.0, 1
    _until(root, lambda catalog: [catalog[name].compact() for name in (KEYED, LOG)])


def keep_indexing(root: str) -> None:
    _until(root, lambda catalog: index(None, catalog, KEYED, "note", "BTREE"))


def keep_collecting(root: str) -> None:
    """The log is kept as long as one publish takes, and so are old versions: what is older goes."""

    def collect(catalog: Catalog) -> None:
        for name in (KEYED, LOG):
            catalog[name].collect()
        metastore_of(catalog.namespace).metastore.collect(KEPT)

    _until(root, collect)


KEEPERS = (keep_publishing, keep_compacting, keep_indexing, keep_collecting)
