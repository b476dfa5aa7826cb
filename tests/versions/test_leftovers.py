"""What is gone is told by `verify`; what dead writers left in a directory catalog is collected, and nothing else."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import headwater
from headwater import Catalog, MetastoreNamespace
from headwater.cli.main import main
from headwater.errors import InvalidInputError
from headwater.namespace.versions.file_removal import lost_files
from headwater.rest.server import start_in_thread
from headwater.store import LocalStore
from tests.cli.running import Cli

ROWS = pa.table({"n": [1, 2, 3]})
DAY = timedelta(days=1)


def age(path: Path, days: int = 10) -> None:
    for one in (path, *path.rglob("*")):
        past = one.stat().st_mtime - days * 86_400
        os.utime(one, (past, past))


@pytest.mark.parametrize("impl", ["dir", "metastore"])
def test_verify_names_files_that_a_version_names_and_that_are_gone(tmp_path: Path, impl: str) -> None:
    catalog = Catalog(str(tmp_path / "lake"), impl=impl)
    table = catalog.create_table("a.t", ROWS)
    table.append(ROWS)
    table.delete("n = 2")
    table.create_index("n", "BTREE")
    assert catalog.verify() == []
    place = next(tmp_path.glob("lake/*_a$t"))
    data, deleted = sorted(place.glob("data/*.lance"))[0], next(place.glob("_deletions/*"))
    data.unlink()
    deleted.unlink()
    found = {problem.key: problem for problem in catalog.verify()}
    assert {problem.kind for problem in found.values()} == {"missing_file"}
    assert set(found) == {str(each.relative_to(tmp_path / "lake")) for each in (data, deleted)}
    first, *others = place.glob("_indices/*/*")
    first.unlink()
    assert [problem.key for problem in catalog.verify() if "_indices" in problem.key] == [
        str(first.relative_to(tmp_path / "lake"))
    ], "a file of it is told"
    for file in others:
        file.unlink()
    assert len(catalog.verify()) == 3


@pytest.mark.parametrize("impl", ["dir", "metastore"])
def test_verify_names_files_of_a_version_that_are_cut(tmp_path: Path, impl: str) -> None:
    catalog = Catalog(str(tmp_path / "lake"), impl=impl)
    table = catalog.create_table("a.t", ROWS)
    table.delete("n = 2")
    table.create_index("n", "BTREE")
    table.versions()
    place = next(tmp_path.glob("lake/*_a$t"))
    for folder in ("data", "_deletions", "_indices/*", "_versions"):
        file = min(each for each in place.glob(f"{folder}/*") if ".manifest-" not in each.name)
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        found = [(problem.kind, problem.key) for problem in catalog.verify()]
        assert found == [("damaged_file", str(file.relative_to(tmp_path / "lake")))], folder
        file.write_bytes(whole)
    assert catalog.verify() == []


def test_a_shallow_clone_is_not_taken_for_damage(tmp_path: Path) -> None:
    source: Any = lance.write_dataset(ROWS, str(tmp_path / "source"))
    source.delete("n = 3")
    source.shallow_clone(str(tmp_path / "clone"), 2)
    lance.dataset(str(tmp_path / "clone")).delete("n = 1")
    found = sorted((tmp_path / "clone" / "_versions").glob("*.manifest"))
    manifests = {number: f"clone/_versions/{each.name}" for number, each in enumerate(found)}
    assert lost_files(LocalStore(tmp_path), "clone", manifests, {}) == {}
    next((tmp_path / "clone" / "_deletions").iterdir()).unlink()
    assert len(lost_files(LocalStore(tmp_path), "clone", manifests, {})) == 1


def test_verify_names_files_of_a_change_log_that_are_gone(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table("a.s", ROWS.schema, keys=["n"])
    table.upsert(ROWS)
    assert catalog.verify() == []
    (file,) = (tmp_path / "lake").rglob("data/*.parquet")
    file.unlink()
    assert [problem.key for problem in catalog.verify()] == [str(file.relative_to(tmp_path / "lake"))]


def test_verify_reads_what_was_landed_and_not_published(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table("a.s", ROWS.schema, keys=["n"])
    for _ in range(2):
        table.upsert(ROWS)
        (file,) = (tmp_path / "lake" / each.path for delta in table.deltas(table.position - 1) for each in delta.files)
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        assert [problem.kind for problem in catalog.verify()] == ["serving_copy"]
        file.write_bytes(whole)
        assert catalog.verify() == []
        table.publish()


@pytest.mark.parametrize("properties", [{}, {"manifest_enabled": "false"}, {"table_version_management": "true"}])
def test_what_dead_writers_left_in_a_directory_is_collected_once_it_is_old(
    tmp_path: Path, properties: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lake"
    catalog = Catalog(str(root), impl="dir", **properties)
    table = catalog.create_table("kept", ROWS)
    table.append(ROWS)
    place = next(each for each in root.iterdir() if "kept" in each.name)
    before = {each for each in root.rglob("*") if each.is_file()}
    stillborn = root / ("dead.lance" if "manifest_enabled" in properties else "0a1b2c3d_dead")
    left = [
        stillborn / "data" / "a.lance",
        stillborn / "_versions" / "18446744073709551614.manifest-0b5ed5ce",
        place / "data" / "nobodys.lance",
        place / "_versions" / "18446744073709551600.manifest-0b5ed5ce",
        root / ".headwater" / "trash" / "half" / "data" / "a.lance",
    ]
    others = [root / "notes" / "a.txt", root / "0a1b2c3e_fresh" / "data" / "a.lance"]
    for file in (*left, *others):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    for file in (*left[:4], others[0], place):
        age(file)
    told = catalog.collect(dry_run=True)
    assert all(removal.why for removal in told.removed)
    assert all(file.exists() for file in left)
    done = catalog.collect()
    assert done.removed == told.removed
    assert not any(file.exists() for file in left)
    assert not stillborn.exists()
    assert all(file.exists() for file in (*before, *others))
    assert (catalog["kept"].count(), catalog.collect().removed) == (6, ())
    with pytest.raises(InvalidInputError, match="no history"):
        catalog.collect(keep=DAY)
    cli = Cli(str(root), capsys)
    assert (
        cli.json("collect", "--yes", *(f"--property={key}={value}" for key, value in properties.items()))["data"] == 0
    )


def test_a_root_with_a_folder_named_txn_is_no_metastore(tmp_path: Path) -> None:
    root = tmp_path / "other"
    (root / "txn" / "success").mkdir(parents=True)
    (root / "txn" / "readme").write_text("not ours")
    with pytest.raises(InvalidInputError, match="init"):
        Catalog(str(root)).create_namespace("a")
    lance.write_dataset(ROWS, str(root / "t.lance"))
    assert isinstance(Catalog(str(root)).namespace, headwater.DirectoryNamespace)
    assert list(Catalog(str(root))) == ["t"]


def test_what_only_waits_for_collection_is_a_note_and_the_catalog_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A transaction that was rolled back leaves a folder, a client that was refused a staged manifest."""
    root = str(tmp_path / "lake")
    catalog = Catalog(root)
    catalog.create_stream_table("a.s", ROWS.schema, keys=["n"]).upsert(ROWS)
    catalog.publish(["a.s"])
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx.create_table("a.t", ROWS)
        raise ZeroDivisionError
    with pytest.raises(OSError, match="Commit result for version 3 is unknown"):
        lance.write_dataset(ROWS, namespace_client=catalog.namespace, table_id=["a", "s"], mode="append")
    found = catalog.verify()
    assert {(problem.kind, problem.note) for problem in found} == {
        ("staged_leftover", True),
        ("unfinished_creation", True),
    }
    assert main(["--catalog", root, "verify"]) == 0
    assert "The catalog is whole. 2 notes" in capsys.readouterr().out
    server = start_in_thread(MetastoreNamespace(root=root))
    try:
        assert [problem.note for problem in Catalog(server.url).verify()] == [True, True]
        assert main(["--catalog", server.url, "verify"]) == 0
    finally:
        server.stop()
    catalog.collect(grace=timedelta(0))
    assert catalog.verify() == []
    next((tmp_path / "lake").rglob("*.lance/data/*.lance")).unlink()
    assert main(["--catalog", root, "verify"]) == 1


def test_a_folder_that_holds_nothing_is_no_finding(tmp_path: Path) -> None:
    """Some S3 servers list the folders of deleted objects for a while. Before, they were unfinished creations."""
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_table("a.t", ROWS)
    (tmp_path / "lake" / "0123abcd_a$gone" / "_versions").mkdir(parents=True)
    assert catalog.verify() == []
    (tmp_path / "lake" / "0123abcd_a$gone" / "_versions" / "1.manifest-0").write_bytes(b"")
    assert [(problem.kind, problem.note) for problem in catalog.verify()] == [("unfinished_creation", True)]
