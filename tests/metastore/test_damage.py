"""Bit-flipped, truncated, missing, foreign and newer files: a named error, and the rest stays readable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.errors import CorruptFileError, InvalidTableStateError, UnsupportedOperationError
from headwater.metastore import Metastore
from headwater.metastore.commit import group_commit as commit_module
from headwater.metastore.records.layout import FORMAT_KEY, checkpoint_key, segment_key, slot_key
from headwater.metastore.state import index as index_module
from tests.metastore.model import tree_of

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda data: bytes((*data[:-3], data[-3] ^ 4, *data[-2:])),
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "foreign": lambda data: b"PAR1 and so on, for some more bytes",
}


def filled(root: Path) -> Metastore:
    store = Metastore(root)
    store.run(lambda tx: (tx.create_namespace(["a"]), tx.create_table(["a", "t"])))
    for number in range(10):
        store.run(lambda tx, number=number: tx.append_delta(["a", "t"], [f"f{number}"]))  # type: ignore[misc]
    return store


def damage(root: Path, key: str, how: str) -> None:
    path = root / key
    path.write_bytes(DAMAGE[how](path.read_bytes()))


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_slot_is_written_anew_if_that_is_exact(tmp_path: Path, how: str) -> None:
    before = tree_of(filled(tmp_path))
    damage(tmp_path, slot_key(6), how)
    opened = Metastore(tmp_path)
    assert tree_of(opened) == before
    assert opened.repair() == [slot_key(6)], "it was told of when it was opened"
    assert opened.verify() == []


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_slot_that_cannot_be_told_is_refused_and_the_past_before_it_stays_readable(
    tmp_path: Path, how: str
) -> None:
    txn = next(filled(tmp_path).log(after=5)).txn
    damage(tmp_path, slot_key(6), how)
    (log,) = (tmp_path / "txn").glob(f"*_{txn}")
    log.unlink()
    with pytest.raises(InvalidTableStateError, match=r"1 of its slots \(6\).*headwater repair"):
        Metastore(tmp_path)
    store = Metastore(tmp_path, damaged=True)
    refused: list[Callable[[], object]] = [lambda: store.get(["a"]), store.transaction, store.repair]
    for attempt in refused:
        with pytest.raises(InvalidTableStateError):
            attempt()
    assert len(store.at(5).deltas(["a", "t"])) == 4
    assert {slot_key(6), slot_key(7)} & {problem.key for problem in store.verify()}


@pytest.mark.parametrize("how", DAMAGE)
def test_who_has_the_catalog_open_when_a_slot_is_damaged_is_told_which(tmp_path: Path, how: str) -> None:
    filled(tmp_path)
    reader = Metastore(tmp_path)
    filled_more = Metastore(tmp_path)
    filled_more.run(lambda tx: tx.create_namespace(["late"]))
    damage(tmp_path, slot_key(12), how)
    with pytest.raises(InvalidTableStateError, match=slot_key(12)):
        reader.get(["a"])
    with pytest.raises(InvalidTableStateError, match=slot_key(12)):
        list(filled_more.log(after=11))
    assert filled_more.repair() == [slot_key(12)]
    assert reader.exists(["late"])


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_published_file_harms_no_read_is_named_and_repaired(tmp_path: Path, how: str) -> None:
    store = filled(tmp_path)
    revisions = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.mpk"))
    for key in (revisions[0], revisions[-1]):
        damage(tmp_path, key, how)
        opened = Metastore(tmp_path)
        assert tree_of(opened) == tree_of(store)
        assert [problem.key for problem in opened.verify()] == [key]
        assert opened.repair() == [key]
        assert opened.verify() == []


def test_every_missing_published_file_is_named_and_repaired(tmp_path: Path) -> None:
    store = filled(tmp_path)
    keys = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    published = sorted(key for key in keys if not key.startswith(".headwater"))
    assert len(published) > 20
    for key in published:
        (tmp_path / key).unlink()
    assert [problem.key for problem in store.verify()] == published
    assert sorted(store.repair()) == published
    assert store.verify() == []


def test_a_name_that_a_foreign_mapping_brings_back_is_found(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    made = store.run(lambda tx: tx.create_namespace(["a"]))
    store.run(lambda tx: tx.drop(["a"]))
    (newest,) = (path for path in tmp_path.rglob(f"*.{made.id}") if "delete" in path.name)
    newest.with_name(newest.name.replace("2_delete", "3_update")).touch()
    assert store.verify() != []


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_or_segment_is_named_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 8)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    expected = tree_of(filled(tmp_path))
    checkpoints = sorted((tmp_path / checkpoint_key(0)).parent.iterdir())
    segments = sorted((tmp_path / segment_key(0)).parent.iterdir())
    assert checkpoints
    assert segments
    for path in (checkpoints[-1], segments[0]):
        key = path.relative_to(tmp_path).as_posix()
        whole = path.read_bytes()
        damage(tmp_path, key, how)
        store = Metastore(tmp_path)
        assert tree_of(store) == expected
        assert [problem.key for problem in store.verify()] == [key]
        path.unlink()
        assert tree_of(Metastore(tmp_path)) == expected
        path.write_bytes(whole)
        assert Metastore(tmp_path).verify() == []


def test_a_damaged_segment_whose_slots_are_gone_is_an_error_only_for_its_deltas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 8)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    store = filled(tmp_path)
    store.collect(keep=0)
    segment = min((tmp_path / segment_key(0)).parent.iterdir())
    segment.write_bytes(b"gone bad")
    opened = Metastore(tmp_path)
    with pytest.raises(CorruptFileError, match=segment.name):
        opened.deltas(["a", "t"])
    assert [delta.position for delta in opened.deltas(["a", "t"], after=9)] == [10]
    assert opened.get(["a", "t"]).name == "t"


@pytest.mark.parametrize("which", ["catalog", "slot"])
def test_a_newer_format_is_refused_by_name(tmp_path: Path, which: str) -> None:
    filled(tmp_path)
    key = FORMAT_KEY if which == "catalog" else slot_key(11)
    data = (tmp_path / key).read_bytes()
    (tmp_path / key).write_bytes(data[:4] + bytes((9,)) + data[5:])
    with pytest.raises(UnsupportedOperationError, match="format version 9") as refused:
        Metastore(tmp_path).get(["a"])
    assert key in str(refused.value)


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    store = filled(tmp_path)
    strangers = [tmp_path / name for name in ("README", "txn/notes", ".headwater/checkpoints/notes", "a/rev/x.mpk")]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not ours")
    assert [problem.key for problem in store.verify()] == [".headwater/checkpoints/notes"]
    store.collect(keep=0)
    assert all(path.read_text() == "not ours" for path in strangers)
    assert tree_of(Metastore(tmp_path)) == tree_of(store)
