"""Roots of others: in the layout of the DeltaCAT document with other content, of DeltaCAT 2.x, and our own bare."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import headwater
from headwater.cli import main
from headwater.cli.serving import open_served
from headwater.config import open_catalog
from headwater.errors import InvalidInputError, InvalidTableStateError, NamespaceNotFoundError
from headwater.metastore import Metastore
from headwater.store import CountingStore, memory_store
from tests.metastore.published_reader import read

NAMESPACE, TABLE = "795b929e-9a9a-40fd-aa7b-5bf55eb561a4", "9b08923d-10c6-4fd9-94b2-b8fda02f34a6"
TXN = "21636369-8b52-4b4a-97b7-50923ceb3ffd"


def put(root: Path, key: str, data: bytes = b"") -> None:
    (root / key).parent.mkdir(parents=True, exist_ok=True)
    (root / key).write_bytes(data)


def written_by_another(root: Path, separator: str = "-") -> None:
    """The example of the document: its names are what the document says, their content is the writer's own."""
    file = f"{1:020d}_create_{TXN}"
    put(root, f"txn/1737070822189{separator}{TXN}", msgpack.packb({"operations": []}))
    put(root, f"{hashlib.sha1(b'MyNamespace').hexdigest()}/{file}.{NAMESPACE}")
    put(root, f"{NAMESPACE}/rev/{file}.mpk", msgpack.packb({"namespaceLocator": {"namespace": "MyNamespace"}}))
    put(root, f"{NAMESPACE}/{hashlib.sha1(b'MyNamespace|MyTable').hexdigest()}/{file}.{TABLE}")
    put(root, f"{NAMESPACE}/{TABLE}/rev/{file}.mpk", msgpack.packb({"tableLocator": {"tableName": "MyTable"}}))


def written_by_deltacat(root: Path) -> None:
    put(root, "txn/success/2026/11/18/5/30/1737070822189000000_abc/1737070822190000000", msgpack.packb({}))
    put(root, f"{NAMESPACE}/rev/1000000/1000/{1:020d}_create_1737070822189000000_abc.mpk", msgpack.packb({}))


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


DOORS: dict[str, Any] = {
    "Catalog": lambda root: headwater.Catalog(root).namespaces(),
    "connect": lambda root: headwater.connect("metastore", {"root": root}),
    "a first write": lambda root: headwater.Catalog(root).create_namespace("x"),
    "Metastore": Metastore,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("separator", ["-", "_"])
def test_a_root_that_another_program_wrote_is_refused_with_what_it_holds(
    tmp_path: Path, door: str, separator: str
) -> None:
    written_by_another(tmp_path, separator)
    before = files(tmp_path)
    with pytest.raises(InvalidTableStateError, match="from-deltacat") as refused:
        DOORS[door](str(tmp_path))
    for told in ("MyNamespace", "MyNamespace|MyTable", NAMESPACE, TABLE, "create 1", "1 transaction"):
        assert told in str(refused.value)
    assert files(tmp_path) == before


@pytest.mark.parametrize("door", DOORS)
def test_a_root_of_deltacat_is_refused_by_its_name(tmp_path: Path, door: str) -> None:
    written_by_deltacat(tmp_path)
    before = files(tmp_path)
    with pytest.raises(InvalidTableStateError, match=r"DeltaCAT 2.x.*headwater from-deltacat"):
        DOORS[door](str(tmp_path))
    assert files(tmp_path) == before


FILE = f"{1:020d}_create_{TXN}"
DELTACAT_FILE = f"1000000/1000/{1:020d}_create_1737070822189000000_abc"
PARTS: dict[str, tuple[dict[str, bytes], str]] = {
    "a revision alone": ({f"{NAMESPACE}/rev/{FILE}.mpk": b"x"}, NAMESPACE),
    "names alone": ({f"{hashlib.sha1(b'N').hexdigest()}/{FILE}.{NAMESPACE}": b""}, NAMESPACE),
    "a transaction alone": ({f"txn/1737070822189-{TXN}": b""}, "1 transaction"),
    "another spelling of transactions": (
        {f"txn/1737070822189-{TXN}/start": b"", f"{NAMESPACE}/rev/{FILE}.mpk": msgpack.packb([1])},
        "no transaction",
    ),
    "named ids": ({f"txn/1737070822189_{TXN}": b"\xc1", f"ns/rev/{FILE}.mpk": b"\xc1"}, r"\(ns\)"),
    "content that nests": ({f"{NAMESPACE}/rev/{FILE}.mpk": b"\x91" * 5000}, NAMESPACE),
    "DeltaCAT, running": ({"txn/running/1737070822189000000_abc": b"x"}, "DeltaCAT 2.x"),
    "DeltaCAT, failed": ({"txn/failed/1737070822189000000_abc": b"x"}, "DeltaCAT 2.x"),
    "DeltaCAT, revisions alone": ({f"{NAMESPACE}/rev/{DELTACAT_FILE}.mpk": b"x"}, "DeltaCAT 2.x"),
    "DeltaCAT, names alone": ({f"{hashlib.sha1(b'N').hexdigest()}/{DELTACAT_FILE}.{NAMESPACE}": b""}, "DeltaCAT 2.x"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_another_programs_root_is_refused_through_every_door(
    tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held, told = PARTS[part]
    for key, data in held.items():
        put(tmp_path, key, data)
    before = files(tmp_path)
    writes = {"Metastore": lambda root: Metastore(root).run(lambda tx: tx.create_namespace(["x"]))}
    for door in {**DOORS, **writes}.values():
        with pytest.raises(InvalidTableStateError, match=f"{told}.*from-deltacat"):
            door(str(tmp_path))
    for line in (["tree"], ["create", "x.t", "--schema", "id int"], ["serve"]):
        assert main(["-c", str(tmp_path), *line]) != 0
        assert "from-deltacat" in capsys.readouterr().err
    assert main(["init", str(tmp_path)]) != 0
    assert "from-deltacat" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_a_folder_that_only_has_such_names_is_nobodys_catalog_until_init_makes_one(tmp_path: Path) -> None:
    put(tmp_path, "txn/success/notes.txt", b"mine")
    put(tmp_path, "txn/readme.txt", b"mine")
    put(tmp_path, f"{NAMESPACE}/rev/notes.mpk", b"mine")
    put(tmp_path, f"{hashlib.sha1(b'N').hexdigest()}/blob", b"mine")
    with pytest.raises(InvalidInputError, match="not a catalog, and holds"):
        Metastore(tmp_path)
    assert main(["init", str(tmp_path)]) == 0
    Metastore(tmp_path).run(lambda tx: tx.create_namespace(["a"]))
    assert Metastore(tmp_path).exists(["a"])


DIRECTORIES = {"V1": {"manifest_enabled": "false"}, "V2": {"dir_listing_enabled": "false"}}


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_a_directory_catalog_of_lance_becomes_no_metastore_through_any_door(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = headwater.Catalog(str(tmp_path), impl="dir", **DIRECTORIES[kind])
    catalog.create_table("t", pa.table({"id": [1]}))
    before = files(tmp_path)
    for door in ("connect", "Metastore"):
        with pytest.raises(InvalidInputError, match=r"directory catalog.*headwater upgrade"):
            DOORS[door](str(tmp_path))
    with pytest.raises(InvalidInputError, match="impl=metastore was asked for"):
        headwater.Catalog(str(tmp_path), impl="metastore")
    with pytest.raises(InvalidInputError, match="impl=metastore was asked for"):
        open_served(str(tmp_path), {"impl": "metastore"})
    assert main(["init", str(tmp_path)]) != 0
    assert "a directory catalog (impl=dir) already" in capsys.readouterr().err
    assert files(tmp_path) == before


OTHERS: dict[str, tuple[tuple[str, ...], str]] = {
    "Iceberg": (("db/orders/data/a.parquet", "db/orders/metadata/v1.metadata.json"), r"an Iceberg table \(db/orders\)"),
    "Delta": (("db/orders/_delta_log/0.json", "db/orders/a.parquet"), r"a Delta table \(db/orders\)"),
    "Hudi": (("orders/.hoodie/hoodie.properties",), r"a Hudi table \(orders\)"),
    "Parquet": (("day=1/a.parquet", "day=2/a.parquet"), r"Parquet files \(day=1\)"),
    "one Delta table": (("_delta_log/0.json", "a.parquet"), r"a Delta table \(_delta_log, a.parquet\)"),
    "a folder of days": (("20260101_backup/notes.txt",), "20260101_backup"),
    "many files": (tuple(f"{number}.txt" for number in range(9)), r"0.txt, 1.txt, 2.txt, 3.txt, 4.txt, \.\.\."),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_root_of_other_things_is_refused_by_every_door_with_what_it_holds(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held, told = OTHERS[kind]
    for key in held:
        put(tmp_path, key, b"x")
    before = files(tmp_path)
    opens = {**DOORS, "serve": lambda root: open_served(root, {}), "open_catalog": open_catalog}
    for door in opens.values():
        with pytest.raises((InvalidInputError, NamespaceNotFoundError), match=f"{told}.*headwater init"):
            door(str(tmp_path))
    for line in (["tree"], ["create", "x.t", "--schema", "id int"], ["serve"]):
        assert main(["-c", str(tmp_path), *line]) != 0
        assert "headwater init" in capsys.readouterr().err
    assert files(tmp_path) == before
    assert main(["init", str(tmp_path)]) == 0
    headwater.Catalog(str(tmp_path)).create_table("t", pa.table({"id": [1]}))
    assert Metastore(tmp_path).exists(["t"])
    assert set(before) < set(files(tmp_path))


def test_a_prefix_of_an_object_store_is_checked_by_one_listing_when_it_is_new() -> None:
    unchecked, counting = CountingStore(memory_store()), CountingStore(memory_store())
    Metastore(unchecked, beside_others=True)
    Metastore(counting)
    assert counting.counts - unchecked.counts == {"children": 1}
    counting.put("db/orders/metadata/v1.metadata.json", b"x")
    with pytest.raises(InvalidInputError, match=r"an Iceberg table \(db/orders\)"):
        Metastore(counting)


def test_a_first_write_that_was_cut_off_leaves_a_root_that_opens(tmp_path: Path) -> None:
    put(tmp_path, "3ce7cc59_t/data/0010.lance", b"rows")
    put(tmp_path, "3ce7cc59_t/_transactions/0-02d2328a.txn", b"not committed")
    headwater.Catalog(str(tmp_path)).create_table("t", pa.table({"id": [1]}))
    assert headwater.Catalog(str(tmp_path))["t"].count() == 1


def test_a_root_of_ours_opens_from_its_published_files_alone_also_with_the_documents_other_spelling(
    tmp_path: Path,
) -> None:
    made = Metastore(tmp_path)
    made.run(lambda tx: (tx.create_namespace(["a"], {"owner": "ml"}), tx.create_table(["a", "t"])))
    made.run(lambda tx: tx.append_delta(["a", "t"], ["f"]))
    made.run(lambda tx: (tx.create_table_version(["a", "t"], "2"), tx.activate_table_version(["a", "t"], "2")))
    made.close()
    shutil.rmtree(tmp_path / ".headwater")
    for file in list((tmp_path / "txn").iterdir()):
        file.rename(file.with_name(file.name.replace("_", "-", 1)))
    again = Metastore(tmp_path)
    assert again.get(["a"]).properties == {"owner": "ml"}
    assert [delta.files[0].path for delta in again.deltas(["a", "t"], version="1")] == ["f"]
    assert again.now().get_table_version(["a", "t"]).id == "2"
    assert again.verify() == []
    assert ("a", "t") in {path for path in read(str(tmp_path)) if path}


def test_the_first_transaction_keeps_nobody_out_before_its_commit(tmp_path: Path) -> None:
    """Its rows are files of the root already. They stay there also if its process dies."""
    first, second = headwater.Catalog(tmp_path / "lake"), headwater.Catalog(tmp_path / "lake")
    with first.transaction() as tx:
        tx.create_stream_table("raw.orders", {"id": "int64"}, keys="id").upsert([{"id": 1}])
        assert os.listdir(tmp_path / "lake")
        Metastore(tmp_path / "lake")
        assert headwater.Catalog(tmp_path / "lake").tables() == []
        second.create_namespace("other")
    assert second["raw.orders"].count() == 1
