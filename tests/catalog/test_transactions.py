"""Transactions over many tables: all at once or not at all, seen by nobody before, and the past as it was."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.catalog.transactions import CatalogTransaction
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableNotFoundError,
    UnsupportedOperationError,
)

ROWS = pa.table({"id": [1, 2, 3]})
CHANGES: list[Callable[[Catalog], object]] = [
    lambda it: it["a.t"].append(ROWS),
    lambda it: it.create_table("new", ROWS),
    lambda it: it.drop_table("a.t"),
    lambda it: it.rename_table("a.t", "b"),
    lambda it: it["a.t"].create_index("id"),
]


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def catalog(root: str) -> Catalog:
    catalog = Catalog(MetastoreNamespace(root=root))
    catalog.create_table("a.t", ROWS)
    catalog.create_table("a.u", ROWS)
    return catalog


def ids(catalog: Catalog, name: str) -> set[int]:
    return {row["id"] for row in catalog[name]}


def test_a_transaction_reads_its_own_writes_and_nobody_else_does_before_it_commits(catalog: Catalog, root: str) -> None:
    other = Catalog(MetastoreNamespace(root=root))
    begun = catalog.transaction("a day's work")
    with begun as tx:
        tx["a.t"].append([{"id": 4}])
        tx["a.t"].delete("id = 1")
        tx["a.t"].update({"id": 20}, where="id = 2")
        tx.create_table("b.new", ROWS)
        tx["b.new"].append([{"id": 9}])
        tx.rename_table("a.u", "b.moved")
        tx["b.moved"].add_columns({"twice": "id * 2"})
        tx["b.moved"].create_index("id")
        assert ids(tx, "a.t") == {3, 4, 20}
        assert list(tx) == ["a.t", "b.moved", "b.new"]
        assert tx["b.moved"].schema.names == ["id", "twice"]
        assert len(tx["b.new"]) == 4
        for outside in (catalog, other):
            assert list(outside) == ["a.t", "a.u"]
            assert ids(outside, "a.t") == {1, 2, 3}
        location = str(catalog["a.t"].describe().location)
        assert lance.dataset(location).count_rows() == 3, "a client that looks at the files alone"
    for outside in (catalog, other):
        assert list(outside) == ["a.t", "b.moved", "b.new"]
        assert ids(outside, "a.t") == {3, 4, 20}
        assert dict(outside["b.moved"].indices)
    assert begun.slot == catalog.slot
    assert lance.dataset(location).count_rows() == 3
    assert MetastoreNamespace(root=root).verify() == []


def test_a_block_that_raises_leaves_everything_as_it_was(catalog: Catalog) -> None:
    before = catalog.slot
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx["a.t"].append([{"id": 4}])
        tx.drop_table("a.u")
        raise ZeroDivisionError
    assert catalog.slot == before
    assert ids(catalog, "a.t") == {1, 2, 3}
    assert len(catalog["a.u"]) == 3


def test_an_operation_that_is_refused_leaves_the_transaction_as_it_was(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        tx["a.t"].append([{"id": 4}])
        with pytest.raises(LanceNamespaceError):
            tx.create_table("a.t", ROWS)
        with pytest.raises(TableNotFoundError):
            tx.rename_table("a.nope", "a.v")
        batch = tx.batch()
        batch.declare_table("a.new")
        batch.declare_table("a.t")
        with pytest.raises(LanceNamespaceError):
            batch.commit()
    assert list(catalog) == ["a.t", "a.u"]
    assert ids(catalog, "a.t") == {1, 2, 3, 4}


@pytest.mark.parametrize("read", ["rows", "count", "missing", "came", "list"])
def test_what_a_transaction_read_must_still_hold(catalog: Catalog, root: str, read: str) -> None:
    other = Catalog(MetastoreNamespace(root=root))
    begun = catalog.transaction()
    tx = begun.__enter__()
    if read == "rows":
        assert ids(tx, "a.t") == {1, 2, 3}
        other["a.t"].append([{"id": 5}])
    elif read == "count":
        assert len(tx["a.t"]) == 3
        other["a.t"].delete("id = 1")
    elif read == "missing":
        assert "a.v" not in tx
        other.create_table("a.v", ROWS)
    elif read == "came":
        assert "a.v" not in tx
        other.rename_table("a.u", "a.v")
    else:
        assert tx.tables("a") == ["t", "u"]
        other.drop_table("a.t")
    tx.create_table("result", ROWS)
    named = {"missing": r"\(a\.v\)", "came": r"\(a\.v\)", "list": r"\(a\)"}.get(read, r"\(a\.t\)")
    with pytest.raises(ConcurrentModificationError, match=named):
        begun.__exit__(None, None, None)
    assert "result" not in catalog


def test_two_counters_that_are_moved_together_are_never_lost(catalog: Catalog, root: str) -> None:
    catalog.create_table("count", [{"n": 0}])

    def add(tx: Catalog) -> None:
        value = tx["count"].to_arrow().column("n")[0].as_py()
        tx["count"].update({"n": value + 1})

    def work() -> None:
        own = Catalog(MetastoreNamespace(root=root))
        for _ in range(3):
            own.run(add, "one more")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert catalog["count"].to_arrow().to_pydict() == {"n": [6]}


def test_the_past_is_as_it_was_and_cannot_be_changed(catalog: Catalog) -> None:
    slot, moment = catalog.slot, datetime.now(UTC) + timedelta(milliseconds=2)
    threading.Event().wait(0.01)
    catalog["a.t"].delete("id < 3")
    catalog["a.t"].add_columns({"x": "id"})
    catalog.rename_table("a.u", "moved")
    catalog.drop_table("a.t")
    for past in (catalog.at(slot), catalog.at(moment)):
        assert list(past) == ["a.t", "a.u"]
        assert past["a.t"].to_arrow() == ROWS
        assert past["a.t"].schema == ROWS.schema
        assert [item.version for item in past["a.t"].versions()] == [1]
        for change in CHANGES:
            with pytest.raises(InvalidInputError, match="as it was at slot"):
                change(past)
    assert list(catalog) == ["moved"]


def test_a_directory_catalog_says_that_it_has_no_transactions(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path), impl="dir")
    calls: list[Callable[[], object]] = [catalog.transaction, lambda: catalog.at(1), lambda: catalog.slot]
    for call in calls:
        with pytest.raises(UnsupportedOperationError, match="metastore"):
            call()


def test_a_transaction_leaves_no_manifest_where_clients_look_for_versions(catalog: Catalog, root: str) -> None:
    location = str(catalog["a.t"].describe().location)
    before = set(os.listdir(f"{location}/_versions"))
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx["a.t"].append([{"id": 4}])
        raise ZeroDivisionError
    assert set(os.listdir(f"{location}/_versions")) == before


def test_rows_that_are_only_appended_are_staged_again_on_top_of_what_others_wrote(catalog: Catalog, root: str) -> None:
    other = Catalog(MetastoreNamespace(root=root))
    begun = catalog.transaction("a day's rows")
    with begun as tx:
        tx["a.t"].append([{"id": 4}])
        tx["a.t"].append([{"id": 5}])
        tx["a.u"].delete("id = 1")
        other["a.t"].append([{"id": 100}])
        other["a.t"].delete("id = 1")
        files = set(Path(root).rglob("*.lance"))
    assert begun.slot == catalog.slot
    assert set(Path(root).rglob("*.lance")) == files, "no row is written again"
    for found in (catalog, other):
        assert ids(found, "a.t") == {2, 3, 4, 5, 100}
        assert ids(found, "a.u") == {2, 3}
    assert MetastoreNamespace(root=root).verify() == []


def test_a_table_that_is_also_read_or_changed_otherwise_is_named_by_the_conflict(catalog: Catalog, root: str) -> None:
    other = Catalog(MetastoreNamespace(root=root))
    append: Callable[[Catalog], object] = lambda it: it["a.t"].append([{"id": 4}])  # noqa: E731
    works: list[Callable[[Catalog], object]] = [lambda it: ids(it, "a.t"), lambda it: it["a.t"].delete("id = 3")]
    for steps in [(append, work) for work in works] + [(work, append) for work in works]:
        begun = catalog.transaction()
        tx = begun.__enter__()
        for step in steps:
            step(tx)
        other["a.t"].append([{"id": 100}])
        with pytest.raises(ConcurrentModificationError, match=r"a\.t"):
            begun.__exit__(None, None, None)
    assert 4 not in ids(catalog, "a.t")


Step = tuple[str, str]


def orders(*lines: Sequence[Step]) -> Iterator[list[Step]]:
    """Every way in which several can take their steps in turns."""
    if not any(lines):
        yield []
    for place, line in enumerate(lines):
        if line:
            rest = [*lines[:place], line[1:], *lines[place + 1 :]]
            yield from ([line[0], *order] for order in orders(*rest))


TURNS = list(
    orders(
        [("one", "begin"), ("one", "append"), ("one", "end")],
        [("two", "begin"), ("two", "append"), ("two", "end")],
        [("outside", "append")],
    )
)


@pytest.mark.parametrize("turns", [TURNS[::12], pytest.param(TURNS, marks=pytest.mark.long)], ids=["some", "all"])
def test_appends_of_two_transactions_and_an_outsider_are_there_once_in_every_order(
    catalog: Catalog, root: str, turns: list[list[Step]]
) -> None:
    outside = Catalog(MetastoreNamespace(root=root))
    expected = [1, 2, 3]
    for order in turns:
        begun: dict[str, CatalogTransaction] = {}
        inside: dict[str, Catalog] = {}
        for who, what in order:
            if what == "begin":
                begun[who] = (outside if who == "two" else catalog).transaction(who)
                inside[who] = begun[who].__enter__()
            elif what == "end":
                begun[who].__exit__(None, None, None)
            else:
                expected.append(1000 + len(expected))
                inside.get(who, outside)["a.t"].append([{"id": expected[-1]}])
    assert sorted(row["id"] for row in catalog["a.t"]) == expected
    assert MetastoreNamespace(root=root).verify() == []


@pytest.mark.parametrize("change", ["columns", "made anew", "dropped"])
def test_appends_to_a_table_that_is_another_one_by_then_conflict_and_name_it(
    catalog: Catalog, root: str, change: str
) -> None:
    other = Catalog(MetastoreNamespace(root=root))
    begun = catalog.transaction()
    tx = begun.__enter__()
    tx["a.u"].append([{"id": 4}])
    tx["a.t"].append([{"id": 4}])
    if change == "columns":
        other["a.t"].rename_columns({"id": "key"})
    else:
        other.drop_table("a.t")
    if change == "made anew":
        other.create_table("a.t", ROWS)
    tx["a.u"].append([{"id": 5}])
    with pytest.raises(ConcurrentModificationError, match=r"a[$.]t"):
        begun.__exit__(None, None, None)
    assert ids(catalog, "a.u") == {1, 2, 3}


def test_rows_that_wait_go_where_their_table_goes_in_the_same_transaction(catalog: Catalog, root: str) -> None:
    other = Catalog(MetastoreNamespace(root=root))
    for name in ("a.v", "a.w", "a.x"):
        catalog.create_table(name, ROWS)
    with catalog.transaction() as tx:
        for name in ("a.t", "a.u", "a.v", "a.w", "a.x"):
            tx[name].append([{"id": 4}])
        tx.rename_table("a.t", "a.moved")
        tx.rename_namespace("a", "b")
        tx["b.moved"].append([{"id": 5}])
        tx.drop_table("b.u")
        tx.create_table("b.v", ROWS, mode="overwrite")
        tx["b.w"].add_columns({"twice": "id * 2"})
        assert ids(tx, "b.v") == {1, 2, 3}
        assert tx["b.w"].to_arrow().to_pydict() == {"id": [1, 2, 3, 4], "twice": [2, 4, 6, 8]}
        tx["b.x"].update({"id": 40}, where="id = 4")
        tx["b.x"].append([{"id": 6}])
        with suppress(LanceNamespaceError):
            tx["b.x"].append([{"nope": 1}])
    for found in (catalog, other):
        assert list(found) == ["b.moved", "b.v", "b.w", "b.x"]
        assert ids(found, "b.moved") == {1, 2, 3, 4, 5}
        assert ids(found, "b.v") == {1, 2, 3}
        assert ids(found, "b.x") == {1, 2, 3, 40, 6}
    assert MetastoreNamespace(root=root).verify() == []


def test_lance_itself_sees_the_rows_of_the_transaction_it_is_in(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        tx["a.t"].append([{"id": 4}])
        assert lance.dataset(namespace_client=tx.namespace, table_id=["a", "t"]).count_rows() == 4
        tx["a.t"].append([{"id": 5}])
        lance.write_dataset(pa.table({"id": [6]}), namespace_client=tx.namespace, table_id=["a", "t"], mode="append")
        assert len(tx["a.t"].versions()) == 4
    assert ids(catalog, "a.t") == {1, 2, 3, 4, 5, 6}


def test_an_undone_append_can_be_made_again_while_others_have_appended_and_wait(catalog: Catalog, root: str) -> None:
    other = Catalog(MetastoreNamespace(root=root))
    with catalog.transaction("to be undone") as tx:
        tx["a.t"].append([{"id": 4}])
    undone = list(catalog.log())[-1]

    def work(tx: Catalog) -> None:
        tx["a.t"].append([{"id": 5}])
        if 4 in ids(other, "a.t"):
            other.undo(undone)

    catalog.run(work, "over an undo")
    assert ids(catalog, "a.t") == {1, 2, 3, 5}
    with catalog.transaction("made again") as tx:
        tx["a.t"].append([{"id": 4}])
        other["a.t"].append([{"id": 6}])
    assert sorted(row["id"] for row in other["a.t"]) == [1, 2, 3, 4, 5, 6]
    assert MetastoreNamespace(root=root).verify() == []


def test_appended_rows_that_fit_no_more_are_a_conflict(catalog: Catalog, root: str) -> None:
    begun = catalog.transaction()
    begun.__enter__()["a.t"].append([{"id": 4}])
    Catalog(MetastoreNamespace(root=root)).create_table("a.t", pa.table({"other": ["x"]}), mode="overwrite")
    with pytest.raises(ConcurrentModificationError, match="a"):
        begun.__exit__(None, None, None)
    assert catalog["a.t"].to_arrow().to_pydict() == {"other": ["x"]}


def test_appends_of_many_transactions_at_once_are_all_kept_and_never_half(catalog: Catalog, root: str) -> None:
    """Each transaction appends to two tables: others' rows are in both or in none whenever somebody looks."""
    failed: list[BaseException] = []

    def work(number: int) -> None:
        own = Catalog(MetastoreNamespace(root=root))
        try:
            for step in range(3):
                row = [{"id": 100 * number + step}]
                with own.transaction() as tx:
                    for name in ("a.t", "a.u"):
                        tx[name].append(row)
                now = own.at(own.slot)
                assert ids(now, "a.t") == ids(now, "a.u")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    expected = {1, 2, 3, *(100 * number + step for number in (1, 2, 3) for step in range(3))}
    assert ids(catalog, "a.t") == ids(catalog, "a.u") == expected
    assert len(catalog["a.t"]) == len(expected), "nothing twice"


def test_an_undo_is_one_more_version_so_that_past_and_snapshots_keep_theirs_and_it_can_be_undone(
    catalog: Catalog, root: str
) -> None:
    catalog["a.t"].append([{"id": 4}])
    slot, undone = catalog.slot, list(catalog.log())[-1]
    catalog["a.t"].tags["last"] = 2
    catalog.snapshot("kept")
    assert [step.action for step in catalog.undo(undone).steps] == ["restore"]
    taken_back = list(catalog.log())[-1]
    assert ids(catalog, "a.t") == {1, 2, 3}
    catalog.undo(taken_back)
    assert ids(catalog, "a.t") == {1, 2, 3, 4}
    catalog.undo(list(catalog.log())[-1])
    for number in range(5, 9):
        catalog["a.t"].append([{"id": number}])
    for found in (catalog, Catalog(MetastoreNamespace(root=root))):
        for moment in (slot, "kept"):
            assert ids(found.at(moment), "a.t") == {1, 2, 3, 4}
        assert ids(found, "a.t") == {1, 2, 3, 5, 6, 7, 8}
        assert {row["id"] for row in found["a.t"].at(2)} == {1, 2, 3, 4}
    assert MetastoreNamespace(root=root).verify() == []


def test_histories_are_those_of_the_moment_or_of_the_beginning_of_a_transaction(catalog: Catalog) -> None:
    slot, count = catalog.slot, len(catalog.history("a.t"))
    past = catalog.at(slot)
    with catalog.transaction() as tx:
        catalog["a.t"].append(ROWS)
        for seen in (tx, past):
            assert len(seen.history("a.t")) == count
            assert list(seen.log(after=slot)) == []
    assert len(catalog.history("a.t")) == count + 1
