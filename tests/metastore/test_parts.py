"""Versions, streams, partitions and locators: what the storage model names, reachable, and what it conflicts with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from headwater.metastore import Delta, Locator, Metastore, Object, Transaction
from headwater.store import memory_store
from tests.metastore.published_reader import read

T = ["a", "t"]
Work = Callable[[Transaction], Any]


@pytest.fixture
def store() -> Metastore:
    made = Metastore(memory_store())
    made.run(lambda tx: (tx.create_namespace(["a"]), tx.create_table(T)))
    return made


def files(store: Metastore, **which: Any) -> list[str]:
    return [delta.files[0].path for delta in store.deltas(T, **which)]


# Locators


@given(st.lists(st.text(), max_size=8).filter(lambda parts: parts != [""]))
def test_a_locator_is_parsed_as_it_was_formatted(parts: list[str]) -> None:
    locator = Locator(tuple(parts))
    assert Locator.parse(locator.format()) == locator


def test_a_locator_that_escapes_nothing_is_refused() -> None:
    for text in ("a\\", "a\\b", "\\n"):
        with pytest.raises(InvalidInputError, match="backslash"):
            Locator.parse(text)
    with pytest.raises(InvalidInputError):
        Locator(("",))


def test_every_object_is_found_by_its_locator_and_its_id(store: Metastore) -> None:
    store.run(lambda tx: (tx.create_namespace(["a", "x|y"]), tx.create_table(["a", "x|y", "1"], {"k": 1})))
    table = ["a", "x|y", "1"]
    store.run(lambda tx: tx.append_delta(table, ["f"], partition=["2026", None]))
    store.run(lambda tx: tx.alias(["a"], "b"))
    objects = [
        store.get([]),
        store.get(["a"]),
        store.get(["a", "x|y"]),
        store.get(table),
        *store.now().versions(table),
        *store.now().streams(table),
        *store.now().partitions(table),
    ]
    for item in objects:
        assert store.now().find(item.locator) == store.now().find(Locator.parse(item.locator)) == item
        own = item.home if item.kind not in ("namespace", "table") else item.id
        assert store.by_id(own[own.index(store.get(table).id) :] if "/" in own else own) == item
    partition = store.now().partitions(table)[0]
    found = store.now().find(Locator.parse(partition.locator).child("1"))
    assert isinstance(found, Delta)
    assert found.files[0].path == "f"
    assert store.by_id(f"{store.get(table).id}/1/delta/{partition.id}/1") == found
    (listed,) = store.deltas(table)
    assert listed == found == store.now().get_delta(table, 1) == store.now().newest_delta(table)
    assert (listed.locator, listed.values) == (f"{partition.locator}|1", ("2026", None))
    assert store.now().find(listed.locator) == store.by_id(listed.key) == listed
    assert all(store.by_id(item.key) == item for item in objects)
    through_alias = store.now().find("b|x\\|y|1")
    assert isinstance(through_alias, Object)
    assert through_alias.properties == {"k": 1}


def test_what_is_not_there_is_not_found_by_locator_or_id(store: Metastore) -> None:
    dropped = store.run(lambda tx: tx.create_table(["a", "gone"]))
    store.run(lambda tx: tx.drop(["a", "gone"]))
    for text in ("a|gone", "a|t|1|lance|lance", "a|t|1|delta|lance", "a|t|1|delta|delta|default|"):
        with pytest.raises(TableNotFoundError):
            store.now().find(text)
    with pytest.raises(NamespaceNotFoundError):
        store.now().find("nothing")
    with pytest.raises(TableVersionNotFoundError):
        store.now().find("a|t|9")
    with pytest.raises(InvalidInputError):
        store.now().find("a|t|1|delta")
    for id in (dropped.id, "no-such-id", f"{store.get(T).id}/1/lance", f"{dropped.id}/1"):
        with pytest.raises(TableNotFoundError):
            store.by_id(id)
    looks: list[Callable[[Any], object]] = [store.now().find, store.by_id, Locator.parse]
    for look in looks:
        with pytest.raises(InvalidInputError):
            look(5)


def test_an_object_is_found_by_its_id_after_it_moved_and_in_the_past_where_it_was(store: Metastore) -> None:
    table, slot = store.get(T), store.slot
    store.run(lambda tx: (tx.rename(["a"], ["z"]), tx.rename(["z", "t"], ["top"])))
    now, then = store.by_id(table.id), store.at(slot).by_id(table.id)
    assert isinstance(now, Object)
    assert now.path == ("top",)
    assert then == table
    assert store.at(slot).find("a|t") == table


def test_the_locator_of_a_delta_follows_the_names_above_it_and_a_transaction_knows_its_own(store: Metastore) -> None:
    store.run(lambda tx: tx.append_delta(T, ["f"], partition=["eu"]))
    key = store.deltas(T)[0].key
    with store.transaction() as tx:
        tx.append_delta(T, ["g"], partition=["us"])
        own = tx.deltas(T)[-1]
        assert (own.values, own.locator) == (("us",), f"a|t|1|delta|delta|{own.partition}|us|{own.position}")
    assert store.now().find(own.locator) == store.by_id(own.key)
    store.run(lambda tx: tx.rename(["a"], ["z"]))
    moved = store.deltas(["z", "t"])[0]
    assert (moved.key, moved.locator.split("|")[:2]) == (key, ["z", "t"])
    assert store.by_id(key) == moved


# Streams and partitions of the caller's choice


def test_a_version_has_several_streams_of_one_format(store: Metastore) -> None:
    store.run(lambda tx: tx.create_stream(T, "delta", id="side"))
    store.run(lambda tx: (tx.append_delta(T, ["main"]), tx.append_delta(T, ["side"], stream="side")))
    assert (files(store), files(store, stream="side")) == (["main"], ["side"])
    assert [(item.id, item.parts) for item in store.now().streams(T)] == [
        ("delta", ("delta", "delta")),
        ("side", ("side", "delta")),
    ]
    with pytest.raises(TableAlreadyExistsError):
        store.run(lambda tx: tx.create_stream(T, "lance", id="side"))
    store.run(lambda tx: (tx.create_stream(T, "lance", id="x"), tx.append_delta(T, ["v"], format="lance")))
    assert files(store, format="lance") == ["v"]
    store.run(lambda tx: tx.create_stream(T, "lance", id="y"))
    with pytest.raises(InvalidInputError, match="'x', 'y'"):
        store.run(lambda tx: tx.append_delta(T, ["v"], format="lance"))
    with pytest.raises(InvalidInputError):
        store.run(lambda tx: tx.create_stream(T, "lance", id="rev"))
    assert store.verify() == []


def test_a_partition_has_the_id_that_its_caller_chose(store: Metastore) -> None:
    store.run(lambda tx: tx.append_delta(T, ["f"], partition=[7], partition_id="week-7"))
    store.run(lambda tx: tx.append_delta(T, ["g"], partition_id="week-7"))
    store.run(lambda tx: tx.append_delta(T, ["h"], partition=[7]))
    (chosen, derived) = store.now().partitions(T)
    assert (chosen.id, chosen.parts) == ("week-7", ("week-7", [7]))
    assert (derived.id[:2], derived.parts[1]) == ("p-", [7])
    assert files(store, partition_id="week-7") == ["f", "g"]
    assert files(store, partition=[7]) == ["h"]
    for bad in ({"partition": [8], "partition_id": "week-7"}, {"partition_id": derived.id}, {"partition_id": "data"}):
        with pytest.raises(InvalidInputError):
            store.run(lambda tx, bad=bad: tx.append_delta(T, ["x"], **bad))  # type: ignore[misc]
    first, second = store.transaction(), store.transaction()
    first.append_delta(T, ["1"], partition=[1], partition_id="new")
    second.append_delta(T, ["2"], partition=[2], partition_id="new")
    first.commit()
    with pytest.raises(ConcurrentModificationError, match="'new'"):
        second.commit()
    assert store.verify() == []


# Update and drop


def test_a_partition_is_found_in_the_only_stream_that_has_it(store: Metastore) -> None:
    for id in ("s2", "s3"):
        store.run(lambda tx, id=id: tx.create_stream(T, "delta", id=id))  # type: ignore[misc]
    store.run(lambda tx: tx.append_delta(T, ["f"], stream="s2", partition_id="p"))
    store.run(lambda tx: tx.update_partition(T, "p", {"rows": 1}))
    assert store.now().partitions(T, stream="s2")[0].properties == {"rows": 1}
    store.run(lambda tx: tx.append_delta(T, ["g"], stream="s3", partition_id="p"))
    with pytest.raises(InvalidInputError, match="'s2', 's3'"):
        store.run(lambda tx: tx.drop_partition(T, "p"))
    store.run(lambda tx: tx.drop_partition(T, "p", stream="s2"))
    store.run(lambda tx: tx.drop_partition(T, "p"))
    assert store.now().partitions(T, stream="s2") == store.now().partitions(T, stream="s3") == []
    assert store.verify() == []


def test_versions_streams_and_partitions_are_updated_with_their_revisions(store: Metastore) -> None:
    store.run(lambda tx: tx.append_delta(T, ["f"], partition_id="p"))
    store.run(
        lambda tx: (
            tx.update_table_version(T, "1", {"schema": "s"}),
            tx.update_stream(T, "delta", {"reader": 5}),
            tx.update_partition(T, "p", {"rows": [1]}),
        )
    )
    found = [store.now().versions(T)[0], store.now().streams(T)[0], store.now().partitions(T)[0]]
    assert [(item.properties, item.revision) for item in found] == [
        ({"schema": "s"}, 2),
        ({"reader": 5}, 2),
        ({"rows": [1]}, 2),
    ]
    assert store.at(2).versions(T)[0].properties == {}
    for missing in (
        lambda tx: tx.update_table_version(T, "2", {}),
        lambda tx: tx.update_stream(T, "lance", {}),
        lambda tx: tx.update_partition(T, "q", {}),
        lambda tx: tx.drop_stream(T, "lance"),
    ):
        with pytest.raises((TableNotFoundError, TableVersionNotFoundError)):
            store.run(missing)
    assert store.verify() == []


def test_a_dropped_version_or_stream_is_gone_and_its_id_stays_taken(store: Metastore) -> None:
    store.run(lambda tx: (tx.create_table_version(T, "2"), tx.append_delta(T, ["two"], version="2")))
    store.run(lambda tx: tx.drop_table_version(T, "2"))
    assert ([item.id for item in store.now().versions(T)], files(store)) == (["1"], [])
    assert [delta.files[0].path for delta in store.at(2).deltas(T, version="2")] == ["two"]
    with pytest.raises(TableAlreadyExistsError, match="never used twice"):
        store.run(lambda tx: tx.create_table_version(T, "2"))
    store.run(lambda tx: tx.drop_stream(T, "delta"))
    with pytest.raises(TableNotFoundError):
        store.deltas(T)
    with pytest.raises(TableAlreadyExistsError, match="never used twice"):
        store.run(lambda tx: tx.create_stream(T, "delta"))
    store.run(lambda tx: (tx.create_stream(T, "delta", id="delta-2"), tx.append_delta(T, ["new"])))
    assert files(store) == ["new"]
    assert store.verify() == []


def test_a_dropped_partition_takes_its_deltas_along_and_comes_back_empty(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    store.run(lambda tx: (tx.create_namespace(["a"]), tx.create_table(T)))
    for name, partition in (("f", 1), ("g", 2), ("h", 1)):
        store.run(lambda tx, n=name, p=partition: tx.append_delta(T, [n], partition=[p]))  # type: ignore[misc]
    id = store.now().partitions(T)[0].id
    store.run(lambda tx: tx.drop_partition(T, id))
    assert files(store) == ["g"] == list(read(str(tmp_path))["a", "t"][3])
    assert [item.parts[1] for item in store.now().partitions(T)] == [[2]]
    store.run(lambda tx: tx.append_delta(T, ["i"], partition=[1]))
    assert files(store) == ["g", "i"] == list(read(str(tmp_path))["a", "t"][3])
    assert store.now().partitions(T)[0].revision == 3
    assert [delta.position for delta in store.deltas(T)] == [2, 4]
    with pytest.raises(InvalidInputError, match="appends to the partition"):
        store.run(lambda tx: (tx.append_delta(T, ["x"], partition=[1]), tx.drop_partition(T, id)))
    with pytest.raises(InvalidInputError, match="drops the partition"):
        store.run(lambda tx: (tx.drop_partition(T, id), tx.append_delta(T, ["x"], partition=[1])))
    assert store.verify() == []
    store.collect(keep=0)
    assert Metastore(tmp_path).verify() == []
    assert files(store) == ["g", "i"]


def test_collection_takes_the_files_of_dropped_parts_and_frees_their_ids(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    store.run(lambda tx: (tx.create_namespace(["a"]), tx.create_table(T), tx.create_table_version(T, "2")))
    home = store.get(T).home
    for version in ("1", "2"):
        data = tmp_path / home / "data" / f"{version}.parquet"
        data.parent.mkdir(exist_ok=True)
        data.write_bytes(b"rows")
        key = data.relative_to(tmp_path).as_posix()
        store.run(lambda tx, k=key, v=version: tx.append_delta(T, [k], version=v))  # type: ignore[misc]
    store.run(lambda tx: tx.activate_table_version(T, "2"))
    store.run(lambda tx: (tx.drop_table_version(T, "1"), tx.drop_stream(T, "delta")))
    store.collect(keep=0)
    assert list((tmp_path / home / "data").iterdir()) == []
    assert Metastore(tmp_path).verify() == []
    store.run(lambda tx: (tx.create_table_version(T, "1"), tx.activate_table_version(T, "1")))
    store.run(lambda tx: tx.append_delta(T, ["again"]))
    assert [item.id for item in store.now().versions(T)] == ["2", "1"]
    assert files(store) == files(Metastore(tmp_path)) == ["again"]


def test_what_a_transaction_creates_and_drops_again_leaves_nothing(store: Metastore) -> None:
    def work(tx: Transaction) -> None:
        tx.create_table(["a", "u"])
        tx.append_delta(["a", "u"], ["f"])
        tx.drop(["a", "u"])
        tx.create_table_version(T, "2")
        tx.append_delta(T, ["g"], version="2")
        tx.drop_table_version(T, "2")
        tx.update(["a"], {"k": 1})

    store.run(work)
    (entry,) = store.log(after=1)
    assert [change.kind for change in entry.changes] == ["namespace"]
    assert store.verify() == []


# What counts as read

READS: dict[str, Work] = {
    "a missing stream": lambda tx: _missing(tx, "lance"),
    "a stream's properties": lambda tx: tx.get_stream(T),
    "a version's properties": lambda tx: tx.get_table_version(T),
    "the list of streams": lambda tx: tx.streams(T),
    "the list of versions": lambda tx: tx.versions(T),
    "a missing name": lambda tx: tx.exists(["a", "u"]),
    "a list of names": lambda tx: tx.list(["a"]),
    "a locator": lambda tx: tx.find("a|t|1"),
}
WRITES: dict[str, Work] = {
    "a missing stream": lambda tx: tx.create_stream(T, "lance"),
    "a stream's properties": lambda tx: tx.update_stream(T, "delta", {"k": 1}),
    "a version's properties": lambda tx: tx.update_table_version(T, "1", {"k": 1}),
    "the list of streams": lambda tx: tx.create_stream(T, "delta", id="more"),
    "the list of versions": lambda tx: tx.update_table_version(T, "1", {"k": 1}),
    "a missing name": lambda tx: tx.create_table(["a", "u"]),
    "a list of names": lambda tx: tx.create_table(["a", "u"]),
    "a locator": lambda tx: tx.update_table_version(T, "1", {"k": 1}),
}


def _missing(tx: Transaction, id: str) -> None:
    with pytest.raises(TableNotFoundError):
        tx.get_stream(T, id)


@pytest.mark.parametrize("what", READS)
def test_what_was_read_must_still_hold_at_commit(store: Metastore, what: str) -> None:
    tx = store.transaction()
    READS[what](tx)
    tx.create_namespace(["other"])
    store.run(WRITES[what])
    with pytest.raises(ConcurrentModificationError):
        tx.commit()


@pytest.mark.parametrize(
    "write",
    [
        lambda tx: tx.append_delta(T, ["g"], partition=[1]),
        lambda tx: tx.update_stream(T, "delta", {"k": 1}),
        lambda tx: tx.update_table_version(T, "1", {"k": 1}),
        lambda tx: tx.create_stream(T, "lance"),
        lambda tx: tx.update(T, {"k": 1}),
    ],
    ids=["another append", "the stream's record", "the version's record", "a new stream", "the table's properties"],
)
def test_an_append_conflicts_with_nothing_but_the_loss_of_its_stream(store: Metastore, write: Work) -> None:
    tx = store.transaction()
    batch = [tx.append_delta(T, ["f"], partition=[number]) for number in range(3)]
    store.run(write)
    tx.commit()
    first = batch[0].position
    assert first is not None
    assert [append.position for append in batch] == [first, first + 1, first + 2]


@pytest.mark.parametrize(
    "loss",
    [
        lambda tx: tx.drop_stream(T, "delta"),
        lambda tx: (tx.create_table_version(T, "3"), tx.activate_table_version(T, "3"), tx.drop_table_version(T, "1")),
        lambda tx: tx.create_table_version(T, "2"),
        lambda tx: tx.drop(T),
    ],
    ids=["the stream", "the version", "another newest version", "the table"],
)
def test_an_append_to_what_was_dropped_meanwhile_conflicts(store: Metastore, loss: Work) -> None:
    tx = store.transaction()
    tx.append_delta(T, ["f"])
    store.run(loss)
    with pytest.raises(ConcurrentModificationError):
        tx.commit()


def test_records_of_different_sources_do_not_conflict_and_of_one_do(store: Metastore) -> None:
    store.run(lambda tx: [tx.create_stream(T, "source", id=id) for id in ("s1", "s2")])

    def begin(source: str) -> Transaction:
        tx = store.transaction()
        taken = tx.get_stream(T, source).properties.get("taken", 0)
        tx.update_stream(T, source, {"taken": taken + 1})
        tx.append_delta(T, [source])
        return tx

    one, other, same = begin("s1"), begin("s2"), begin("s1")
    one.commit()
    other.commit()
    with pytest.raises(ConcurrentModificationError):
        same.commit()
    begin("s1").commit()
    assert [item.properties.get("taken") for item in store.now().streams(T)] == [None, 2, 1]
    assert files(store) == ["s1", "s2", "s1"]


def test_reads_and_writes_of_one_group_are_kept_apart(store: Metastore) -> None:
    """What two transactions of one slot do to each other is judged as if they had been two slots."""
    from headwater.metastore.commit.group_commit import Waiting

    reader, writer = store.transaction(), store.transaction()
    writer.drop_stream(T, "delta")
    reader.append_delta(T, ["f"])
    group = [Waiting(writer.draft, writer.header), Waiting(reader.draft, reader.header)]
    taken = store._committer._compile(group)
    assert taken == group[:1]
