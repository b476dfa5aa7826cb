"""Headwater in one minute: `python examples/demo.py [folder]`.

A small shop in a folder of its own (never in one that is there, and nothing is removed): Debezium files of customers
and orders, and products with texts, go through a pipeline file, twice: everything, then what is new. Then it shows
what is there, where it comes from, searches, travels in time, and undoes a file. It runs on Spark on this machine, and
says which steps ran as which jobs; without PySpark or Java it runs embedded, and says so. At a terminal it ends with a
page in the browser, until Ctrl-C.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.errors import UnsupportedOperationError
from headwater.pipeline import Report, plan_pipeline, read_pipeline, run_pipeline, undo
from headwater.pipeline.lineage import drawing, upstream
from headwater.spark.engine_session import engine_session
from headwater.wording import many
from headwater.work import EMBEDDED
from headwater.work.tasks import PipelineEngine

FOLDER = "headwater-demo"
MASTER = "local[2]"
SHOP = Path(__file__).parent / "shop"
CUSTOMERS, ORDERS, PRODUCTS = 2_000, 20_000, 600
CITIES = ("Basel", "Graz", "Lyon", "Porto", "Turin", "Ghent")
KINDS = ("lamp", "chair", "desk", "shelf", "rug", "clock", "vase", "mirror")
LOOKS = ("oak", "brass", "linen", "glass", "walnut", "steel", "paper", "stone")
WORDS = ("warm light for reading", "soft and quiet", "fits small rooms", "made to last", "easy to move")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Progress:
    """Says what is being done, and how long it took."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._step = 0

    def __call__(self, text: str) -> None:
        self._step += 1
        print(f"\n[{time.perf_counter() - self._start:5.1f} s] {self._step}. {text}", flush=True)


class Shop:
    """The shop's database, as far as its change events tell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.random = random.Random(7)
        self.log = itertools.count(1)
        self.orders: dict[int, dict[str, Any]] = {}

    def write(self, name: str, lines: Iterable[dict[str, Any]]) -> Path:
        path = self.folder / "landing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def event(self, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
        return {"op": op, "before": before, "after": after, "source": {"lsn": next(self.log)}}

    def customers(self) -> list[dict[str, Any]]:
        rows = [{"id": n, "name": f"customer {n}", "city": self.random.choice(CITIES)} for n in range(CUSTOMERS)]
        return [self.event("r", None, row) for row in rows]

    def order(self, id: int, at: datetime, status: str = "new") -> dict[str, Any]:
        return {
            "id": id,
            "customer": self.random.randrange(CUSTOMERS) if id % 5_000 else None,
            "sku": f"P{self.random.randrange(PRODUCTS):04d}",
            "total": f"{self.random.randrange(500, 50_000) / 100:.2f}",
            "status": status,
            "updated_at": at.isoformat(),
        }

    def first_orders(self) -> list[dict[str, Any]]:
        self.orders = {n: self.order(n, START + timedelta(minutes=n)) for n in range(1, ORDERS + 1)}
        return [self.event("c", None, row) for row in self.orders.values()]

    def later_orders(self) -> list[dict[str, Any]]:
        """Updates, deletes, new orders, an event that comes after a newer one, and one that is far too late."""
        day = START + timedelta(days=20)
        found = []
        for id in self.random.sample(sorted(self.orders), 500):
            new = {**self.orders[id], "status": "paid", "updated_at": (day + timedelta(seconds=id)).isoformat()}
            found.append(self.event("u", self.orders[id], new))
        for id in range(10, 60):
            gone = {**self.orders[id], "updated_at": (day + timedelta(days=1)).isoformat()}
            found.append(self.event("d", gone, None))
        found += [self.event("c", None, self.order(ORDERS + n, day + timedelta(minutes=n))) for n in range(1, 201)]
        old = {**self.orders[10], "status": "late", "updated_at": (day - timedelta(days=1)).isoformat()}
        lost = {**self.orders[11], "status": "too late", "updated_at": START.isoformat()}
        return [*found, self.event("u", None, old), self.event("u", None, lost)]

    def products(self, first: int, last: int) -> list[dict[str, Any]]:
        found = []
        for n in range(first, last):
            title = f"{LOOKS[n % len(LOOKS)]} {KINDS[n // len(LOOKS) % len(KINDS)]}"
            text = f"{self.random.choice(WORDS)}, {self.random.choice(WORDS)}"
            found.append({"sku": f"P{n:04d}", "title": title, "text": text})
        return found


def show_reports(reports: Iterable[Report]) -> None:
    for each in reports:
        for report in each.parts or (each,):
            told = {name: getattr(report, name) for name in ("files", "quarantined", "late", "position", "version")}
            counts = ", ".join(f"{name} {value:,}" for name, value in told.items() if value)
            print(f"    {report.job:9}{report.table:15}{report.rows:>7,} rows  {counts}")
        if each.where is not None:
            spark = f", {many(each.where.jobs, 'job')}, {many(each.where.tasks, 'task')}" if each.where.tasks else ""
            print(f"    {'':9}ran: {each.where.place}{spark}")


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """Send what this process and those that it starts here write to stderr to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def spark_or_none(log: Path) -> Iterator[Any]:
    """A Spark session for the whole demo; None, with a line that says why, where PySpark or Java is missing.

    `log`: a file for what Spark's JVM prints, which would stand between the steps.
    """
    engine = PipelineEngine(master=MASTER).chosen(None, None, os.environ)
    with ExitStack() as stack:
        spark = None
        try:
            if engine.is_spark:
                with stderr_in(log):
                    spark = stack.enter_context(engine_session(engine, say=lambda text: print(f"    {text}")))
        except UnsupportedOperationError as missing:
            print(f"    embedded, in this process, without Spark: {missing}")
        yield spark


def run(folder: Path, spark: Any) -> None:
    pipeline = read_pipeline(folder / "pipeline.toml")
    if spark is None:
        pipeline = replace(pipeline, engine=PipelineEngine(EMBEDDED))
    _, plan = plan_pipeline(pipeline)
    for step in plan.steps:
        print(f"    will {step.do:9}{step.table:15}{step.why}")
    done = run_pipeline(pipeline, spark, plan_id=plan.id)
    show_reports(done.reports)
    print(f"    {'nothing was new' if not plan.steps else f'plan {plan.id} done'} in {done.seconds:.1f} s")


def show_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        told = {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in row.items()}
        print("    " + "  ".join(f"{name}={value}" for name, value in told.items()))


def search(lake: Catalog) -> None:
    products = lake["raw.products"]
    embed = importlib.import_module("features").embed  # as the pipeline does
    wanted = embed(pa.array(["oak desk"]), pa.array(["fits small rooms"]))[0]
    columns = ["sku", "title", "text"]
    show_rows(products.search(vector=wanted, column="embedding", k=3, columns=[*columns, "_distance"]).to_pylist())
    show_rows(products.search(text="reading", column="text", k=3, columns=[*columns, "_score"]).to_pylist())


PAGE = "t/mart/spend?view=lineage"
"""The page to look at first: where the spending of each customer comes from."""
SERVE = """
Serve the catalog:
    {headwater} serve {folder}/lake
and look at http://127.0.0.1:8080/{page}
"""
NEXT = """
Three things to try:
    {headwater} search -c {folder}/lake raw.products --text reading
    {headwater} head -c {folder}/lake raw.orders__quarantine
    {headwater} query -c {folder}/lake "SELECT * FROM mart.spend LIMIT 5"
"""


def program() -> str:
    """Return `headwater` as this shell can call it."""
    own = Path(sys.executable).with_name("headwater")
    if shutil.which("headwater") or not own.exists():
        return "headwater"
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)


def serve(folder: Path) -> None:
    """Serve the catalog of the demo until Ctrl-C, for a person at a terminal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "headwater", "serve", str(folder / "lake"), "--port", str(port)]
    with subprocess.Popen(
        [*command, "--no-access-log"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        with suppress(KeyboardInterrupt):
            if server.stdout.readline():  # it answers
                print(f"\nThe page, until you press Ctrl-C: http://127.0.0.1:{port}/{PAGE}", flush=True)
            server.wait()


def own_folder(given: str | None) -> Path:
    """A new folder: the one that was given, or the first of headwater-demo, headwater-demo-2, ... that is not there."""
    names = [given] if given else (FOLDER if n == 1 else f"{FOLDER}-{n}" for n in itertools.count(1))
    for name in names:
        try:
            Path(name).mkdir(parents=True)
        except FileExistsError:
            continue
        return Path(name)
    sys.exit(f"{given} exists. The demo writes only to a folder of its own: give one that is not there yet.")


def main(given: str | None = None) -> Catalog:
    folder = own_folder(given)
    say = Progress()
    say("Spark starts on this machine")
    with spark_or_none(folder / "spark.log") as spark:
        lake = tour(folder, say, spark)
    say("Done")
    told = {"folder": folder, "headwater": program(), "page": PAGE}
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not at_terminal:
        print(SERVE.format(**told), end="")
    print(NEXT.format(**told), end="")
    if at_terminal:
        serve(folder)
    return lake


def tour(folder: Path, say: Progress, spark: Any) -> Catalog:
    say(f"A shop in {folder}: a pipeline file, and Debezium files such as a database's log gives")
    for name in ("pipeline.toml", "features.py"):
        shutil.copy(SHOP / name, folder / name)
    shop = Shop(folder)
    shop.write("customers/0001.json", shop.customers())
    shop.write("orders/0001.json", shop.first_orders())
    shop.write("products/0001.json", shop.products(0, PRODUCTS))
    say("The first run takes everything")
    run(folder, spark)
    lake = Catalog(str(folder / "lake"))
    first = lake.slot
    say("Orders are paid, deleted and added, two events come late, a product gets a new text: a run takes only these")
    shop.write("orders/0002.json", shop.later_orders())
    shop.write("products/0002.json", [{"sku": "P0001", "title": "brass lamp", "text": "reading light, made to last"}])
    run(folder, spark)
    say("A third run finds nothing to do")
    run(folder, spark)
    say("What is there, and its versions")
    print("    " + lake.tree().replace("\n", "\n    "))
    for name in ("raw.orders", "raw.products", "mart.spend"):
        table = lake[name]
        version = table.published.version
        print(f"    {name}: {len(table):,} rows at position {table.position}, published as version {version}")
    reasons = Counter(lake["raw.orders"].quarantine().column("reason").to_pylist())
    print("    in the quarantine of raw.orders: " + ", ".join(f"{count} {name}" for name, count in reasons.items()))
    say("Where mart.spend comes from, as its commit says")
    print("    " + "\n    ".join(drawing(upstream(lake, "mart.spend"))))
    say("The products nearest to an oak desk for small rooms, and the best for 'reading'")
    sys.path.insert(0, str(folder))
    search(lake)
    say("The catalog as it was after the first run")
    for when, then in (("then", lake.at(first)), ("now", lake)):
        paid = then["raw.orders"].to_arrow(columns=["id"], filter="status = 'paid'").num_rows
        print(f"    {when}: {len(then['raw.orders']):,} orders, {paid:,} of them paid")
    say("A wrong file is loaded, and undone: no row of it is left")
    rows = [{**row, "status": "wrong"} for row in itertools.islice(shop.orders.values(), 1_000, 3_000)]
    late = (START + timedelta(days=22)).isoformat()
    wrong = shop.write("orders/0003.json", [shop.event("u", None, {**row, "updated_at": late}) for row in rows])
    run(folder, spark)
    show_reports([undo(spark, lake, "raw.orders", "orders_cdc", str(wrong))])
    wrong.rename(wrong.with_suffix(".wrong"))
    run(folder, spark)
    wrong_rows = lake["raw.orders"].to_arrow(columns=["id"], filter="status = 'wrong'").num_rows
    print(f"    orders of the wrong file now: {wrong_rows}")
    return lake


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
