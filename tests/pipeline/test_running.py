"""Running a pipeline: the result is what the source database holds, however its changes were delivered."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from headwater.catalog import Catalog
from headwater.cli.main import main
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.metastore import Metastore, Transaction
from headwater.pipeline import plan_pipeline, read_pipeline, run_pipeline, undo
from headwater.pipeline.lineage import downstream, latest, open_lineage, upstream
from headwater.pipeline.run_records import runs
from tests.children import PROCESSES
from tests.pipeline.shop import SPEND, Shop

pytest.importorskip("duckdb")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    sys.modules.pop("shop_features", None)


def run(shop: Shop, **options: Any) -> Any:
    return run_pipeline(read_pipeline(shop.file), **options)


def lake(shop: Shop) -> Catalog:
    return Catalog(str(shop.folder / "lake"))


def orders_in(rows: Any) -> list[dict[str, Any]]:
    found = [{**row, "total": f"{row['total']:.2f}"} for row in rows.to_pylist()]
    return sorted(found, key=lambda row: int(row["id"]))


def check(shop: Shop) -> None:
    """Every way to read agrees with the source."""
    catalog = lake(shop)
    orders = catalog["raw.orders"]
    assert orders_in(orders.to_arrow()) == shop.orders()
    assert orders_in(orders.serving.to_arrow()) == shop.orders()
    history = catalog["raw.orders__history"].to_arrow()
    still = history.filter(pc.is_null(history.column("valid_to"))).drop_columns(["valid_from", "valid_to"])
    assert orders_in(still) == shop.orders()
    spent = catalog["mart.spend"].serving.to_arrow().to_pylist()
    assert sorted((r["customer"], f"{r['spent']:.2f}", r["orders"]) for r in spent) == shop.spend()
    assert orders.verify() == []


def test_the_tables_and_the_view_follow_the_source_however_its_changes_come(shop: Shop) -> None:
    kept: list[dict[str, Any]] = []
    for _ in range(4):
        events = shop.change(25)
        again = shop.random.sample(kept, min(len(kept), 5))
        delivered = [*events, *again]
        shop.random.shuffle(delivered)
        half = len(delivered) // 2
        shop.deliver(delivered[:half])
        shop.deliver(delivered[half:])
        kept += events
        run(shop)
        check(shop)


def test_a_second_run_finds_nothing_new_and_writes_nothing(shop: Shop) -> None:
    shop.deliver(shop.change(10))
    shop.products([{"sku": "a", "title": "Lamp", "text": "a bright lamp"}])
    first = run(shop)
    assert {report.job for report in first.reports} == {"ingest", "publish", "index", "view"}
    slot = lake(shop).slot
    again = run(shop)
    assert (again.plan.steps, again.reports) == ((), ())
    assert lake(shop).slot == slot + 1, "but the record of the run"


def test_a_view_whose_inputs_changed_and_whose_rows_did_not_is_not_computed_twice(shop: Shop) -> None:
    (event, *_) = shop.change(1)
    shop.deliver([event])
    run(shop)
    note = {**event["after"], "note": "only this", "updated_at": 99}
    shop.deliver([{"op": "u", "before": event["after"], "after": note, "source": {"lsn": 99}}])
    version = lake(shop)["mart.spend"].published.version
    assert [step.do for step in run(shop).plan.steps] == ["ingest", "publish", "view"]
    assert lake(shop)["mart.spend"].published.version == version
    assert run(shop).plan.steps == ()


def test_a_plan_changes_nothing_and_is_carried_out_by_its_id_or_not_at_all(shop: Shop) -> None:
    shop.deliver(shop.change(5))
    pipeline = read_pipeline(shop.file)
    catalog, plan = plan_pipeline(pipeline)
    assert [step.do for step in plan.steps] == ["create", "ingest", "publish", "create", "view"]
    assert not catalog.is_there
    assert plan_pipeline(pipeline)[1].id == plan.id
    shop.deliver(shop.change(5))
    with pytest.raises(ConcurrentModificationError, match="does not hold any more"):
        run_pipeline(pipeline, plan_id=plan.id)
    assert not lake(shop).is_there
    assert run_pipeline(pipeline, plan_id=plan_pipeline(pipeline)[1].id).reports


def test_only_what_is_selected_is_done(shop: Shop) -> None:
    shop.deliver(shop.change(5))
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    assert run(shop, select=["raw.products"]).plan.tables == ("raw.products",)
    assert "raw.orders" not in lake(shop)
    with pytest.raises(InvalidInputError, match="not a table or view"):
        run(shop, select=["raw.unknown"])


def test_a_full_refresh_makes_a_table_anew_from_its_files(shop: Shop) -> None:
    shop.deliver(shop.change(20))
    run(shop)
    changed = shop.file.read_text().replace('keys = ["id"]', 'keys = ["id", "customer"]')
    shop.file.write_text(changed)
    with pytest.raises(InvalidInputError, match=r"--full-refresh raw\.orders"):
        run(shop)
    run(shop, full_refresh=["raw.orders"])
    assert lake(shop)["raw.orders"].definition.keys == ("id", "customer")
    shop.file.write_text(changed.replace('keys = ["id", "customer"]', 'keys = ["id"]'))
    run(shop, full_refresh=["raw.orders"])
    check(shop)


def test_rows_that_fail_an_expectation_are_counted_dropped_or_refuse_the_file(shop: Shop) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "customer": 1, "total": "-1.00", "note": None, "updated_at": 1},
        {"id": 2, "customer": None, "total": "1.00", "note": None, "updated_at": 1},
        {"id": 3, "customer": 1, "total": "1.00", "note": None, "updated_at": 1},
    ]
    shop.deliver([{"op": "c", "before": None, "after": row} for row in rows])
    report = next(each for each in run(shop).reports if each.job == "ingest")
    assert (report.rows, report.quarantined, dict(report.checks)) == (2, 1, {"positive": 1, "has_customer": 1})
    assert lake(shop)["raw.orders"].quarantine().column("reason").to_pylist() == ["check:has_customer"]
    text = shop.file.read_text()
    shop.file.write_text(text.replace("expect_or_fail = {}", 'expect_or_fail = { small = "total < 100" }'))
    shop.deliver([{"op": "c", "before": None, "after": {**rows[2], "id": 4, "total": "500.00"}}])
    before = lake(shop)["raw.orders"].position
    with pytest.raises(InvalidInputError, match="'small'"):
        run(shop)
    assert lake(shop)["raw.orders"].position == before


def test_a_table_follows_its_file_new_columns_properties_and_functions(shop: Shop) -> None:
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright"}, {"sku": "b", "title": "Bed", "text": "soft"}])
    run(shop)
    text = shop.file.read_text()
    text = text.replace('version = "1"', 'version = "2"').replace("note STRING,", "note STRING, size INT,")
    shop.file.write_text(text)
    steps = [(step.do, step.table) for step in run(shop).plan.steps]
    assert ("alter", "raw.products") in steps
    assert ("alter", "raw.orders") in steps
    assert ("backfill", "raw.products") in steps
    assert lake(shop)["raw.products"].stale() == {"embedding": 0}
    assert "size" in lake(shop)["raw.orders"].schema.names
    assert run(shop).plan.steps == ()


def test_each_published_version_says_in_its_commit_what_it_comes_from(shop: Shop) -> None:
    path = shop.deliver(shop.change(5))
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    done = run(shop)
    catalog = lake(shop)
    node = upstream(catalog, "mart.spend")
    assert node.origin is not None
    assert node.origin.run["run"] == done.id
    assert [each.table for each in node.related] == ["raw.orders"]
    orders = node.related[0].origin
    assert orders is not None
    assert orders.sources[0]["files"] == [str(path)]
    assert node.origin.inputs["raw.orders"] == {"position": orders.position, "version": orders.version}
    assert [each.table for each in downstream(catalog, "raw.orders").related] == ["mart.spend"]
    products = latest(catalog, "raw.products")
    assert products is not None
    assert products.functions["embedding"]["function"] == "shop_features:embed"
    events = open_lineage(catalog)
    spend = next(event for event in events if event["outputs"][0]["name"] == "mart.spend")
    assert json.loads(json.dumps(spend))["inputs"][0]["name"] == "raw.orders"
    assert spend["job"]["facets"]["sql"]["query"].startswith("SELECT customer")


def test_an_undone_file_is_as_if_it_had_never_come_and_the_view_follows(shop: Shop) -> None:
    shop.deliver(shop.change(10))
    run(shop)
    before, spend = shop.orders(), lake(shop)["mart.spend"].to_arrow().sort_by("customer")
    wrong = shop.deliver(shop.change(10), "wrong.json")
    run(shop)
    check(shop)
    undo(None, lake(shop), "raw.orders", "orders_cdc", str(wrong))
    assert orders_in(lake(shop)["raw.orders"].serving.to_arrow()) == before
    wrong.unlink()
    assert [step.do for step in run(shop).plan.steps] == ["view"]
    assert lake(shop)["mart.spend"].serving.to_arrow().sort_by("customer") == spend


def test_a_schema_is_taken_from_the_first_files_and_no_file_is_no_error(shop: Shop) -> None:
    said: list[str] = []
    plan = run_pipeline(read_pipeline(shop.file), say=said.append).plan
    assert ({step.table for step in plan.steps}, plan.waiting) == ({"raw.orders", "mart.spend"}, ("raw.products",))
    assert any(text.startswith("raw.products waits: it has no schema") for text in said)
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright", "size": None}])
    run(shop)
    shop.products([{"sku": "b", "title": "Bed", "text": "soft", "size": 3}])
    run(shop)
    assert lake(shop)["raw.products"].schema.names == ["sku", "title", "text", "size"]


def test_columns_of_the_first_files_have_room_for_the_values_of_later_ones(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        """
        pipeline = { name = "p", catalog = "lake" }
        source = [{ name = "s", path = "*.json", format = "debezium", into = "raw.t" }]
        [table."raw.t"]
        keys = ["id"]
        sequence_by = ["_lsn"]
        """
    )
    kind = {"field": "exact", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
    row = {"type": "struct", "fields": [{**kind, "parameters": {"scale": "2"}}]}
    schema = {"type": "struct", "fields": [{**row, "field": name} for name in ("before", "after")]}

    def deliver(name: str, id: int, total: float, exact: str) -> None:
        event = {"op": "c", "after": {"id": id, "total": total, "exact": exact}, "source": {"lsn": id}}
        (tmp_path / name).write_text(json.dumps({"schema": schema, "payload": event}) + "\n")

    (tmp_path / "0.json").write_text("")  # tells nothing, and is no error
    assert run_pipeline(read_pipeline(tmp_path / "p.toml")).plan.waiting == ("raw.t",)
    deliver("1.json", 1, 9.5, "ew==")
    deliver("2.json", 2, 1234.567, "dzWUAA==")
    done = run_pipeline(read_pipeline(tmp_path / "p.toml"))
    assert [report.quarantined for report in done.reports if report.job == "ingest"] == [0]
    table = Catalog(str(tmp_path / "lake"))["raw.t"]
    found = sorted((row["id"], row["total"], str(row["exact"])) for row in table.to_arrow().to_pylist())
    assert found == [(1, 9.5, "1.23"), (2, 1234.567, "20000000.00")]


def test_a_view_that_cannot_be_run_names_itself_and_reaches_no_file(shop: Shop) -> None:
    shop.deliver(shop.change(30))
    (shop.folder / "secret.csv").write_text("a\n1\n")
    text = shop.file.read_text()
    stolen = f"SELECT a AS customer FROM raw.orders, '{shop.folder}/secret.csv'"
    for sql, told in (
        (stolen, r"mart\.spend cannot be run"),
        ("SELECT customer FROM raw.orders x y", r'\[view\."mart\.spend"\]: syntax error'),
        (f"SELECT a AS customer FROM raw.orders, `{shop.folder}/secret.csv`", r"mart\.spend cannot be run"),
        ('SELECT customer, count("note") AS n FROM raw.orders GROUP BY customer', "write `note` for the column"),
    ):
        shop.file.write_text(text.replace(SPEND, sql.replace('"', r"\"")))
        with pytest.raises(InvalidInputError, match=told):
            run(shop)
    shop.file.write_text(text.replace(" GROUP BY customer", " GROUP BY customer, note"))
    with pytest.raises(InvalidInputError, match="tell its rows apart"):
        run(shop)


def run_and_die(file: str, step: int) -> None:
    """Run a pipeline in a process of its own, which is killed before its commit number `step`."""
    left, commit = [step], Metastore._commit

    def dying(self: Metastore, tx: Transaction) -> int:
        if not tx.draft.empty:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return commit(self, tx)

    Metastore._commit = dying  # type: ignore[method-assign]
    run_pipeline(read_pipeline(file))


def test_a_run_that_is_killed_before_any_of_its_commits_is_finished_by_the_next(shop: Shop) -> None:
    shop.deliver(shop.change(15))
    shop.deliver(shop.change(15))
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    ended = []
    for step in (1, 3, 4, 6, 7, 9):
        process = PROCESSES.Process(target=run_and_die, args=(str(shop.file), step))
        process.start()
        process.join()
        ended.append(process.exitcode)
        shop.deliver(shop.change(5))
    assert ended.count(-signal.SIGKILL) >= 3
    run(shop)
    check(shop)
    assert run(shop).plan.steps == ()


def test_each_pipeline_has_the_modules_beside_it(tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "wording.py").write_text(
            f"def said(words):\n    return [f'{name} {{word}}' for word in words.to_pylist()]\n"
        )
        (folder / "rows.jsonl").write_text('{"id": 1, "word": "a"}\n')
        (folder / "p.toml").write_text(
            """
            pipeline = { name = "p", catalog = "lake" }
            source = [{ name = "s", path = "rows.jsonl", into = "raw.t" }]
            [table."raw.t"]
            keys = ["id"]
            [table."raw.t".columns.told]
            function = "wording:said"
            inputs = ["word"]
            type = "string"
            version = "1"
            """
        )
        assert main(["run", str(folder / "p.toml")]) == 0
        assert Catalog(str(folder / "lake"))["raw.t"].serving.to_arrow()["told"].to_pylist() == [f"{name} a"]


def test_a_run_takes_all_files_of_a_table_with_lateness_as_one_batch_and_warns_of_late_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "pipeline.toml").write_text(
        '[pipeline]\nname = "late"\ncatalog = "./lake"\n\n'
        '[[source]]\nname = "log"\npath = "in/*.jsonl"\ninto = "raw.t"\n\n'
        '[table."raw.t"]\nschema = "id BIGINT, at BIGINT, v STRING"\nkeys = ["id"]\nsequence_by = ["at"]\n'
        'lateness = "10"\n\n[publish]\ntables = ["raw.t"]\n'
    )
    said: list[str] = []

    def deliver(name: str, *rows: dict[str, Any]) -> Any:
        (tmp_path / "in" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def go() -> Any:
        said.clear()
        return run_pipeline(read_pipeline(tmp_path / "pipeline.toml"), say=said.append)

    deliver("a", {"id": 1, "at": 100, "v": "x"})
    deliver("b", {"id": 2, "at": 1, "v": "x"})
    go()
    table = Catalog(str(tmp_path / "lake"))["raw.t"]
    assert (table.count(), len({delta.txn for delta in table.deltas()})) == (2, 1)
    assert not any("warning" in text for text in said)
    deliver("c", {"id": 3, "at": 1, "v": "x"}, {"id": 1, "at": 99, "v": "older"})
    done = go()
    assert [each.too_late for each in done.reports] == [1, 1]
    warnings = [text for text in said if text.startswith("warning: raw.t: 1 of 2 rows")]
    assert [text.split(" were ")[1].split(":")[0] for text in warnings] == ["too late", "too late", "late"]


def test_a_source_whose_file_cannot_be_taken_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    text = '[pipeline]\nname = "two"\ncatalog = "./lake"\nengine = "embedded"\n'
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        text += f'[[source]]\nname = "{name}"\npath = "{name}/*.json"\ninto = "raw.{name}"\n'
        text += f'[table."raw.{name}"]\nschema = "id BIGINT NOT NULL"\nkeys = ["id"]\n'
    (tmp_path / "a" / "1.json").write_bytes(b'{"id": "\xff"}\n')
    (tmp_path / "a" / "2.json").write_text('{"id": 2}\n')
    (tmp_path / "b" / "1.json").write_text('{"id": 3}\n')
    (tmp_path / "pipeline.toml").write_text(text)
    lake = Catalog(str(tmp_path / "lake"))
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"a/1\.json' is not UTF-8"):
            run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
        assert [row["id"] for row in lake["raw.b"].serving.to_arrow().to_pylist()] == [3]
        assert lake["raw.a"].count() == 0  # a later file of the source waits for its turn
        record = runs(lake)[0]
        assert (record["state"], "1.json" in record["error"]) == ("failed", True)
    (tmp_path / "a" / "1.json").write_text('{"id": 1}\n')
    run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
    assert sorted(row["id"] for row in lake["raw.a"].serving.to_arrow().to_pylist()) == [1, 2]
