"""Live sources: rows of all tables and the offset in one commit, taken once whatever fails in between."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog import Catalog
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
)
from headwater.pipeline import plan_pipeline, run_pipeline, watch_pipeline
from headwater.pipeline.grammar import parse_pipeline
from headwater.pipeline.live import live_runs
from headwater.pipeline.live.live_runs import commit_batch
from headwater.pipeline.live.live_source import LiveBatch, LiveState, feeds, live_state, prepare
from headwater.pipeline.live.live_tables import RowsPart
from headwater.pipeline.run_records import runs
from tests.pipeline.listed_source import COLUMNS, TEXT, Listed, ListedReader, listed

FILES = """
[[source]]
name = "files"
path = "in/*.json"
into = "raw.files"
"""


def pair(number: int) -> dict[str, list[dict[str, Any]]]:
    return {"a": [{"id": number, "n": number}], "b": [{"id": number, "n": -number}]}


def rows(catalog: Catalog, name: str) -> list[tuple[int, int]]:
    return sorted((row["id"], row["n"]) for row in catalog[name].to_arrow().to_pylist())


def test_a_run_takes_until_it_is_caught_up_and_publishes_the_tables_that_the_source_made(tmp_path: Path) -> None:
    shop = Listed([pair(1), pair(2)])
    with listed(tmp_path, shop=shop) as pipeline:
        _, plan = plan_pipeline(pipeline)
        assert [(step.do, step.table, step.source) for step in plan.steps] == [("take", "raw.{table}", "shop")]
        assert "from its beginning" in plan.steps[0].why
        done = run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        assert rows(catalog, "raw.a") == [(1, 1), (2, 2)]
        assert catalog["raw.b"].serving.to_arrow().num_rows == 2
        assert [step.do for step in done.plan.steps] == ["take", "publish", "publish"]
        assert shop.acknowledged == [1, 2]
        assert live_state(catalog, "shop") == LiveState(2, ("line 1", "line 2"), ("raw.a", "raw.b"), 2)
        assert catalog["system.sources"].to_arrow().to_pylist() == [
            {"source": "shop", "kind": "listed", "shown": "the list shop", "into": "raw.{table}"}
        ]
        shop.batches.append(pair(3))
        run_pipeline(pipeline)
        assert shop.opened == [0, 2]
        assert [row["rows"] for row in runs(catalog)] == [2, 4]
        assert rows(catalog, "raw.b") == [(1, -1), (2, -2), (3, -3)]


def test_the_tables_of_a_batch_and_its_offset_are_in_one_commit(tmp_path: Path) -> None:
    with listed(tmp_path, shop=Listed([pair(1), pair(2)])) as pipeline:
        run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        for slot in range(1, catalog.slot + 1):
            at = catalog.at(slot)
            counts = [at[name].count() if name in at else 0 for name in ("raw.a", "raw.b")]
            assert counts == [live_state(at, "shop").offset or 0] * 2


@pytest.mark.parametrize("step", ["take", "commit", "acknowledge"])
def test_a_run_that_dies_at_any_step_takes_nothing_twice_and_loses_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The process ends here."""

    shop = Listed([pair(1), pair(2), pair(3)])
    spec = '[table."raw.{table}"]\nkeys = []\n'
    with listed(tmp_path, TEXT + spec, shop=shop) as pipeline:
        calls = iter((False, True))

        def dying(act: Any) -> Any:
            def acted(*args: Any) -> Any:
                is_now = next(calls, False)
                if is_now and step != "acknowledge":
                    raise Killed
                found = act(*args)
                if is_now:
                    raise Killed
                return found

            return acted

        with monkeypatch.context() as patch:
            if step == "commit":
                patch.setattr(live_runs, "commit_batch", dying(commit_batch))
            else:
                patch.setattr(ListedReader, step, dying(getattr(ListedReader, step)))
            with pytest.raises(Killed):
                run_pipeline(pipeline)
        run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        assert rows(catalog, "raw.a") == [(n, n) for n in (1, 2, 3)]
        assert catalog["raw.a"].position == 3


def test_of_two_that_take_from_one_source_the_second_commits_nothing(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    prepare(catalog, "shop", "listed", "a list", "raw.{table}")
    part = RowsPart("raw.a", [{"id": 1, "n": 1}], columns=COLUMNS)
    first = commit_batch(catalog, "shop", LiveState(), LiveBatch([part], 1))
    with pytest.raises(ConcurrentModificationError, match="Another run has taken from the source 'shop'"):
        commit_batch(catalog, "shop", LiveState(), LiveBatch([part], 1))
    assert catalog["raw.a"].count() == 1
    assert commit_batch(catalog, "shop", first.state, LiveBatch([], 2)).state == LiveState(2, (), ("raw.a",), 2)


def test_a_source_that_fails_is_in_the_record_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 7}\n')
    other = '[[source]]\nname = "other"\nlisted = "other"\ninto = "o.{table}"\n'
    lists = {"shop": Listed([pair(1), pair(2)], fails_at=1), "other": Listed([pair(5)])}
    with listed(tmp_path, TEXT + other + FILES, **lists) as pipeline:
        with pytest.raises(ServiceUnavailableError, match="The list cannot be read"):
            run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        assert (rows(catalog, "raw.a"), rows(catalog, "o.a")) == ([(1, 1)], [(5, 5)])
        assert catalog["raw.files"].serving.to_arrow().num_rows == 1
        (record,) = runs(catalog)
        assert (record["state"], record["error"]) == ("failed", "The list cannot be read.")


def test_each_source_that_fails_is_in_the_record_also_of_a_run_that_then_fails_itself(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_bytes(b'{"id": "\xff"}\n')
    other = '[[source]]\nname = "other"\nlisted = "other"\ninto = "o.{table}"\n'
    lists = {"shop": Listed([pair(1)], fails_at=0), "other": Listed([pair(5)], fails_at=0, why="No such server.")}
    said: list[str] = []
    with listed(tmp_path, TEXT + other + FILES, **lists) as pipeline:
        with pytest.raises(LanceNamespaceError):
            run_pipeline(pipeline, say=said.append)
        (record,) = runs(Catalog(str(tmp_path / "lake")))
    first, second, of_the_file = record["error"].split("; ", 2)
    assert (first, second, "1.json" in of_the_file) == ("The list cannot be read.", "No such server.", True)
    assert [each for each in said if "failed" in each][:2] == [
        "take shop failed: The list cannot be read.",
        "take other failed: No such server.",
    ]


def test_a_resident_run_keeps_its_reader_and_opens_it_again_after_a_failure(tmp_path: Path) -> None:
    shop = Listed([pair(1)])
    stop, said = threading.Event(), list[str]()
    with listed(tmp_path, shop=shop) as pipeline:
        rounds = watch_pipeline(pipeline, stop, 0.01, say=said.append)
        next(rounds)
        shop.batches.append(pair(2))
        next(rounds)
        assert shop.opened == [0]
        shop.fails_at, shop.batches = 2, [*shop.batches, pair(3)]
        mend = threading.Timer(0.5, lambda: setattr(shop, "fails_at", None))
        mend.start()
        while len(shop.acknowledged) < 3:
            next(rounds)
        mend.join()
        stop.set()
    catalog = Catalog(str(tmp_path / "lake"))
    assert catalog["raw.a"].serving.to_arrow().num_rows == 3
    assert [text for text in said if "cannot be read" in text] == [
        "take shop failed and is tried again: The list cannot be read."
    ]
    assert shop.opened[-1] == 2


def test_a_first_copy_that_was_broken_off_is_begun_again_with_new_tables(tmp_path: Path) -> None:
    shop = Listed([pair(1), pair(2), pair(3)], partial_until=2, fails_at=1)
    with listed(tmp_path, shop=shop) as pipeline:
        with pytest.raises(ServiceUnavailableError):
            run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        assert live_state(catalog, "shop").is_partial
        shop.fails_at, shop.batches = None, [pair(2), pair(3)]  # row 1 was deleted at the source meanwhile
        run_pipeline(pipeline)
        assert (rows(catalog, "raw.a"), shop.opened) == ([(2, 2), (3, 3)], [0, 0])
        assert not live_state(catalog, "shop").is_partial


def test_a_copy_that_is_begun_again_takes_no_rows_of_others_out_of_its_table(tmp_path: Path) -> None:
    """The table was dropped with all that somebody else had in it."""
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_namespace("raw")
    catalog.create_stream_table("raw.a", pa.schema(COLUMNS), keys="id").upsert([{"id": 9, "n": 9}], source="mine")
    shop = Listed([pair(1), pair(2), pair(3)], partial_until=2, fails_at=1)
    with listed(tmp_path, shop=shop) as pipeline:
        with pytest.raises(ServiceUnavailableError):
            run_pipeline(pipeline)
        shop.fails_at, shop.batches = None, [pair(2), pair(3)]
        run_pipeline(pipeline)
        assert (rows(catalog, "raw.a"), rows(catalog, "raw.b")) == ([(2, 2), (3, 3), (9, 9)], [(2, -2), (3, -3)])


@pytest.mark.parametrize("way", ["drop", "rename"])
def test_a_table_that_went_is_not_begun_anew_without_its_earlier_rows(tmp_path: Path, way: str) -> None:
    """The next batch made a new table of its rows alone, without a word."""
    shop = Listed([pair(1)])
    with listed(tmp_path, shop=shop) as pipeline:
        run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        catalog.drop_table("raw.a") if way == "drop" else catalog.rename_table("raw.a", "raw.old")
        shop.batches.append(pair(2))
        with pytest.raises(InvalidInputError, match=r"has filled raw\.a, which was dropped or renamed since"):
            run_pipeline(pipeline)
        assert "raw.a" not in catalog
        assert (rows(catalog, "raw.b"), live_state(catalog, "shop").offset) == ([(1, -1)], 1)
        run_pipeline(pipeline, full_refresh=["raw.a", "raw.b"])
        assert rows(catalog, "raw.a") == [(1, 1), (2, 2)]


def test_a_source_that_became_another_one_does_not_go_on_at_its_offset(tmp_path: Path) -> None:
    """Tables of a new `into` began in the middle, and an offset of another kind was a trace."""
    with listed(tmp_path, shop=Listed([pair(1)])) as pipeline:
        run_pipeline(pipeline)
    shop = Listed([pair(1), pair(2)])
    with listed(tmp_path, TEXT.replace("raw.", "bronze."), shop=shop) as pipeline:
        with pytest.raises(InvalidInputError, match=r"went into raw\.a, and go into bronze\.a now"):
            run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        catalog.create_namespace("bronze")
        for name in "ab":
            catalog.rename_table(f"raw.{name}", f"bronze.{name}")
        run_pipeline(pipeline)
        assert rows(catalog, "bronze.a") == [(1, 1), (2, 2)]
        assert catalog["system.sources"].to_arrow()["into"].to_pylist() == ["bronze.{table}"]
    kafka = 'kafka = { servers = "127.0.0.1:1", topics = ["a", "b"] }'
    said = r"The source 'shop' was listed \(the list shop\), and its offset"
    text = TEXT.replace('listed = "shop"', kafka).replace("raw.", "bronze.")
    with listed(tmp_path, text) as pipeline, pytest.raises(InvalidInputError, match=said):
        run_pipeline(pipeline)


def test_the_only_table_of_a_source_can_be_made_anew_after_it_was_dropped(tmp_path: Path) -> None:
    shop = Listed([{"a": [{"id": 1, "n": 1}]}])
    with listed(tmp_path, shop=shop) as pipeline:
        run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        catalog.drop_table("raw.a")
        run_pipeline(pipeline)
        run_pipeline(pipeline, full_refresh=["raw.a"])
        assert rows(catalog, "raw.a") == [(1, 1)]


def test_new_columns_are_added_and_a_type_that_does_not_fit_takes_nothing(tmp_path: Path) -> None:
    shop = Listed([{"a": [{"id": 1, "n": 1}]}])
    with listed(tmp_path, shop=shop) as pipeline:
        run_pipeline(pipeline)
        shop.columns["note"] = pa.string()
        shop.batches.append({"a": [{"id": 2, "n": 2, "note": "x"}]})
        run_pipeline(pipeline)
        catalog = Catalog(str(tmp_path / "lake"))
        assert catalog["raw.a"].serving.to_arrow().schema.field("note").type == pa.string()
        shop.columns["n"] = pa.string()
        shop.batches.append({"a": [{"id": 3, "n": "three"}]})
        with pytest.raises(InvalidInputError, match=r"'n' of raw\.a is int64, and string in the source now"):
            run_pipeline(pipeline)
        assert (catalog["raw.a"].count(), live_state(catalog, "shop").offset) == (2, 2)


def test_a_column_that_no_stream_table_can_have_is_named_with_its_table(tmp_path: Path) -> None:
    source = Listed([{"a": [{"id": 1, "n": 2, "p.q": 1}]}], columns={"id": pa.int64(), "p.q": pa.int64()})
    with listed(tmp_path, TEXT, shop=source) as pipeline:
        with pytest.raises(InvalidInputError, match=r"raw\.a: 'p\.q' cannot be the name of a column"):
            run_pipeline(pipeline)
        source.batches, source.columns = [{"a": [{"id": 1}]}], {"id": pa.int64()}
        run_pipeline(pipeline)
        source.batches.append({"a": [{"id": 2, "p.q": 1}]})
        source.columns = {"id": pa.int64(), "p.q": pa.int64()}
        with pytest.raises(InvalidInputError, match=r"raw\.a: 'p\.q' cannot be the name of a column"):
            run_pipeline(pipeline)


def test_a_full_refresh_begins_the_source_again_with_all_its_tables(tmp_path: Path) -> None:
    shop = Listed([pair(1)])
    with listed(tmp_path, shop=shop) as pipeline:
        run_pipeline(pipeline)
        with pytest.raises(InvalidInputError, match=r"name raw\.b in --full-refresh too"):
            run_pipeline(pipeline, full_refresh=["raw.a"])
        run_pipeline(pipeline, full_refresh=["raw.a", "raw.b"])
        assert shop.opened == [0, 0]
        catalog = Catalog(str(tmp_path / "lake"))
        assert rows(catalog, "raw.a") == [(1, 1)]
        assert live_state(catalog, "shop") == LiveState(1, ("line 1",), ("raw.a", "raw.b"), 3)


def test_into_stands_for_tables_by_name_and_the_file_says_what_they_are() -> None:
    assert feeds("raw.{table}", "raw.orders")
    assert not feeds("raw.{table}", "raw.x.orders")
    assert feeds("raw.orders", "raw.orders")
    debezium = '{ connector = "postgres", host = "h", user = "u", database = "d", password = "env:P" }'
    text = TEXT.replace('listed = "shop"', f"debezium = {debezium}")
    text += '[table]\nlateness = "1h"\n[table."raw.orders"]\nkeys = ["id"]\n'
    pipeline = parse_pipeline(text, Path())
    assert pipeline.spec_of("raw.orders").keys == ("id",)
    assert pipeline.spec_of("raw.other").properties == {"lateness": "1h"}
    assert [table.name for table in pipeline.tables] == ["raw.orders"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('connector = "postgras"', "'postgras' is not a connector. Did you mean 'postgres'"),
        ('connector = "mongodb"', "MongoDB is not read: its connector gives a document as one text"),
        ('password = "secret"', "write the password as a reference"),
        ('options = { "database.ssl.password" = "x" }', "write database.ssl.password as a reference"),
        ('options = { "snapshot.mode" = "never", "name" = "x" }', "name is given by Headwater"),
        ("port = 0", "port is a number below 65536"),
        ('tabels = ["a"]', "Did you mean 'tables'"),
        ('transactions = "yes"', "transactions is true or false"),
    ],
)
def test_a_mistake_in_a_debezium_source_is_named(given: str, said: str) -> None:
    known = {"connector": '"postgres"', "host": '"h"', "user": '"u"', "database": '"d"'}
    known.pop(given.split(" ")[0], None)
    values = ", ".join([*(f"{name} = {value}" for name, value in known.items()), given])
    with pytest.raises(InvalidInputError, match=said):
        parse_pipeline(TEXT.replace('listed = "shop"', f"debezium = {{ {values} }}"), Path())
