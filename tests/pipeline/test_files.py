"""The pipeline file: variables, overlays, defaults, checks without data, tests of views, and the first file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headwater.cli import main
from headwater.errors import InvalidInputError
from headwater.pipeline import check_pipeline, first_file, parse_pipeline, read_pipeline, try_views

pytest.importorskip("duckdb")
TEXT = """
[pipeline]
name = "${WHO}"
catalog = "lake-${WHO}"
engine = "embedded"
[[source]]
name = "orders"
path = "${HOME_OF}/in/*.json"
into = "raw.orders"
[[source]]
name = "plain"
path = "plain/*.json"
into = "raw.plain"
[table]
contract = "freeze"
expect_or_drop = { known = "id > 0" }
[table."raw.orders"]
schema = "id BIGINT NOT NULL, sku STRING, total DECIMAL(12,2)"
keys = ["id"]
expect_or_drop = { dollars = "sku != '${WHO}'" }
[table."raw.own"]
contract = "evolve"
[view."mart.sales"]
sql = "SELECT sku, sum(total) AS sold FROM raw.orders GROUP BY sku"
keys = ["sku"]
[view."mart.best"]
sql = "SELECT sku FROM mart.sales WHERE sold > 10"
keys = ["sku"]
[env.prod.pipeline]
catalog = "s3://lake"
[env.prod.source.orders]
path = "s3://in/*.json"
[env.prod.table."raw.orders"]
contract = "discard"
"""
VARIABLES = {"WHO": "shop", "HOME_OF": "/data"}


def parse(text: str = TEXT, env: str | None = None) -> Any:
    return parse_pipeline(text, Path("."), env=env, environment=VARIABLES)


def test_variables_of_the_environment_are_put_into_texts_and_not_into_sql() -> None:
    found = parse()
    assert (found.name, found.catalog, found.sources[0].path) == ("shop", "lake-shop", "/data/in/*.json")
    assert found.table("raw.orders").checks[1].sql == "sku != '${WHO}'"
    with pytest.raises(InvalidInputError, match=r"\$\{WHO\} is not set: export WHO"):
        parse_pipeline(TEXT, Path("."))


def test_what_table_says_holds_for_every_table_unless_it_says_otherwise() -> None:
    found = parse()
    assert {spec.name: spec.properties["contract"] for spec in found.tables} == {
        "raw.orders": "freeze",
        "raw.plain": "freeze",
        "raw.own": "evolve",
    }
    assert [check.name for check in found.table("raw.orders").checks] == ["known", "dollars"]
    with pytest.raises(InvalidInputError, match=r"\[table\] has no 'schema'"):
        parse('[pipeline]\nname = "p"\ncatalog = "c"\n[table]\nschema = "id BIGINT"\n')


def test_an_overlay_is_laid_over_the_file_and_is_part_of_what_a_plan_is_about() -> None:
    found = parse(env="prod")
    assert (found.catalog, found.name) == ("s3://lake", "shop")
    assert [source.path for source in found.sources] == ["s3://in/*.json", "plain/*.json"]
    assert found.table("raw.orders").properties["contract"] == "discard"
    assert parse().digest != found.digest
    for text, why in (
        (TEXT, r"no \[env.prd\]. Did you mean 'prod'"),
        (TEXT + "[env.prd.source.nope]\npath = 'x'\n", "no source of that name"),
        (TEXT + "[env.prd.pipelin]\n", "Did you mean 'pipeline'"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            parse(text, "prd")


def test_a_check_finds_what_no_run_could_do_and_needs_no_catalog(tmp_path: Path) -> None:
    said: list[str] = []
    check_pipeline(parse(), said.append)
    assert said == []
    wrong = (("sum(total)", "sum(price)"), ('keys = ["sku"]\n[env', 'keys = ["no"]\n[env'), ("sold > 10", "sold >"))
    for old, new in wrong:
        with pytest.raises(InvalidInputError, match=r"mart\.(sales|best)"):
            check_pipeline(parse(TEXT.replace(old, new)))
    text = TEXT.replace("FROM mart.sales", "FROM other.table")
    check_pipeline(parse(text), said.append)
    assert "mart.best is not checked" in said[0]


CASES = """
[[test]]
name = "sums"
view = "mart.sales"
given."raw.orders" = [{id = 1, sku = "a", total = "5.00"}, {id = 2, sku = "a", total = "7.50"}, {id = 3, sku = "b"}]
expect = [{sku = "b"}, {sku = "a", sold = "12.50"}]
[[test]]
name = "of views before it"
view = "mart.best"
given."raw.orders" = [{id = 1, sku = "a", total = "11"}, {id = 2, sku = "b", total = "1"}]
expect = [{sku = "a"}]
[[test]]
name = "of given rows of a view"
view = "mart.best"
given."mart.sales" = [{sku = "z", sold = 100}]
expect = [{sku = "z"}]
[[test]]
name = "of nothing"
view = "mart.sales"
expect = []
"""


def test_views_are_tested_by_the_rows_of_the_file() -> None:
    assert [(each.name, each.passed, each.error) for each in try_views(parse(TEXT + CASES))] == [
        ("sums", True, None),
        ("of views before it", True, None),
        ("of given rows of a view", True, None),
        ("of nothing", True, None),
    ]
    broken = CASES.replace('"12.50"', '"12.51"').replace('sku = "z"}]\n[[', 'skuu = "z"}]\n[[')
    found = try_views(parse(TEXT + broken))
    assert [each.passed for each in found] == [False, True, False, True]
    assert str(found[0].lacks[0]["sold"]) == "12.51"
    assert str(found[0].extra[0]["sold"]) == "12.50"
    assert "no column 'skuu'" in str(found[2].error)
    with pytest.raises(InvalidInputError, match=r"'mart.seles' is not a view of this file\. Did you mean 'mart.sales'"):
        parse(TEXT + CASES.replace('view = "mart.sales"', 'view = "mart.seles"'))


def test_the_command_line_checks_tests_and_chooses_an_overlay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "pipeline.toml"
    file.write_text(TEXT + CASES)
    assert main(["run", str(file), "--check", "--env", "prod"]) == 0
    assert "can be run" in capsys.readouterr().out
    assert main(["test", str(file)]) == 0
    assert capsys.readouterr().out.count("passed") == 4
    file.write_text(TEXT + CASES.replace('"12.50"', '"12.51"'))
    assert main(["test", str(file), "--json"]) == 1
    assert [json.loads(line)["passed"] for line in capsys.readouterr().out.splitlines()] == [False, True, True, True]
    assert main(["run", str(file), "--check", "--env", "nope"]) == 5
    assert not (tmp_path / "lake-shop").exists()


def test_a_first_file_is_written_from_a_folder_can_be_checked_and_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("orders/1.json", '{"op": "c", "before": null, "after": {"id": 1, "total": 2.5, "tags": ["a"]}, "ts_ms": 5}\n'),
        ("Product List/p.csv", "sku,title\nP1,Lamp\nP2,Bed\n"),
        ("events/e.jsonl", '{"kind": "x", "at": "2026-01-01"}\n'),
    ):
        (tmp_path / "landing" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "landing" / name).write_text(text)
    assert main(["init", "pipeline", "--from", "landing"]) == 0
    found = read_pipeline("pipeline.toml")
    assert {spec.name: spec.keys for spec in found.tables} == {
        "raw.product_list": ("sku",),
        "raw.events": (),
        "raw.orders": ("id",),
    }
    assert {source.name: source.format for source in found.sources}["orders"] == "debezium"
    check_pipeline(found)
    assert main(["run", "pipeline.toml"]) == 0
    capsys.readouterr()
    assert main(["count", "lake", "raw.product_list"]) == 0
    assert capsys.readouterr().out == "2\n"
    assert main(["init", "pipeline", "--from", "landing"]) == 5
    assert "already" in capsys.readouterr().err
    for folder, why in (("nowhere", "no folder"), ("lake/.headwater", "no file that can be taken")):
        with pytest.raises(InvalidInputError, match=why):
            first_file(folder, tmp_path)


def test_a_first_file_of_a_database_names_it_and_holds_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = "mariadb://reader:hunter2@db.example.com/Shop%201"
    assert main(["init", "pipeline", "--from", address]) == 0
    assert "hunter2" not in Path("pipeline.toml").read_text()
    (source,) = read_pipeline("pipeline.toml").sources
    live: Any = source.live
    assert (source.name, source.into) == ("shop_1", "shop_1.{table}")
    assert (live.connector, live.host, live.port, live.user, live.database, live.password, live.transactions) == (
        "mysql", "db.example.com", 3306, "reader", "Shop 1", "env:SHOP_1_PASSWORD", True,
    )  # fmt: skip
    assert main(["run", "pipeline.toml", "--check"]) == 0
    for wrong, why in (
        ("redis://u@h/d", "not a database that a pipeline reads"),
        ("postgres://h/d", "postgres://USER@HOST:PORT/DATABASE"),
        ("postgres://u@h:x/d", "no port"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            first_file(wrong, tmp_path)


@pytest.mark.parametrize("name", ['q"uote', "back\\slash", "two\nlines", "a b", "x\x7fy"])
def test_names_of_folders_and_columns_stay_texts_of_a_first_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    column = 'id"]\non_failure = "x'
    (tmp_path / name / "a.json").write_text(json.dumps({column: 1, name: 2, "select": 3}) + "\n")
    text = first_file(tmp_path / name, tmp_path)
    made = tomllib.loads(text)
    assert made["source"][0]["path"] == f"{name}/*.json"
    assert "on_failure" not in made["pipeline"]
    assert all("on_failure" not in table for table in made["table"]["raw." + made["source"][0]["name"]])
