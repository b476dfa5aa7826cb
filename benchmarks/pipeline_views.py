"""Views that follow the changes of their inputs, beside the same views computed as a whole.

`python -m benchmarks.pipeline_views [rows ...] [--rounds N] [--spark]` (100,000 1,000,000 10,000,000; 3): orders of a
tenth as many customers; ten orders change and are published, then each view is made both ways, in turns, in this
process. The view of a whole computation is another table of the same SQL. `indexed`: with an index on the orders'
customer. With `--spark` a warm session runs the SQL, and only the incremental way of indexed tables is measured.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measure import Figure, Report, measure, median
from benchmarks.pipeline import session
from headwater.catalog import Catalog
from headwater.pipeline.facts import moment_of
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.keeping import index
from headwater.pipeline.view_tables import remember
from headwater.pipeline.views import ViewMoment, as_a_whole, make_view
from headwater.work import HERE, Runner, SparkRunner

SCHEMA = {"id": "bigint", "customer": "bigint", "total": "double", "note": "string"}
INPUTS = ("raw.customers", "raw.orders")
VIEWS = {
    "sum by customer": "SELECT customer, sum(total) AS spent, count(*) AS n FROM raw.orders GROUP BY customer",
    "join and sum": "SELECT o.customer, c.city, sum(total) AS spent FROM raw.orders o "
    "JOIN raw.customers c ON o.customer = c.id GROUP BY ALL",
}
CHANGED = 10


class Shop:
    """Orders and customers in a catalog of its own, with a view of each kind for each way."""

    def __init__(self, folder: Path, rows: int, runner: Runner) -> None:
        self.runner = runner
        self.rows, self.random = rows, np.random.default_rng(5)
        self.catalog = Catalog(str(folder / f"lake-{rows}"), impl="metastore")
        self.orders = self.catalog.create_stream_table("raw.orders", SCHEMA, keys=["id"])
        people = {"id": "bigint", "city": "string"}
        self.customers = self.catalog.create_stream_table("raw.customers", people, keys=["id"])
        self.orders.upsert(self._orders(np.arange(rows)))
        ids = np.arange(rows // 10)
        self.customers.upsert(pa.table({"id": ids, "city": pa.array(ids % 97).cast(pa.string())}))
        self.catalog.publish(list(INPUTS))

    def _orders(self, ids: np.ndarray) -> pa.Table:
        customers, totals = self.random.integers(0, self.rows // 10, len(ids)), self.random.random(len(ids))
        notes = pa.array(ids).cast(pa.string())
        return pa.table({"id": ids, "customer": customers, "total": totals, "note": notes})

    def change(self) -> None:
        self.orders.upsert(self._orders(self.random.choice(self.rows, CHANGED, replace=False)))
        self.orders.publish()

    def make(self, name: str, way: str) -> None:
        view, slot = ViewSpec(f"mart.{way} {name}".replace(" ", "_"), VIEWS[name], ("customer",)), self.catalog.slot
        at = self.catalog.at(slot)
        inputs = [each for each in INPUTS if each in view.sql]
        moment = ViewMoment(at, slot, inputs)
        said: list[str] = []
        if way == "whole":
            made = as_a_whole(self.catalog, view, moment, self.runner, False)
        else:
            made = make_view(self.catalog, view, moment, self.runner, said.append)
        assert not said, said
        self.catalog[view.name].publish()
        remember(made, view, {each: moment_of(at, each) for each in inputs})


def main(arguments: list[str]) -> None:
    rounds = int(arguments[arguments.index("--rounds") + 1]) if "--rounds" in arguments else 3
    sizes = [int(each) for each in arguments if each.isdigit() and int(each) > 1000] or [100_000, 1_000_000, 10_000_000]
    columns = ("orders", "view", "incremental, ms wall", "CPU", "whole, ms wall", "CPU", "whole / incremental")
    on_spark = "--spark" in arguments
    name, option = ("pipeline-views-spark", " --spark") if on_spark else ("pipeline-views", "")
    report = Report(name, f"python -m benchmarks.pipeline_views{option}", columns[:4] if on_spark else columns)
    runner: Runner = SparkRunner(session()) if on_spark else HERE
    folder = Path(tempfile.mkdtemp(prefix="headwater-views-"))
    try:
        for size in sizes:
            shop = Shop(folder, size, runner)
            for indexed in (True,) if on_spark else (False, True):
                if indexed:
                    index(None, shop.catalog, "raw.orders", "customer", "BTREE")
                for name in VIEWS:
                    _compare(report, shop, name, rounds, " (indexed)" if indexed else "")
    finally:
        shutil.rmtree(folder)
    report.write()


def _compare(report: Report, shop: Shop, name: str, rounds: int, told: str) -> None:
    ways = ("incremental",) if shop.runner.spark is not None else ("whole", "incremental")
    found: dict[str, list[Figure]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        if turn:
            shop.change()
        for way, figures in found.items():
            took = measure(lambda way=way: shop.make(name, way), 1)  # type: ignore[misc]
            if turn:
                figures.append(took)
    slices = median(found["incremental"])
    cells = f"{shop.rows:,}", name + told, f"{slices.wall_us / 1e3:.0f}", f"{slices.cpu_us / 1e3:.0f}"
    if "whole" not in found:
        report.add(*cells)
        return
    whole = median(found["whole"])
    report.add(
        *cells,
        f"{whole.wall_us / 1e3:.0f}",
        f"{whole.cpu_us / 1e3:.0f}",
        f"{whole.wall_us / slices.wall_us:.1f}x (CPU {whole.cpu_us / slices.cpu_us:.1f}x)",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
