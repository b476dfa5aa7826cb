"""Landing and publishing die at every step, lose answers and race: nothing torn, nothing doubled, nothing blocked."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore
from headwater.store import Crash, CrashesAtStore, LocalStore, LosesAnswerStore
from headwater.streams.serving.publication import publish_tables
from headwater.streams.table import StreamTable

BATCH: list[dict[str, Any]] = [{"id": 1, "at": 2, "note": "new"}, {"id": None, "at": 1}, {"id": 3, "at": 1}]
BEFORE, AFTER = [(1, "old"), (2, "old")], [(1, "new"), (2, "old"), (3, None)]


def prepared(root: Path) -> None:
    with Metastore(root) as metastore:
        schema = {"id": "int64", "at": "int64", "note": "string"}
        table = StreamTable.create(metastore, ["t"], schema, "id", "at", properties={"late": "quarantine"})
        table.upsert([{"id": 1, "at": 1, "note": "old"}, {"id": 2, "at": 1, "note": "old"}])
        table.publish()
        table.upsert([{"id": 1, "at": 0, "note": "late"}])


def state(table: StreamTable) -> list[tuple[int, str | None]]:
    return sorted((int(row["id"]), row["note"]) for row in table.to_arrow().to_pylist())


def dies_everywhere(root: Path, act: Callable[[StreamTable], Any], check: Callable[[StreamTable], None]) -> int:
    """Do something with a store that dies at its first write, its second, ... until it lives; check after each."""
    prepared(root / "prepared")
    for step in range(1, 200):
        for after in (False, True) if step < 5 else (False,):  # what follows the slot is the metastore's own to test
            place = root / f"{step}-{after}"
            shutil.copytree(root / "prepared", place)
            store = CrashesAtStore(LocalStore(place), step, after)
            with contextlib.suppress(Crash):
                act(StreamTable(Metastore(store), ["t"]))
            with Metastore(place) as metastore:
                check(StreamTable(metastore, ["t"]))
                assert metastore.verify() == []
            if not store.dead:
                return step
    raise AssertionError("it never got through")


def test_a_landing_that_dies_is_there_whole_or_not_at_all_and_repeating_it_doubles_nothing(tmp_path: Path) -> None:
    def land(table: StreamTable) -> Any:
        return table.ingest(BATCH, source="s", token="once")

    def check(table: StreamTable) -> None:
        quarantined = table.quarantine().num_rows
        assert (state(table), quarantined) in ((BEFORE, 0), (AFTER, 1))
        known = state(table) == AFTER
        assert land(table).duplicate == known
        assert (state(table), table.quarantine().num_rows, table.position) == (AFTER, 1, 3)
        assert land(table).duplicate

    assert dies_everywhere(tmp_path, land, check) > 3


def test_a_publish_that_dies_shows_one_version_or_the_other_and_the_next_one_goes_through(tmp_path: Path) -> None:
    def check(table: StreamTable) -> None:
        published = table.published
        assert published is not None
        done = published.position == 2
        assert table.quarantine().num_rows == (1 if done else 0)
        assert state(table) == BEFORE
        assert table.publish().position == 2
        assert table.quarantine().num_rows == 1
        table.upsert([{"id": 1, "at": 2, "note": "new"}, {"id": 3, "at": 1}])
        table.publish()
        assert state(table) == AFTER

    assert dies_everywhere(tmp_path, lambda table: table.publish(), check) > 2


def test_a_lost_answer_of_the_commit_is_no_second_landing(tmp_path: Path) -> None:
    prepared(tmp_path)
    store = LosesAnswerStore(LocalStore(tmp_path), lambda key: key.startswith(".headwater/slots"))
    table = StreamTable(Metastore(store), ["t"])
    table.upsert([{"id": 3, "at": 1}], token="x")
    assert table.position == 3
    assert table.publish().position == 3
    assert table.count() == 3


def test_writers_and_publishers_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    prepared(tmp_path)
    failures: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            with Metastore(tmp_path) as metastore:
                table = StreamTable(metastore, ["t"])
                for number in range(6):
                    key = 100 * writer + number
                    table.upsert([{"id": key, "at": 1, "note": str(writer)}], token=f"{writer}-{number}", source="s")
                    if number % 3 == writer % 3:
                        table.publish()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Metastore(tmp_path) as metastore:
        table = StreamTable(metastore, ["t"])
        expected = sorted([1, 2, *(100 * writer + number for writer in range(1, 4) for number in range(6))])
        assert [key for key, _ in state(table)] == expected
        assert table.position == 2 + 18
        table.publish()
        assert [key for key, _ in state(table)] == expected
        assert metastore.verify() == []


def test_a_missing_file_of_the_log_is_named(tmp_path: Path) -> None:
    prepared(tmp_path)
    with Metastore(tmp_path) as metastore:
        table = StreamTable(metastore, ["t"])
        file = table.deltas(1)[0].files[0].path
        (tmp_path / file).unlink()
        with pytest.raises(LanceNamespaceError, match=file):
            table.to_arrow()
        assert table.to_arrow(position=1).num_rows == 2


def test_a_version_written_behind_the_catalogs_back_is_not_shown_and_blocks_nothing(tmp_path: Path) -> None:
    prepared(tmp_path)
    with Metastore(tmp_path) as metastore:
        table = StreamTable(metastore, ["t"])
        stream, _ = table.opened()
        rows = pa.table({"id": [77], "at": [1], "note": ["foreign"]})
        lance.write_dataset(rows, f"{tmp_path}/{stream.serving}", mode="append")
        assert state(table) == BEFORE
        table.upsert([{"id": 1, "at": 2, "note": "new"}, {"id": 3, "at": 1}])
        table.publish()
        assert state(table) == AFTER
        assert lance.dataset(f"{tmp_path}/{stream.serving}").to_table().num_rows == 3


def test_a_publisher_that_dies_with_a_manifest_staged_leaves_nothing_that_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path)
    with Metastore(tmp_path) as metastore, monkeypatch.context() as patched:
        patched.setattr("headwater.streams.serving.publication.record", _dies)
        with pytest.raises(Crash):
            StreamTable(metastore, ["t"]).publish()
    with Metastore(tmp_path) as metastore:
        table = StreamTable(metastore, ["t"])
        assert (table.published or table.publish()).position == 1
        assert state(table) == BEFORE
        assert table.publish().position == 2
        assert (state(table), table.verify()) == (BEFORE, [])


def test_a_publisher_that_dies_before_it_finalizes_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path)
    with Metastore(tmp_path) as metastore, monkeypatch.context() as patched:
        patched.setattr("headwater.streams.serving.publication.finish", _dies)
        with pytest.raises(Crash):
            StreamTable(metastore, ["t"]).publish()
    with Metastore(tmp_path) as metastore:
        table = StreamTable(metastore, ["t"])
        assert table.published is not None
        assert (table.published.position, state(table)) == (2, BEFORE)
        table.upsert([{"id": 1, "at": 2, "note": "new"}, {"id": 3, "at": 1}])
        table.publish()
        assert (state(table), table.verify()) == (AFTER, [])


def test_a_lost_publish_of_several_versions_shows_nothing_to_plain_pylance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path)
    with Metastore(tmp_path) as metastore, monkeypatch.context() as patched:
        table = StreamTable(metastore, ["t"])
        table.evolve(add={"more": "string"}, rename={"note": "text"})
        table.delete([1])
        folder = tmp_path / table.opened()[0].serving
        before = lance.dataset(str(folder))
        shown = set((folder / "_versions").iterdir())
        patched.setattr("headwater.streams.serving.publication.record", _dies)
        with pytest.raises(Crash):
            table.publish()
        assert len(list((folder / "_staged").rglob("*.manifest"))) > 4  # two of them were there before
        assert set((folder / "_versions").iterdir()) == shown
        assert lance.dataset(str(folder)).version == before.version
    with Metastore(tmp_path) as metastore:
        table = StreamTable(metastore, ["t"])
        table.publish()
        assert lance.dataset(str(folder)).to_table().to_pylist() == [{"id": 2, "at": 1, "text": "old", "more": None}]
        assert (table.verify(), metastore.verify()) == ([], [])


def _dies(*_: Any) -> None:
    raise Crash


def test_tables_published_together_are_new_at_one_slot_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path)
    with Metastore(tmp_path) as metastore:
        log = StreamTable.create(metastore, ["log"], {"x": "int64"})
        log.append([{"x": 1}])
        table = StreamTable(metastore, ["t"])
        lake = table._lake()
        with monkeypatch.context() as patched:
            patched.setattr("headwater.streams.serving.publish_tasks.appended", _dies)
            with pytest.raises(Crash):
                publish_tables(lake, [["t"], ["log"]])
        assert table.published is not None
        assert (table.published.position, log.published) == (1, None)
        slot = metastore.slot
        assert [each.position for each in publish_tables(lake, [["t"], ["log"]])] == [2, 1]
        newest = [metastore.deltas(path, format="lance")[-1] for path in (["t"], ["log"])]
        assert {delta.slot for delta in newest} == {slot + 1}
