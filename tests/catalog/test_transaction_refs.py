"""Tags and branches in transactions, near and far: who wins, what is undone, what a process that slept may do."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.config import init, resolve
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    ServiceUnavailableError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)
from headwater.metastore.records.ref_record import RefRecord, RefTarget, known_refs, with_change
from headwater.names import ObjectId
from headwater.namespace.transactions.ref_changes import RefFiles
from headwater.registries.metastore.mapping import RecordedRefs, ref_record_of
from headwater.table_refs import TAG, Ref
from tests.catalog.samples import ROWS

NOW = timedelta(0)


def in_folder(catalog: Catalog, name: str) -> tuple[dict[str, int], list[str]]:
    """The tags and branches that a Lance client sees who knows no catalog."""
    dataset = lance.dataset(str(catalog[name].describe().location))
    return {tag: found["version"] for tag, found in dataset.tags.list().items()}, sorted(dataset.branches.list())


def test_tags_and_branches_are_part_of_a_transaction_and_of_its_undo(catalog: Catalog, near: Catalog) -> None:
    table = near["a.t"]
    table.append([{"id": 4}])
    table.tags["moved"] = table.tags["deleted"] = 1
    table.branches.create("old", 1)
    before = {"moved": 1, "deleted": 1}, ["old"]
    slot = near.slot
    with catalog.transaction("names") as tx:
        inside = tx["a.t"]
        inside.tags["moved"] = 2
        inside.tags["new"] = 1
        del inside.tags["deleted"]
        inside.branches.create("trial", 1)
        inside.branches.create("newest")
        del inside.branches["old"]
        assert (dict(inside.tags), sorted(inside.branches)) == ({"moved": 2, "new": 1}, ["newest", "trial"])
        assert (len(inside.at(tag="new")), len(inside.at(branch="trial")), len(inside.at(branch="newest"))) == (3, 3, 4)
        refused: list[tuple[type[Exception], Any]] = [
            (TableTagAlreadyExistsError, lambda: inside.tags.create("new", 1)),
            (TableTagNotFoundError, lambda: inside.tags.__delitem__("deleted")),
            (TableVersionNotFoundError, lambda: inside.tags.create("none", 99)),
            (TableBranchAlreadyExistsError, lambda: inside.branches.create("trial", 1)),
            (TableBranchNotFoundError, lambda: inside.branches.__delitem__("old")),
            (TableBranchNotFoundError, lambda: len(inside.at(branch="old"))),
            (TableVersionNotFoundError, lambda: inside.tags.create("on-a-branch", 2, branch="trial")),
            (TableVersionNotFoundError, lambda: inside.branches.create("inner", 2, branch="trial")),
        ]
        for error, attempt in refused:
            with pytest.raises(error):
                attempt()
        assert (dict(table.tags), list(table.branches)) == before == in_folder(near, "a.t")
    assert near.slot == slot + 1
    after = {"moved": 2, "new": 1}, ["newest", "trial"]
    assert in_folder(near, "a.t") == after
    assert (dict(table.tags), list(table.branches)) == after
    assert len(table.at(branch="newest")) == 4
    assert near.history("a.t")[-1].message == "names"
    table.tags["later"] = 1
    near.undo(near.history("a.t")[-2].txn)
    assert in_folder(near, "a.t") == ({**before[0], "later": 1}, ["old"])
    assert near.verify() == []


@pytest.mark.parametrize("name", ["t" * 210, "/".join(["b"] * 35), "t" * 211, "t" * 251, "/".join(["b"] * 36)])
def test_a_tag_or_branch_whose_name_fits_no_file_is_refused_and_others_are_there(tmp_path: Path, name: str) -> None:
    for root in ("lake", "plain"):
        if root == "plain":
            init(resolve(str(tmp_path / root), {"impl": "dir"}))
        table = Catalog(str(tmp_path / root)).create_table("t", [{"id": 1}])
        fits = len(name) + 4 * name.count("/") <= 210
        for refs in (table.branches,) if "/" in name else (table.tags, table.branches):
            with nullcontext() if fits else pytest.raises(InvalidInputError, match="210 characters"):
                refs.create(name, 1)
            assert list(refs) == ([name] if fits else [])


def test_tags_and_branches_can_stand_on_a_branch_that_their_transaction_makes(catalog: Catalog, near: Catalog) -> None:
    table = near["a.t"]
    table.append([{"id": 4}])
    before = in_folder(near, "a.t")
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx["a.t"].branches.create("trial", 1)
        tx["a.t"].tags.create("best", 1, branch="trial")
        raise ZeroDivisionError
    assert in_folder(near, "a.t") == (dict(table.tags), list(table.branches)) == before
    with catalog.transaction("stand") as tx:
        inside = tx["a.t"]
        inside.branches.create("trial", 1)
        inside.branches.create("inner", branch="trial")
        inside.tags.create("best", 1, branch="inner")
        inside.tags["moved"] = 2
        assert (inside.tags["best"], inside.tags.branch_of("best")) == (1, "inner")
        assert (len(inside.at(tag="best")), len(inside.at(branch="inner"))) == (3, 3)
        with pytest.raises(InvalidInputError, match="in use"):
            del inside.branches["inner"]
        assert in_folder(near, "a.t") == before
    assert in_folder(near, "a.t") == ({"best": 1, "moved": 2}, ["inner", "trial"])
    made = lance.dataset(str(table.describe().location))
    assert made.tags.list()["best"]["branch"] == "inner"
    assert made.tags.list()["best"]["manifest_size"] > 0
    assert (made.branches.list()["inner"]["parent_branch"], made.checkout_version("best").count_rows()) == ("trial", 3)
    near.undo(near.history("a.t")[-1].txn)
    assert in_folder(near, "a.t") == before
    assert near.verify() == []


def test_a_tag_can_be_of_a_version_that_its_transaction_makes(catalog: Catalog, near: Catalog) -> None:
    with catalog.transaction() as tx:
        tx["a.t"].append([{"id": 4}])
        tx["a.t"].tags["four"] = 2
        assert len(tx["a.t"].at(tag="four")) == 4
        location = str(near["a.t"].describe().location)
        tx.create_table("a.new", ROWS)
        tx["a.new"].tags["first"] = 1
        tx["a.new"].branches.create("side")
        tx.rename_table("a.new", "a.renamed")
    assert lance.dataset(location, version="four").count_rows() == 4, "for who knows no catalog, before anybody looks"
    assert (len(near["a.t"].at(tag="four")), len(near["a.renamed"])) == (4, 3)
    assert in_folder(near, "a.renamed") == ({"first": 1}, ["side"])


def test_of_two_who_change_the_tags_of_one_table_at_once_one_conflicts(catalog: Catalog, near: Catalog) -> None:
    begun = catalog.transaction()
    begun.__enter__()["a.t"].tags["mine"] = 1
    near["a.t"].tags["yours"] = 1
    with pytest.raises(ConcurrentModificationError, match=r"a\.t"):
        begun.__exit__(None, None, None)
    assert in_folder(near, "a.t") == ({"yours": 1}, [])
    with catalog.transaction() as tx:
        assert dict(tx["a.t"].tags) == {"yours": 1}
        tx["a.u"].tags["other"] = 1
        near["a.t"].append([{"id": 4}])
    catalog.run(lambda tx: tx["a.t"].tags.update(mine=2))
    assert in_folder(near, "a.t") == ({"yours": 1, "mine": 2}, [])


def test_a_version_is_tagged_or_deleted_and_never_both(catalog: Catalog, near: Catalog) -> None:
    near["a.t"].append([{"id": 4}])
    begun = catalog.transaction()
    begun.__enter__()["a.t"].tags["first"] = 1
    near["a.t"].append([{"id": 5}])
    near["a.t"].delete_versions(1, 1)
    with pytest.raises(ConcurrentModificationError):
        begun.__exit__(None, None, None)
    begun = catalog.transaction()
    begun.__enter__()["a.t"].delete_versions(2, 2)
    near["a.t"].tags["second"] = 2
    with pytest.raises(ConcurrentModificationError):
        begun.__exit__(None, None, None)
    near["a.t"].clean_up(keep_versions=1, grace_seconds=0)
    assert [found.version for found in near["a.t"].versions()] == [2, 3]
    assert near.verify() == []


def broken(self: RefFiles, *_: object) -> None:
    raise ServiceUnavailableError("The storage did not answer.")


def test_what_was_committed_and_not_made_is_seen_by_all_and_made_by_the_next_who_looks(
    catalog: Catalog, near: Catalog, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near["a.t"].append([{"id": 4}])
    near["a.t"].tags["gone"] = 2
    with monkeypatch.context() as patched:
        patched.setattr(RefFiles, "settle", broken)
        with catalog.transaction() as tx:
            tx["a.t"].tags["first"] = 1
            tx["a.t"].branches.create("side", 1)
            del tx["a.t"].tags["gone"]
        assert in_folder(near, "a.t") == ({"gone": 2}, [])
        assert dict(near["a.t"].tags) == {"first": 1}
        assert len(near["a.t"].at(branch="side")) == 3
        with pytest.raises(InvalidInputError, match="first"):
            near["a.t"].delete_versions(1, 1)
        near.collect(keep=NOW, grace=NOW)
        near["a.t"].clean_up(keep_versions=1, grace_seconds=0)
    again = Catalog(MetastoreNamespace(root=str(lake)))
    assert (dict(again["a.t"].tags), list(again["a.t"].branches)) == ({"first": 1}, ["side"])
    assert in_folder(near, "a.t") == ({"first": 1}, ["side"])
    assert [len(again["a.t"].at(tag="first")), len(again["a.t"].at(branch="side"))] == [3, 3]
    assert again.verify() == []


def test_what_a_lance_client_changes_in_the_folder_holds_but_not_what_a_writer_that_slept_wrote(near: Catalog) -> None:
    table = near["a.t"]
    table.append([{"id": 4}])
    table.tags["ours"] = table.tags["theirs"] = 1
    dataset = lance.dataset(str(table.describe().location))
    file = Path(str(table.describe().location)) / "_refs" / "tags" / "ours.json"
    asleep = file.read_bytes()
    dataset.tags.update("theirs", 2)
    dataset.tags.create("new", 2)
    table.tags["ours"] = 2
    assert dict(table.tags) == {"ours": 2, "theirs": 2, "new": 2}
    dataset.tags.delete("theirs")
    del table.tags["new"]
    file.write_bytes(asleep)
    assert dict(table.tags) == {"ours": 2}
    assert in_folder(near, "a.t") == ({"ours": 2}, [])
    dataset.tags.delete("ours")
    assert dict(table.tags) == {}


def test_a_process_that_slept_takes_back_no_mark_of_what_was_made_since(
    near: Catalog, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at the mark, and writes its own after a newer one: what a Lance client did since holds."""
    table, namespace = near["a.t"], near.namespace
    assert isinstance(namespace, MetastoreNamespace)
    table.tags["first"] = 1
    found = namespace.operations.find_table(ObjectId(("a", "t")))
    old, asleep = ref_record_of(namespace.session.state(), found.id), RecordedRefs(namespace.store)
    assert old is not None
    table.tags["theirs"] = 1
    lance.dataset(str(table.describe().location)).tags.delete("theirs")
    monkeypatch.setattr(asleep, "applied", lambda table, record: 0)
    asleep.mark(found, old)
    again = Catalog(MetastoreNamespace(root=str(lake)))
    assert dict(again["a.t"].tags) == {"first": 1}
    table.tags["more"] = 1
    marks = list((Path(str(table.describe().location)) / "_refs").glob("headwater-*"))
    assert [path.name.rpartition(".")[2] for path in marks] == ["3"]


def test_a_mark_as_it_was_written_before_its_number_was_in_its_name_is_known(near: Catalog, lake: Path) -> None:
    table = near["a.t"]
    table.tags["theirs"] = 1
    folder = Path(str(table.describe().location)) / "_refs"
    mark = next(folder.glob("headwater-*"))
    record, _, number = mark.name.removeprefix("headwater-").rpartition(".")
    mark.unlink()
    (folder / f"headwater-{record}").write_text(f"{record}:{number}")
    lance.dataset(str(table.describe().location)).tags.delete("theirs")
    assert dict(Catalog(MetastoreNamespace(root=str(lake)))["a.t"].tags) == {}


def test_a_process_that_slept_does_not_bring_back_a_branch_that_was_deleted_meanwhile(
    near: Catalog, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, make = Catalog(MetastoreNamespace(root=str(lake))), RefFiles._branch

    def asleep(files: RefFiles, name: str, to: RefTarget | None) -> None:
        monkeypatch.setattr(RefFiles, "_branch", make)
        assert list(other["a.t"].branches) == ["side"]
        del other["a.t"].branches["side"]
        make(files, name, to)

    monkeypatch.setattr(RefFiles, "_branch", asleep)
    near["a.t"].branches.create("side", 1)
    assert list(near["a.t"].branches) == list(other["a.t"].branches) == []
    assert in_folder(near, "a.t") == ({}, [])


def test_a_process_that_slept_does_not_delete_a_tag_that_was_made_anew_meanwhile(
    near: Catalog, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding of the model Refs: the file was gone, and the mark said that the newer change had been made."""
    near["a.t"].tags.create("x", 1)
    other, tag = Catalog(MetastoreNamespace(root=str(lake))), RefFiles._tag

    def asleep(files: RefFiles, name: str, to: RefTarget | None, stamp: str) -> None:
        monkeypatch.setattr(RefFiles, "_tag", tag)
        assert list(other["a.t"].tags) == []
        other["a.t"].tags.create("x", 1)
        assert in_folder(other, "a.t") == ({"x": 1}, [])
        tag(files, name, to, stamp)

    monkeypatch.setattr(RefFiles, "_tag", asleep)
    del near["a.t"].tags["x"]
    assert list(near["a.t"].tags) == list(other["a.t"].tags) == ["x"]
    assert in_folder(near, "a.t") == ({"x": 1}, [])


def test_undo_leaves_a_tag_as_it_was_before_a_transaction_that_changed_it_twice(
    catalog: Catalog, near: Catalog
) -> None:
    near["a.t"].append([{"id": 4}])
    near["a.t"].tags["old"] = 1
    with catalog.transaction() as tx:
        tags = tx["a.t"].tags
        tags["new"], tags["gone"], tags["old"] = 1, 1, 2
        tags["new"] = 2
        del tags["gone"], tags["old"]
    assert dict(near["a.t"].tags) == {"new": 2}
    near.undo(list(near.log())[-1])
    assert dict(near["a.t"].tags) == {"old": 1} == in_folder(near, "a.t")[0]


def test_an_undo_takes_no_branch_from_under_a_tag_and_brings_no_tag_back_without_it(near: Catalog) -> None:
    table = near["a.t"]
    table.branches.create("side", 1)
    created = list(near.log())[-1]
    table.tags.create("on", 1, branch="side")
    with pytest.raises(InvalidTableStateError, match="the tag 'on' stands on the branch 'side'"):
        near.undo(created)
    del table.tags["on"]
    deleted = list(near.log())[-1]
    del table.branches["side"]
    with pytest.raises(InvalidTableStateError, match="the tag 'on' stands on the branch 'side'"):
        near.undo(deleted)
    assert ({}, []) == (dict(table.tags), list(table.branches)) == in_folder(near, "a.t")


def test_an_undo_takes_no_rows_of_a_branch_along_and_brings_none_back_without_its_rows(near: Catalog) -> None:
    table = near["a.t"]
    table.branches.create("side", 1)
    made = near.history("a.t")[-1].txn
    near.undo(made)
    near.undo(near.history("a.t")[-1].txn)
    assert list(table.branches) == ["side"]
    table.at(branch="side").append([{"id": 4}])
    with pytest.raises(InvalidTableStateError, match="the branch 'side' was written to since"):
        near.undo(near.history("a.t")[-1].txn)
    assert len(table.at(branch="side")) == 4
    del table.branches["side"]
    with pytest.raises(InvalidTableStateError, match="the branch 'side' had rows of its own, which are gone"):
        near.undo(near.history("a.t")[-1].txn)
    assert list(table.branches) == in_folder(near, "a.t")[1] == []


def test_a_branch_that_a_transaction_deletes_is_not_created_again_by_it(catalog: Catalog, near: Catalog) -> None:
    """Which of the two a branch of this name in the folder is, nothing there could tell."""
    near["a.t"].branches.create("side", 1)
    near["a.t"].at(branch="side").append([{"id": 4}])
    with catalog.transaction() as tx:
        del tx["a.t"].branches["side"]
        with pytest.raises(InvalidInputError, match="create it afterwards"):
            tx["a.t"].branches.create("side", 1)
    near["a.t"].branches.create("side", 1)
    assert len(near["a.t"].at(branch="side")) == 3


def test_all_of_many_tags_that_one_transaction_deletes_are_gone(near: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.metastore.records.ref_record.MAX_GONE", 2)
    near["a.t"].tags.update({f"t{number}": 1 for number in range(5)})
    with near.transaction() as tx:
        for tag in list(tx["a.t"].tags):
            del tx["a.t"].tags[tag]
    assert dict(near["a.t"].tags) == {} == in_folder(near, "a.t")[0]
    near.undo(list(near.log())[-1])
    assert len(near["a.t"].tags) == 5


def test_who_knows_an_older_record_of_the_tags_does_not_write_it_over_a_newer_file() -> None:
    to = RefTarget(1)
    first = with_change(RefRecord("r"), TAG, "x", to, None)
    second = with_change(first, TAG, "x", RefTarget(2), to)
    for written, old in ((second.stamp(2), first), ("another:1", first)):
        file = Ref(TAG, "x", 2, None, "", stamp=written)
        assert known_refs({(TAG, "x"): file}, old, applied=1).due == ()
    stale = Ref(TAG, "x", 1, None, "", stamp=first.stamp(1))
    assert [name for _, name, _ in known_refs({(TAG, "x"): stale}, second, applied=2).due] == ["x"]


def test_tags_of_a_folder_with_two_records_are_what_was_set_last(near: Catalog, lake: Path) -> None:
    """Registered again under another name: the first record comes back, and is not made once more."""
    near["a.t"].append([{"id": 4}])
    near["a.t"].tags["moved"] = near["a.t"].tags["gone"] = 1
    location = Path(str(near["a.t"].describe().location)).name
    near.deregister_table("a.t")
    deregistered = list(near.log())[-1]
    near.register_table("a.again", location)
    near["a.again"].tags["moved"] = 2
    del near["a.again"].tags["gone"]
    near.deregister_table("a.again")
    near.undo(deregistered)
    again = Catalog(MetastoreNamespace(root=str(lake)))
    assert dict(again["a.t"].tags) == {"moved": 2} == in_folder(near, "a.t")[0]


def test_a_branch_is_made_over_what_a_dead_process_left_of_it(near: Catalog) -> None:
    table = near["a.t"]
    table.branches.create("side", 1)
    (Path(str(table.describe().location)) / "_refs" / "branches" / "side.json").unlink()
    assert list(table.branches) == []
    table.branches.create("side", 1)
    assert len(table.at(branch="side")) == 3
    table.branches.create("side/inner", 1, branch="side")
    with pytest.raises(InvalidInputError, match="side/inner"):
        del table.branches["side"]
    del table.branches["side/inner"]
    del table.branches["side"]
    assert in_folder(near, "a.t") == ({}, [])
