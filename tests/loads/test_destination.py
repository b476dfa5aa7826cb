"""Headwater as a destination of dlt: each load package is one commit, taken once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dlt", reason="pip install 'headwater[dlt]'")

import dlt
from dlt.pipeline.exceptions import PipelineStepFailed

import headwater
from headwater import Catalog
from headwater.errors import InvalidInputError
from tests.loads.shop import events, forget, orders, pipeline, shop


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    return Catalog(str(tmp_path / "lake"))


def rows(lake: Catalog, name: str, *columns: str) -> list[Any]:
    found = lake[name].to_arrow(columns=list(columns)).to_pylist()
    return sorted(tuple(row.values()) if len(columns) > 1 else row[columns[0]] for row in found)


def test_a_package_is_one_commit_of_rows_state_and_published_versions(lake: Catalog, tmp_path: Path) -> None:
    pipeline(lake, tmp_path / "dlt").run(shop())
    assert [entry.message.split(" ")[0:2] for entry in lake.log(after=0)] == [["dlt", "load"]]
    assert lake["raw.orders"].definition.keys == ("id",)
    assert lake["raw.events"].definition.keys == ()
    assert rows(lake, "raw.orders", "id", "items") == [(id, '[{"sku":"P1"}]') for id in (1, 2, 3)]
    assert lake["raw.orders"].serving.count() == 3
    assert rows(lake, "raw._dlt_loads", "status") == [0]


@pytest.mark.parametrize("name", ["shop", "the boss's shop"])
def test_the_state_of_a_pipeline_comes_from_the_catalog_on_another_machine(
    lake: Catalog, tmp_path: Path, name: str
) -> None:
    for _ in range(3):
        forget(tmp_path / "dlt")
        pipeline(lake, tmp_path / "dlt", name).run(shop())
    assert rows(lake, "raw.orders", "id") == list(range(1, 10))
    assert rows(lake, "raw.events", "n") == list(range(1, 10)), "appended rows would show a batch that came twice"
    assert lake["raw._dlt_pipeline_state"].count() == 1


def test_a_package_that_is_completed_again_changes_nothing(
    lake: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlt.common.storages import LoadStorage

    def dies(self: object, load_id: str, aborted: bool) -> None:
        raise KeyboardInterrupt("after the commit, before dlt knows of it")

    with monkeypatch.context() as patched:
        patched.setattr(LoadStorage, "complete_load_package", dies)
        with pytest.raises(PipelineStepFailed):
            pipeline(lake, tmp_path / "dlt").run(shop())
    assert rows(lake, "raw.events", "n") == [1, 2, 3]
    slot = lake.slot
    pipeline(lake, tmp_path / "dlt").load()
    assert rows(lake, "raw.events", "n") == [1, 2, 3]
    assert lake["raw._dlt_loads"].count() == 1
    assert len(list(lake.log(after=slot))) == 0


def test_a_package_that_fails_leaves_nothing_of_any_table(lake: Catalog, tmp_path: Path) -> None:
    pipeline(lake, tmp_path / "dlt").run(shop())
    lake["raw.events"].set_properties({"contract": "freeze"})
    slot = lake.slot

    @dlt.resource(write_disposition="append", name="events")
    def wider() -> Any:
        yield [{"n": 100, "more": "x"}]

    forget(tmp_path / "dlt")
    with pytest.raises(PipelineStepFailed, match="more"):
        pipeline(lake, tmp_path / "dlt").run([orders, wider])
    assert lake.slot == slot
    lake["raw.events"].set_properties({"contract": "evolve"})
    pipeline(lake, tmp_path / "dlt").load()
    assert rows(lake, "raw.orders", "id") == [1, 2, 3, 4, 5, 6]
    assert ("x" in rows(lake, "raw.events", "n", "more")[-1]) is True


@dlt.resource(primary_key="id", write_disposition="merge", columns={"gone": {"hard_delete": True}})
def customers(given: Any) -> Any:
    yield given


def test_merges_replace_whole_rows_and_delete_what_is_marked(lake: Catalog, tmp_path: Path) -> None:
    run = pipeline(lake, tmp_path / "dlt").run
    run(customers([{"id": 1, "name": "Ada", "city": "Basel"}, {"id": 2, "name": "Bo", "gone": False}]))
    run(customers([{"id": 1, "name": "Ada L."}, {"id": 2, "gone": True}, {"id": 3, "name": "Cy", "age": 40}]))
    assert rows(lake, "raw.customers", "id", "name", "city", "age") == [(1, "Ada L.", None, None), (3, "Cy", None, 40)]


def test_of_two_rows_of_a_key_the_one_stands_that_dlt_would_keep(lake: Catalog, tmp_path: Path) -> None:
    @dlt.resource(primary_key="id", write_disposition="merge", columns={"at": {"dedup_sort": "desc"}})
    def readings() -> Any:
        yield [{"id": 1, "at": 9, "v": "newest"}, {"id": 1, "at": 5, "v": "older"}]

    pipeline(lake, tmp_path / "dlt").run(readings)
    assert rows(lake, "raw.readings", "v") == ["newest"]


def test_a_replace_with_a_key_writes_what_differs_and_without_one_all(lake: Catalog, tmp_path: Path) -> None:
    run = pipeline(lake, tmp_path / "dlt").run

    def load(rates: list[Any], notes: list[Any]) -> None:
        run(
            [
                dlt.resource(rates, name="rates", primary_key="c", write_disposition="replace"),
                dlt.resource(notes, name="notes", write_disposition="replace"),
            ]
        )

    load([{"c": "EUR", "r": 1}, {"c": "CHF", "r": 2}], [{"t": "a"}, {"t": "a"}])
    before = lake.slot
    load([{"c": "EUR", "r": 1}, {"c": "GBP", "r": 3}], [{"t": "b"}])
    assert rows(lake, "raw.rates", "c", "r") == [("EUR", 1), ("GBP", 3)]
    assert rows(lake, "raw.notes", "t") == ["b"]
    assert rows(lake.at(before), "raw.notes", "t") == ["a", "a"]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a merge key beside the primary key": (
        lambda: dlt.resource(
            [{"id": 1, "day": 1}],
            name="t",
            primary_key="id",
            merge_key="day",
            write_disposition={"disposition": "merge", "strategy": "delete-insert"},
        ),
        "merge key day",
    ),
    "history": (
        lambda: dlt.resource(
            [{"id": 1}], name="t", primary_key="id", write_disposition={"disposition": "merge", "strategy": "scd2"}
        ),
        "scd2",
    ),
    "a merge without a key": (
        lambda: dlt.resource([{"id": 1}], name="t", write_disposition="merge"),
        "primary",
    ),
    "an append to a table with keys": (
        lambda: dlt.resource([{"id": 1}], name="kept", write_disposition="append"),
        "write_disposition='merge'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_stream_table_cannot_do_is_refused_by_name(lake: Catalog, tmp_path: Path, case: str) -> None:
    lake.create_stream_table("raw.kept", {"id": "bigint"}, ["id"])
    slot = lake.slot
    make, said = REFUSED[case]
    with pytest.raises(Exception, match=said):
        pipeline(lake, tmp_path / "dlt").run(make())
    assert lake.slot == slot


def test_a_refresh_drops_its_tables_in_the_commit_that_loads_them_again(lake: Catalog, tmp_path: Path) -> None:
    one = pipeline(lake, tmp_path / "dlt")
    one.run(events())
    one.run(events(), refresh="drop_resources")
    assert rows(lake, "raw.events", "n") == [1, 2, 3]
    assert len(list(lake.log(after=0))) == 2


def test_a_pattern_that_names_all_tables_alike_is_refused(lake: Catalog) -> None:
    with pytest.raises(InvalidInputError, match=r"no {table}"):
        headwater.dlt_destination(lake, into="raw.all")
