"""The verbs of the pipeline on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.cli import main
from tests.pipeline.shop import Shop

pytest.importorskip("duckdb")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    made.deliver(made.change(10))
    made.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    yield made
    sys.modules.pop("shop_features", None)


def test_a_plan_is_shown_run_by_its_id_followed_and_undone(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: str) -> Any:
        assert main(list(arguments)) == 0
        return json.loads(capsys.readouterr().out)

    file, lake = str(shop.file), str(shop.folder / "lake")
    plan = call("run", file, "--plan", "--json")
    assert main(["run", file, "--plan"]) == 0
    assert f"plan {plan['id']}" in capsys.readouterr().out
    done = call("run", file, "--plan-id", plan["id"], "--json")
    assert {report["job"] for report in done["reports"]} == {"ingest", "publish", "index", "view"}
    assert main(["run", file, "--plan-id", plan["id"]]) == 4
    capsys.readouterr()
    assert main(["run", file]) == 0
    assert "Nothing was new" in capsys.readouterr().out
    found = call("lineage", lake, "mart.spend", "--json", "--open-lineage", str(shop.folder / "events.json"))
    assert found["related"][0]["table"] == "raw.orders"
    assert json.loads((shop.folder / "events.json").read_text().splitlines()[0])["eventType"] == "COMPLETE"
    assert main(["lineage", lake, "raw.orders", "--downstream"]) == 0
    assert "mart.spend" in capsys.readouterr().out
    undone = call("undo", lake, "raw.orders", "--source", "orders_cdc", "--yes", "--json")
    assert (undone["position"], undone["job"]) == (2, "undo")


def test_files_are_taken_published_and_kept_house_by_verbs_of_their_own(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, file = str(shop.folder / "lake"), str(shop.file)
    assert main(["run", file]) == 0
    more = shop.folder / "more.json"
    more.write_text('{"sku": "b", "title": "Bed", "text": "soft"}\n')
    for arguments, told in (
        (["ingest", lake, "raw.products", str(more), "--name", "more"], "1 row, 1 file"),
        (["ingest", lake, "raw.products", str(more), "--name", "more"], "1 skipped"),
        (["publish", lake, "raw.products", "raw.orders"], "raw.products: 1 row,"),
        (["backfill", lake, "raw.products"], "0 rows"),
        (["maintain", lake, "raw.products", "raw.orders"], "raw.orders"),
    ):
        capsys.readouterr()
        assert main(arguments) == 0
        assert told in capsys.readouterr().out
    assert main(["publish", lake]) == 5
    assert main(["run", str(shop.folder / "missing.toml")]) == 5


def test_refused_rows_are_shown_taken_again_by_a_mended_file_and_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> list[Any]:
        assert main([*arguments, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    def write(limit: int) -> str:
        file = tmp_path / "pipeline.toml"
        file.write_text(
            f"""[pipeline]\nname = "q"\ncatalog = "lake"\nengine = "embedded"
[[source]]\nname = "files"\npath = "in/*.json"\ninto = "raw.t"
[table."raw.t"]\nkeys = ["id"]\nexpect_or_drop = {{small = "n < {limit}"}}"""
        )
        return str(file)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1, "n": 1}\n{"id": 2, "n": 20}\n{"id": 3, "n": 300}\n')
    lake = str(tmp_path / "lake")
    call("run", write(10))
    shown = call("quarantine", lake, "raw.t")
    assert [row["reason"] for row in shown] == ["check:small"] * 2
    assert [row["row"] for row in shown] == ['{"id": 2, "n": 20}', '{"id": 3, "n": 300}']
    assert shown[0]["source"] == str(tmp_path / "in" / "1.json")
    assert call("quarantine", lake, "raw.t", "--retry")[0]["rows"] == 0
    assert main(["quarantine", lake, "raw.t", "--retry"]) == 0
    assert "--pipeline FILE judges" in capsys.readouterr().out
    done = call("quarantine", lake, "raw.t", "--retry", "--pipeline", write(100))[0]
    assert (done["rows"], done["quarantined"]) == (1, 1)
    assert main(["quarantine", lake, "raw.t", "--drop"]) == 2
    assert call("quarantine", lake, "raw.t", "--drop", "--yes", "--reason", "check:small") == [{"dropped": 1}]
    assert call("quarantine", lake, "raw.t") == []
    assert main(["quarantine", lake, "raw.t", "--retry", "--drop"]) == 5
    assert "Say one of" in capsys.readouterr().err
