"""The Store suite over every backend and every wrapper that must be one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headwater.clock import SystemClock
from headwater.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    ServiceUnavailableError,
    UnsupportedOperationError,
)
from headwater.store import (
    Abilities,
    CountingStore,
    Crash,
    CrashesAtStore,
    LocalStore,
    LosesAnswerStore,
    LyingStore,
    PlainStore,
    PrefixedStore,
    PutMode,
    SlowStore,
    Store,
    WrappedStore,
    claim,
    create,
    local,
    memory_store,
    open_store,
    probe,
)
from headwater.testing.store_suite import StoreSuite

STORES: dict[str, Callable[[Path], Store]] = {
    "local": lambda path: LocalStore(path / "root"),
    "local path": lambda path: open_store(str(path / "root")),
    "file uri": lambda path: open_store(f"file://{path}/root"),
    "memory": lambda path: memory_store(),
    "prefixed": lambda path: PrefixedStore(memory_store(), "some/folder"),
    "prefixed local": lambda path: PrefixedStore(LocalStore(path), "some/folder"),
    "counting": lambda path: CountingStore(memory_store()),
    "slow": lambda path: SlowStore(memory_store(), lambda: None),
    "loses no answer": lambda path: LosesAnswerStore(memory_store(), lambda key: False),
    "never crashes": lambda path: CrashesAtStore(LocalStore(path), step=-1),
    "wrapped": lambda path: WrappedStore(LocalStore(path)),
    "plain": lambda path: PlainStore(LocalStore(path)),
}
PLAIN = ("memory", "prefixed", "counting", "slow", "loses no answer", "plain")
"""The stores that can do no more than bytes at keys, whole or, but for the plain one, in part."""


class TestStore(StoreSuite):
    @pytest.fixture(params=STORES)
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
        return STORES[request.param](tmp_path)


@pytest.mark.parametrize("name", STORES)
def test_every_wrapper_has_exactly_the_abilities_of_what_it_wraps(tmp_path: Path, name: str) -> None:
    abilities = STORES[name](tmp_path).abilities
    found = [field.name for field in fields(abilities) if getattr(abilities, field.name) is not None]
    on_disk = [field.name for field in fields(Abilities) if field.name != "read"]
    assert found == ([] if name == "plain" else ["read"] if name in PLAIN else on_disk)


class TestS3Store(StoreSuite):
    @pytest.fixture
    def store(self, s3_root: str, s3_options: dict[str, str]) -> Store:
        return open_store(s3_root, s3_options)


def test_the_probe_refuses_a_store_whose_conditional_put_lies() -> None:
    store = LyingStore(memory_store())
    with pytest.raises(UnsupportedOperationError, match="create-if-absent"):
        probe(store, SystemClock())
    assert list(store.list()) == []


def test_a_create_whose_answer_is_lost_is_known_to_have_landed() -> None:
    store = LosesAnswerStore(memory_store(), lambda key: True)
    assert create(store, "slot", b"id 1")
    assert not create(store, "slot", b"id 2")


def test_a_create_that_cannot_be_read_back_is_unknown_and_not_called_failed() -> None:
    class Dark(LosesAnswerStore):
        def get(self, key: str) -> bytes:
            raise ServiceUnavailableError("no answer")

    with pytest.raises(CommitStateUnknownError, match="look before repeating"):
        create(Dark(memory_store(), lambda key: True), "slot", b"id 1")


def test_a_crash_happens_at_the_step_it_was_told_and_the_store_stays_dead() -> None:
    for after, left in ((False, ["1"]), (True, ["1", "2"])):
        inner = memory_store()
        store = CrashesAtStore(inner, step=2, after=after)
        store.put("1", b"")
        with pytest.raises(Crash):
            store.put("2", b"")
        with pytest.raises(Crash):
            store.get("1")
        assert [entry.key for entry in inner.list()] == left


def test_a_crash_happens_at_an_ability_too(tmp_path: Path) -> None:
    for after in (False, True):
        inner = LocalStore(tmp_path / str(after))
        store = CrashesAtStore(inner, step=2, after=after)
        store.put("staged", b"1")
        with pytest.raises(Crash):
            claim(store, "staged", "final")
        assert (inner.head("final") is not None) == after


def test_a_claim_whose_answer_is_lost_is_known_to_have_landed(tmp_path: Path) -> None:
    for inner in (LocalStore(tmp_path), memory_store()):
        store = LosesAnswerStore(inner, lambda key: key == "final")
        store.put("mine", b"1")
        store.put("theirs", b"2")
        assert claim(store, "mine", "final")
        assert not claim(store, "theirs", "final")


def test_files_in_new_folders_are_written_without_asking_for_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put_all([(key, b"") for key in ("x/rev/1", "digest-x/1", "txn/1")], durable=False)
    missing: list[str] = []
    for name in ("open", "mkdir"):
        monkeypatch.setattr(os, name, noting(missing, getattr(os, name)))
    store.put_all(
        [(key, b"y") for key in ("y/rev/1", "y/v/rev/1", "y/v/s/rev/1", "digest-y/1", "txn/2")], durable=False
    )
    store.put_all([(key, b"") for key in ("x/rev/2", "x/digest-z/1", "y/v/s/p/rev/1", "txn/3")], durable=False)
    assert missing == []
    assert len(list(store.list())) == 12


def noting(missing: list[str], call: Callable[..., Any]) -> Callable[..., Any]:
    def noted(path: str, *args: Any, **options: Any) -> Any:
        try:
            return call(path, *args, **options)
        except FileNotFoundError:
            missing.append(path)
            raise

    return noted


def test_a_store_that_knows_no_folder_any_more_writes_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_KNOWN", 2)
    store, keys = LocalStore(tmp_path), [f"{number}/{step}/rev/1" for step in "abc" for number in range(5)]
    for key in keys:
        store.put(key, b"1", durable=False)
    shutil.rmtree(tmp_path / "1")
    for key in keys:
        store.put(key, b"22")
    assert [(entry.key, entry.size) for entry in store.list()] == [(key, 2) for key in sorted(keys)]


def test_requests_are_counted_by_verb() -> None:
    store = CountingStore(memory_store())
    store.put("a", b"")
    store.head("a")
    store.head("b")
    assert store.counts == {"put": 1, "head": 2}
    assert store.requests[0] == ("put", "a")


def test_a_relative_path_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("./here").put("k", b"v")
    assert (tmp_path / "here" / "k").read_bytes() == b"v"


def test_memory_stores_of_one_name_are_one_store() -> None:
    open_store("memory://one/x").put("k", b"v")
    assert open_store("memory://one").get("x/k") == b"v"
    assert list(open_store("memory://other").list()) == []


@pytest.mark.parametrize("uri", ["", "ftp://host/path", "file://host/path"])
def test_a_root_that_is_no_store_is_refused_with_a_hint(uri: str) -> None:
    with pytest.raises(InvalidInputError):
        open_store(uri)


def test_a_bad_storage_option_is_an_error_that_shows_no_secret() -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_store("s3://bucket/x", {"no_such_option": "1", "secret_access_key": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_local_store_never_follows_a_link_when_it_deletes(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    store = LocalStore(tmp_path / "root")
    store.put("a/k", b"")
    (tmp_path / "root" / "a" / "link").symlink_to(outside)
    (tmp_path / "root" / "link").symlink_to(outside)
    store.delete_tree("a")
    store.delete_tree("link")
    assert (outside / "precious").exists()


def test_a_local_write_that_breaks_off_leaves_no_half_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "dir").mkdir()
    with pytest.raises(Exception, match="dir"):
        store.put("dir", b"data", PutMode.OVERWRITE)
    assert list(store.list()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir"]
