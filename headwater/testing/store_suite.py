"""The conformance suite of stores. Subclass `StoreSuite` with a fixture `store` that yields an empty one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.clock import SystemClock
from headwater.errors import InvalidInputError
from headwater.store import (
    KeyExistsError,
    KeyNotFoundError,
    PutMode,
    RangedFile,
    Store,
    claim,
    create,
    is_same_file,
    probe,
    read_part,
    write_with,
)

BAD_KEYS = ("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", "a\0b")
ODD_KEYS = (
    "a b",
    "é",
    "e\u0301",
    "日本/🎉",
    "a%20b",
    "a%2Fb",
    "a#b?c",
    "a*[b]{c}",
    "~a",
    "a:b",
    ".a",
    "a.",
    "a&b=c",
    "'\"",
)


class StoreSuite:
    """The tests of a store, create-if-absent above all."""

    def test_what_was_put_is_read_back(self, store: Store) -> None:
        store.put("a/b", b"one")
        assert store.get("a/b") == b"one"
        store.put("a/b", b"")
        assert store.get("a/b") == b""

    def test_a_missing_key_is_not_found(self, store: Store) -> None:
        store.put("a/b", b"")
        for key in ("nothing", "a", "a/b/c", "a/bb"):
            assert store.head(key) is None
            with pytest.raises(KeyNotFoundError):
                store.get(key)

    def test_create_refuses_a_taken_key_and_changes_nothing(self, store: Store) -> None:
        store.put("k", b"first", PutMode.CREATE)
        with pytest.raises(KeyExistsError):
            store.put("k", b"second", PutMode.CREATE)
        assert store.get("k") == b"first"

    def test_of_many_creators_exactly_one_wins(self, store: Store) -> None:
        def attempt(number: int) -> bool:
            return create(store, "slot", b"writer %d" % number)

        with ThreadPoolExecutor(8) as pool:
            wins = list(pool.map(attempt, range(24)))
        assert sum(wins) == 1
        assert store.get("slot") == b"writer %d" % wins.index(True)

    def test_creating_again_with_the_same_bytes_is_recognised_as_ours(self, store: Store) -> None:
        assert create(store, "slot", b"unique id 1")
        assert create(store, "slot", b"unique id 1")
        assert not create(store, "slot", b"unique id 2")

    def test_a_part_of_the_bytes_is_read(self, store: Store) -> None:
        store.put("a/b", bytes(range(100)))
        assert read_part(store, "a/b", 0, 3) == b"\0\1\2"
        assert read_part(store, "a/b", 90, 100) == bytes(range(90, 100))
        with pytest.raises(KeyNotFoundError):
            read_part(store, "a/c", 0, 3)

    def test_head_tells_the_size(self, store: Store) -> None:
        store.put("a/b", b"12345")
        entry = store.head("a/b")
        assert entry is not None
        assert (entry.key, entry.size) == ("a/b", 5)
        assert entry.modified_ms > 1_500_000_000_000

    def test_list_is_recursive_and_sorted_by_bytes(self, store: Store) -> None:
        keys = ["b", "a/2", "a/10", "a/c/d", "ab/x", "a-b/y"]
        for key in keys:
            store.put(key, key.encode())
        assert [entry.key for entry in store.list()] == sorted(keys)
        assert [entry.key for entry in store.list("a")] == ["a/10", "a/2", "a/c/d"]
        assert [entry.key for entry in store.list("a", after="a/10")] == ["a/2", "a/c/d"]
        assert [entry.key for entry in store.list("a", after="a/c/d")] == []
        assert list(store.list("nothing")) == []

    def test_children_are_one_level_deep(self, store: Store) -> None:
        for key in ("x", "a/1", "a/b/2", "a/c/d/3"):
            store.put(key, b"")
        assert [entry.key for entry in store.children().entries] == ["x"]
        assert store.children().folders == ("a",)
        assert [entry.key for entry in store.children("a").entries] == ["a/1"]
        assert store.children("a").folders == ("b", "c")
        assert store.children("nothing").folders == ()

    def test_delete_removes_one_key_and_forgives_a_missing_one(self, store: Store) -> None:
        store.put("a/b", b"")
        store.put("a/c", b"")
        store.delete("a/b")
        store.delete("a/b")
        assert [entry.key for entry in store.list()] == ["a/c"]

    def test_delete_tree_removes_the_folder_and_not_its_neighbour(self, store: Store) -> None:
        for key in ("a/b/1", "a/b/c/2", "a/bb/3", "a/b2"):
            store.put(key, b"")
        store.delete_tree("a/b")
        store.delete_tree("a/b")
        assert [entry.key for entry in store.list()] == ["a/b2", "a/bb/3"]

    def test_a_put_lands_below_folders_that_were_there_and_are_gone(self, store: Store) -> None:
        store.put("a/b/c/1", b"1")
        store.delete_tree("a/b")
        store.put("a/b/c/2", b"2")
        store.delete_tree("a")
        store.put_all([("a/b/d/3", b""), ("a/b/c/4", b"4")], durable=False)
        assert [(entry.key, entry.size) for entry in store.list()] == [("a/b/c/4", 1), ("a/b/d/3", 0)]

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_could_lead_outside_is_refused(self, store: Store, key: str) -> None:
        for action in (store.get, store.head, store.delete, lambda bad: store.put(bad, b"")):
            with pytest.raises(InvalidInputError):
                action(key)

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_an_odd_key_is_found_exactly_as_written(self, store: Store, key: str) -> None:
        store.put(key, b"odd")
        assert [entry.key for entry in store.list()] == [key]
        assert store.get(key) == b"odd"

    def test_the_probe_accepts_it_and_leaves_nothing_behind(self, store: Store) -> None:
        probe(store, SystemClock())
        assert list(store.list()) == []

    def test_a_link_gives_a_file_a_second_key_once_and_only_if_it_is_free(self, store: Store) -> None:
        link = store.abilities.link
        if link is None:
            return
        store.put("staged", b"mine")
        link("staged", "final", True)
        assert store.get("final") == b"mine"
        assert is_same_file(store, "staged", "final")
        store.put("other", b"theirs")
        with pytest.raises(KeyExistsError):
            link("other", "final", True)
        with pytest.raises(KeyNotFoundError):
            link("nothing", "free", True)
        assert store.get("final") == b"mine"
        assert not is_same_file(store, "other", "final")

    def test_of_many_claimants_exactly_one_wins_and_its_bytes_are_there(self, store: Store) -> None:
        for number in range(8):
            store.put(f"staged/{number}", b"writer %d" % number)
        with ThreadPoolExecutor(8) as pool:
            wins = list(pool.map(lambda number: claim(store, f"staged/{number}", "final"), range(8)))
        assert sum(wins) == 1
        assert store.get("final") == b"writer %d" % wins.index(True)

    def test_a_folder_moves_in_one_step_if_the_store_can_move_it(self, store: Store) -> None:
        move = store.abilities.move_folder
        if move is None:
            return
        store.put("old/a/b", b"1")
        store.put("taken/c", b"2")
        with pytest.raises(KeyExistsError):
            move("old", "taken")
        with pytest.raises(KeyNotFoundError):
            move("nothing", "new")
        move("old", "deep/new")
        assert [entry.key for entry in store.list()] == ["deep/new/a/b", "taken/c"]

    def test_another_library_writes_a_file_at_a_key(self, store: Store) -> None:
        def write(path: str) -> None:
            with open(path, "wb") as file:
                file.write(b"by path")

        write_with(store, "deep/down/file", write)
        assert store.get("deep/down/file") == b"by path"

    def test_the_path_of_a_store_is_where_its_keys_are(self, store: Store) -> None:
        if store.abilities.path is None:
            return
        store.put("a/b", b"here")
        with open(os.path.join(store.abilities.path, "a", "b"), "rb") as file:
            assert file.read() == b"here"

    def test_a_part_of_a_file_is_read_alone_if_the_store_can(self, store: Store) -> None:
        read = store.abilities.read
        if read is None:
            return
        store.put("a/b", bytes(range(100)))
        assert [read("a/b", 0, 3), read("a/b", 97, 3), read("a/b", 98, 5)] == [b"\x00\x01\x02", b"abc", b"bc"]
        file = RangedFile(read, "a/b", 100)
        assert (file.seek(-2, os.SEEK_END), file.read(9), file.read(), file.tell()) == (98, b"bc", b"", 100)
        with pytest.raises(KeyNotFoundError):
            read("nothing", 0, 1)

    def test_pruning_removes_empty_folders_and_nothing_else(self, store: Store) -> None:
        if store.abilities.prune is None:
            return
        store.put("a/b/c", b"")
        store.put("a/d/e", b"")
        store.delete("a/b/c")
        store.abilities.prune("a")
        assert store.children("a").folders == ("d",)
