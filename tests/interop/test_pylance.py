"""A root written by us is listed, described, read and written by pylance in the same mode, and the reverse."""

from __future__ import annotations

from pathlib import Path

import lance
import lance_namespace as api
import pytest
from lance_namespace import LanceNamespace

from headwater.testing.namespace_suite import ODD_NAMES, code_of, ipc
from tests.children import PROCESSES
from tests.interop.roots import (
    MODES,
    PATIENCE_S,
    ROWS,
    count,
    create,
    namespaces,
    open_both,
    tables,
    write_many,
)

NESTED = ("V2", "compat")
FOUND_BY_PYLANCE = ("a b", "a:b", ".a", "a.", "a&b=c", "a.lance")
"""Where it looks for folders, pylance 14.0.2 lists the other odd names but does not find them, its own included."""


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def pairs(root: str, mode: str) -> list[tuple[LanceNamespace, LanceNamespace]]:
    """(writer, reader): ours with pylance's, and the reverse."""
    ours, theirs = open_both(root, mode)
    return [(ours, theirs), (theirs, ours)]


@pytest.mark.parametrize("mode", MODES)
def test_a_table_of_one_is_listed_described_read_and_written_by_the_other(root: str, mode: str) -> None:
    for number, (writer, reader) in enumerate(pairs(root, mode)):
        name = f"t{number}"
        create(writer, name)
        assert name in tables(reader)
        reader.table_exists(api.TableExistsRequest(id=[name]))
        described = reader.describe_table(api.DescribeTableRequest(id=[name], load_detailed_metadata=True))
        assert described.version == 1
        assert described.var_schema is not None
        assert [field.name for field in described.var_schema.fields] == ["n"]
        assert lance.dataset(str(described.location)).to_table() == ROWS
        reader.insert_into_table(api.InsertIntoTableRequest(id=[name], mode="append"), ipc(ROWS))
        assert (count(writer, name), count(reader, name)) == (6, 6)
        assert code_of(lambda reader=reader, name=name: create(reader, name)) == 5  # type: ignore[misc]


@pytest.mark.parametrize("mode", MODES)
def test_a_table_declared_by_one_is_created_by_the_other(root: str, mode: str) -> None:
    for number, (writer, reader) in enumerate(pairs(root, mode)):
        name = f"t{number}"
        writer.declare_table(api.DeclareTableRequest(id=[name]))
        found = reader.describe_table(api.DescribeTableRequest(id=[name], check_declared=True))
        assert found.is_only_declared
        reader.create_table(api.CreateTableRequest(id=[name]), ipc(ROWS))
        assert (count(writer, name), count(reader, name)) == (3, 3)
        assert not writer.describe_table(api.DescribeTableRequest(id=[name], check_declared=True)).is_only_declared


@pytest.mark.parametrize("mode", MODES)
def test_a_table_dropped_by_one_is_gone_for_the_other(root: str, mode: str) -> None:
    for number, (writer, reader) in enumerate(pairs(root, mode)):
        name = f"t{number}"
        create(writer, name)
        assert tables(reader) == [name]
        reader.drop_table(api.DropTableRequest(id=[name]))
        assert code_of(lambda w=writer, n=name: w.table_exists(api.TableExistsRequest(id=[n]))) == 4  # type: ignore[misc]
        create(writer, name, rows=ROWS.slice(0, 1))
        assert count(reader, name) == 1
        writer.drop_table(api.DropTableRequest(id=[name]))
        assert tables(reader) == []


@pytest.mark.parametrize("mode", ["V1", "V2"])
def test_a_table_deregistered_by_one_is_hidden_from_the_other(root: str, mode: str) -> None:
    for number, (writer, reader) in enumerate(pairs(root, mode)):
        create(writer, f"t{number}")
        reader.deregister_table(api.DeregisterTableRequest(id=[f"t{number}"]))
        assert tables(writer) == []


def test_in_compatibility_mode_what_we_deregister_is_hidden_from_pylance(root: str) -> None:
    """The reverse does not hold: pylance leaves no marker behind, so directory listings show the folder again."""
    ours, theirs = open_both(root, "compat")
    create(theirs, "t")
    ours.deregister_table(api.DeregisterTableRequest(id=["t"]))
    assert tables(theirs) == tables(ours) == []


@pytest.mark.parametrize("mode", NESTED)
def test_namespaces_and_their_properties_pass_between_both(root: str, mode: str) -> None:
    for number, (writer, reader) in enumerate(pairs(root, mode)):
        name = f"n{number}"
        properties = {"owner": "ml", "note": 'quotes " and é'}
        writer.create_namespace(api.CreateNamespaceRequest(id=[name], properties=properties))
        assert reader.describe_namespace(api.DescribeNamespaceRequest(id=[name])).properties == properties
        reader.create_namespace(api.CreateNamespaceRequest(id=[name, "inner"]))
        assert namespaces(writer, name) == ["inner"]
        create(writer, name, "inner", "t")
        assert tables(reader, name, "inner") == ["t"]
        assert count(reader, name, "inner", "t") == 3
        drop = api.DropNamespaceRequest(id=[name, "inner"])
        assert code_of(lambda r=reader, d=drop: r.drop_namespace(d)) == 3  # type: ignore[misc]
        again = api.CreateNamespaceRequest(id=[name])
        assert code_of(lambda r=reader, a=again: r.create_namespace(a)) == 2  # type: ignore[misc]
        reader.drop_table(api.DropTableRequest(id=[name, "inner", "t"]))
        reader.drop_namespace(drop)
        assert namespaces(writer, name) == []


@pytest.mark.parametrize("mode", NESTED)
def test_a_table_that_we_renamed_is_found_by_pylance_in_its_new_namespace(root: str, mode: str) -> None:
    ours, theirs = open_both(root, mode)
    for name in ("a", "b"):
        theirs.create_namespace(api.CreateNamespaceRequest(id=[name]))
    create(theirs, "a", "t")
    ours.rename_table(api.RenameTableRequest(id=["a", "t"], new_table_name="u", new_namespace_id=["b"]))
    assert (tables(theirs, "a"), tables(theirs, "b")) == ([], ["u"])
    assert count(theirs, "b", "u") == 3


@pytest.mark.parametrize("mode", NESTED)
def test_what_pylance_registers_is_read_by_us_and_the_reverse(root: str, mode: str) -> None:
    ours, theirs = open_both(root, mode)
    ours.create_namespace(api.CreateNamespaceRequest(id=["n"]))
    for number, (writer, reader) in enumerate(pairs(root, mode)):
        place = f"data{number}"
        lance.write_dataset(ROWS, f"{root}/{place}")
        writer.register_table(api.RegisterTableRequest(id=["n", place], location=place))
        assert count(reader, "n", place) == 3
    assert tables(ours, "n") == tables(theirs, "n") == ["data0", "data1"]


@pytest.mark.parametrize("mode", MODES)
def test_odd_names_mean_the_same_table_to_both(root: str, mode: str) -> None:
    ours, theirs = open_both(root, mode)
    for number, name in enumerate(ODD_NAMES):
        create((ours, theirs)[number % 2], name)
    assert tables(ours) == tables(theirs) == sorted(ODD_NAMES)
    assert [count(ours, name) for name in ODD_NAMES] == [3] * len(ODD_NAMES)
    found = [name for name in ODD_NAMES if mode == "V2" or name in FOUND_BY_PYLANCE]
    assert [count(theirs, name) for name in found] == [3] * len(found)


@pytest.mark.parametrize("mode", NESTED)
def test_the_manifest_stays_readable_and_writable_by_pylance_through_many_commits(root: str, mode: str) -> None:
    """Appends, deletion files, merges of fragments and clean-up of ours, with a commit of pylance now and then."""
    ours, theirs = open_both(root, mode)
    kept = set()
    for number in range(70):
        writer = theirs if number % 10 == 0 else ours
        writer.create_namespace(api.CreateNamespaceRequest(id=[f"n{number:03}"], properties={"number": str(number)}))
        kept.add(f"n{number:03}")
        if number % 3 == 2:
            ours.drop_namespace(api.DropNamespaceRequest(id=[f"n{number - 1:03}"]))
            kept.discard(f"n{number - 1:03}")
    assert namespaces(theirs) == namespaces(ours) == sorted(kept)
    ids = lance.dataset(f"{root}/__manifest").to_table(columns=["object_id"])["object_id"].to_pylist()
    assert sorted(map(str, ids)) == sorted(kept)


@pytest.mark.xdist_group("mixed")
@pytest.mark.parametrize("mode", MODES)
def test_processes_of_both_kinds_write_one_root_without_duplicates_or_losses(root: str, mode: str) -> None:
    total, kinds = 4, ("ours", "pylance", "ours", "pylance")
    answers, barrier = PROCESSES.Queue(), PROCESSES.Barrier(len(kinds))
    processes = [
        PROCESSES.Process(target=write_many, args=(answers, barrier, kind, root, mode, f"p{number}", total))
        for number, kind in enumerate(kinds)
    ]
    for process in processes:
        process.start()
    problems = [problem for _ in processes for problem in answers.get(timeout=PATIENCE_S)]
    for process in processes:
        process.join(PATIENCE_S)
    assert problems == []
    ours, theirs = open_both(root, mode)
    expected = sorted(f"p{number}-t{turn}" for number in range(len(kinds)) for turn in range(total))
    assert tables(ours) == tables(theirs) == expected
    assert [count(ours, name) for name in expected] == [3] * len(expected)
    if mode != "V1":
        spaces = sorted(f"p{number}-n{turn}" for number in range(len(kinds)) for turn in range(total))
        assert namespaces(ours) == namespaces(theirs) == spaces
        ids = lance.dataset(f"{root}/__manifest").to_table()["object_id"].to_pylist()
        assert sorted(map(str, ids)) == sorted([*expected, *spaces])
