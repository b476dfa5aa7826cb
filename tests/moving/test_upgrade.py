"""A directory root becomes a metastore: everything is kept, nothing is copied, a kill at any step is gone on from."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace as PylanceNamespace

import headwater
from headwater import Catalog, DirectoryNamespace, MetastoreNamespace
from headwater.clock import SystemClock
from headwater.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
)
from headwater.metastore import Metastore
from headwater.metastore.commit.root_kinds import UPGRADE_MARKER
from headwater.moving import upgrade
from headwater.moving.upgrade import Upgrade
from headwater.namespace.registry_kinds import parse_properties
from headwater.store import Crash, CrashesAtStore, LocalStore, LosesAnswerStore
from tests.interop.roots import create

ROWS = pa.table({"n": [1, 2, 3]})
OWN = "0123abcd-0000-4000-8000-000000000000"
"""A folder as a metastore names its own."""
LAYOUTS: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "managed": {"table_version_management": "true"},
    "early": {"layout": "early"},
}


def make(root: Path, layout: str) -> None:
    """Two tables, one with three versions, a tag and a branch; names and properties where the layout has them."""
    catalog = Catalog(str(root), impl="dir", **LAYOUTS[layout])
    names = ["t", "u"] if layout in ("V1", "early") else ["t", "deep.er.u"]
    for name in names:
        catalog.create_table(name, ROWS)
    table = catalog["t"]
    table.append(ROWS)
    table.append(ROWS)
    dataset = lance.dataset(str(location(root, "t", layout)))
    dataset.tags.create("first", 1)
    dataset.create_branch("side", 2)
    if layout not in ("V1", "early"):
        catalog.alter_namespace("deep", {"owner": "me"})
        catalog.alter_namespace("", {"team": "ml"})
        catalog.declare_table("promised")


def location(root: Path, name: str, layout: str) -> Path:
    found = Catalog(str(root), impl="dir", **LAYOUTS[layout])[name].describe().location
    return Path(found.removeprefix("file://"))


def files(root: Path) -> dict[str, bytes]:
    """The files of tables, by name."""
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in found if path.suffix in (".lance", ".manifest")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_properties_versions_tags_and_branches_are_kept_and_no_file_is_copied(
    tmp_path: Path, layout: str
) -> None:
    make(tmp_path, layout)
    before = {key: data for key, data in files(tmp_path).items() if not key.startswith("__manifest")}
    done = upgrade(str(tmp_path), {"layout": "early"} if layout == "early" else {})
    after = {key: data for key, data in files(tmp_path).items() if not key.startswith("__manifest")}
    assert after == before
    assert (done.tables, done.versions, done.slot) == (2 if layout in ("V1", "early") else 3, 4, 1)

    catalog = Catalog(str(tmp_path))
    assert isinstance(catalog.namespace, MetastoreNamespace)
    table = catalog["t"]
    assert [version.version for version in table.versions()] == [1, 2, 3]
    assert table.count() == 9
    assert table.at(2).count() == 6
    assert (list(table.tags), list(table.branches)) == (["first"], ["side"])
    if layout not in ("V1", "early"):
        assert catalog.namespace_properties("deep") == {"owner": "me"}
        assert catalog.namespace_properties() == {"team": "ml"}
        assert catalog["deep.er.u"].count() == 3
        assert "promised" in catalog
    table.append(ROWS)
    assert (table.count(), table.describe().managed_versioning) == (12, True)
    assert catalog.namespace.verify() == []


def upgrader(root: Path, store: Any, layout: str = "compat") -> Upgrade:
    properties = {"root": str(root), **({"layout": "early"} if layout == "early" else {})}
    return Upgrade(store, parse_properties(properties), SystemClock())


def openings(root: Path) -> list[Any]:
    path = str(root)
    return [
        lambda: Catalog(path).tables(),
        lambda: headwater.connect("dir", {"root": path}),
        lambda: headwater.connect("metastore", {"root": path}),
        lambda: headwater.open_catalog(path),
        lambda: DirectoryNamespace(root=path, manifest_enabled="false"),
        lambda: DirectoryNamespace(root=path, dir_listing_enabled="false"),
    ]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("layout", ["V1", "managed"])
def test_killed_at_any_step_the_root_is_as_before_or_closed_until_it_is_run_again(
    tmp_path: Path, layout: str, after: bool
) -> None:
    make(tmp_path / "0", layout)
    counting = CrashesAtStore(LocalStore(tmp_path / "0"), step=0)
    expected = upgrader(tmp_path / "0", counting).run()
    assert counting.writes > 10
    closed = 0
    for step in (*range(1, 8), *range(8, counting.writes + 1, 7), *range(counting.writes - 2, counting.writes + 1)):
        root = tmp_path / f"{step}"
        make(root, layout)
        with pytest.raises(Crash):
            upgrader(root, CrashesAtStore(LocalStore(root), step, after)).run()
        if (root / UPGRADE_MARKER).exists():
            closed += 1
            for opening in openings(root):
                with pytest.raises(InvalidTableStateError, match="headwater upgrade"):
                    opening()
        else:
            last = after and step == counting.writes
            kind = MetastoreNamespace if last else DirectoryNamespace
            assert isinstance(Catalog(str(root)).namespace, kind)
            assert Catalog(str(root))["t"].count() == 9
            if last:
                continue
        assert upgrade(str(root)) == expected
        assert Catalog(str(root))["t"].count() == 9
        assert Metastore(str(root)).verify() == []
    assert closed > 5


def test_plain_pylance_neither_writes_a_half_upgraded_root_nor_reads_old_names(tmp_path: Path) -> None:
    make(tmp_path, "V2")
    reader = DirectoryNamespace(root=str(tmp_path))
    reader.list_tables(api.ListTablesRequest(id=[]))
    store = CrashesAtStore(LocalStore(tmp_path), step=6)
    with pytest.raises(Crash):
        upgrader(tmp_path, store).run()
    assert (tmp_path / UPGRADE_MARKER).exists()
    theirs = PylanceNamespace(root=str(tmp_path), dir_listing_enabled="false")
    with pytest.raises(Exception, match="writer feature"):
        theirs.create_namespace(api.CreateNamespaceRequest(id=["late"]))
    with pytest.raises(InvalidTableStateError):  # also a handle that was open before
        reader.list_tables(api.ListTablesRequest(id=[]))
    upgrade(str(tmp_path))
    with pytest.raises(Exception, match="reader feature"):
        PylanceNamespace(root=str(tmp_path), dir_listing_enabled="false").list_tables(api.ListTablesRequest(id=[]))
    with pytest.raises(InvalidInputError, match="metastore"):
        reader.list_tables(api.ListTablesRequest(id=[]))
    with pytest.raises(InvalidInputError, match="metastore"):
        DirectoryNamespace(root=str(tmp_path))


def spoil_name(root: Path) -> None:
    (root / "a$b.lance" / "_versions").mkdir(parents=True)


def spoil_place(root: Path) -> None:
    lance.write_dataset(ROWS, str(root / OWN))
    DirectoryNamespace(root=str(root)).register_table(api.RegisterTableRequest(id=["x"], location=OWN))


SPOILT = {"'a\\$b'": spoil_name, f"'{OWN}'": spoil_place}


@pytest.mark.parametrize("reason", SPOILT)
def test_what_a_metastore_cannot_hold_is_refused_before_anything_changes(tmp_path: Path, reason: str) -> None:
    make(tmp_path, "compat")
    SPOILT[reason](tmp_path)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(InvalidInputError, match=reason):
        upgrade(str(tmp_path))
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    Catalog(str(tmp_path)).create_table("still_a_directory", ROWS)


def test_what_became_impossible_meanwhile_opens_the_root_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "compat")
    begin = Upgrade._begin

    def late(self: Upgrade) -> None:
        begin(self)
        spoil_name(tmp_path)

    monkeypatch.setattr(Upgrade, "_begin", late)
    with pytest.raises(InvalidInputError, match="nothing was changed"):
        upgrade(str(tmp_path))
    Catalog(str(tmp_path)).create_table("still_a_directory", ROWS)


def test_only_a_directory_catalog_is_upgraded(tmp_path: Path) -> None:
    with pytest.raises(NamespaceNotFoundError):
        upgrade(str(tmp_path / "nothing"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    Catalog(str(tmp_path / "lake")).create_table("t", ROWS)
    for name, what in (("other", "other things"), ("lake", "metastore")):
        with pytest.raises(InvalidInputError, match=what):
            upgrade(str(tmp_path / name))


def test_tables_of_old_manifest_names_are_taken_over_and_written_on(tmp_path: Path) -> None:
    for _ in range(3):
        lance.write_dataset(ROWS, str(tmp_path / "t.lance"), mode="append", enable_v2_manifest_paths=False)
    upgrade(str(tmp_path))
    table = Catalog(str(tmp_path))["t"]
    table.append(ROWS)
    assert (table.count(), table.at(2).count(), len(table.versions())) == (12, 6, 4)


def test_an_upgrade_on_an_object_store_is_the_same(s3_root: str, s3_options: dict[str, str]) -> None:
    storage = {f"storage.{key}": value for key, value in s3_options.items()}
    catalog = Catalog(s3_root, impl="dir", **storage)
    catalog.create_table("a.t", ROWS)
    catalog["a.t"].append(ROWS)
    assert upgrade(s3_root, storage).versions == 2
    assert Catalog(s3_root, **storage)["a.t"].at(1).count() == 3
    with pytest.raises(LanceNamespaceError, match="metastore"):
        headwater.connect("dir", {"root": s3_root, **storage}).list_tables(api.ListTablesRequest(id=[]))


def test_what_a_writer_was_told_to_be_done_during_an_upgrade_is_there_afterwards(tmp_path: Path) -> None:
    root = str(tmp_path)
    DirectoryNamespace(root=root).create_namespace(api.CreateNamespaceRequest(id=["first"]))
    done: list[str] = []
    refused: list[BaseException] = []
    begun = threading.Event()

    def write() -> None:
        namespace = DirectoryNamespace(root=root)
        for number in range(10_000):
            try:
                namespace.create_namespace(api.CreateNamespaceRequest(id=[f"n{number}"]))
            except LanceNamespaceError as error:
                refused.append(error)
                return
            done.append(f"n{number}")
            begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    begun.wait(60)
    upgrade(root)
    writer.join(60)
    assert refused
    found = set(Catalog(root).namespaces())
    assert found >= {"first", *done}
    assert len(found - {"first", *done}) <= 1  # the one that was refused may have landed first


def test_a_handle_that_was_open_before_writes_nothing_into_a_half_upgraded_root(tmp_path: Path) -> None:
    make(tmp_path, "V1")
    catalog = Catalog(str(tmp_path), impl="dir", manifest_enabled="false")
    assert catalog["t"].count() == 9
    (tmp_path / UPGRADE_MARKER).parent.mkdir(exist_ok=True)
    (tmp_path / UPGRADE_MARKER).write_text("{}")
    for change in (
        lambda: catalog.create_table("late", ROWS),
        lambda: catalog.declare_table("later"),
        lambda: catalog["t"].append(ROWS),
    ):
        with pytest.raises(InvalidTableStateError, match="headwater upgrade"):
            change()


def test_a_row_of_a_manifest_that_no_upgrade_could_flag_is_not_acknowledged(tmp_path: Path) -> None:
    make(tmp_path, "V1")
    catalog = DirectoryNamespace(root=str(tmp_path))
    assert catalog.list_tables(api.ListTablesRequest(id=[])).tables == ["t", "u"]  # open, and no manifest yet
    (tmp_path / UPGRADE_MARKER).parent.mkdir(exist_ok=True)
    (tmp_path / UPGRADE_MARKER).write_text("{}")
    for name in ("made", "added"):
        with pytest.raises(InvalidTableStateError, match="headwater upgrade"):
            catalog.create_namespace(api.CreateNamespaceRequest(id=[name]))


def test_lost_answers_of_the_store_change_nothing(tmp_path: Path) -> None:
    make(tmp_path, "managed")
    lost: set[str] = set()

    def loses(key: str) -> bool:
        """The first write in each folder is not answered. By key, each new name of a probe would be lost for ever."""
        folder = key.rpartition("/")[0]
        first = folder not in lost
        lost.add(folder)
        return first

    for _ in range(50):
        with suppress(ServiceUnavailableError):
            assert upgrader(tmp_path, LosesAnswerStore(LocalStore(tmp_path), loses)).run().versions == 4
            break
    assert Catalog(str(tmp_path))["t"].count() == 9
    assert Metastore(str(tmp_path)).verify() == []


def test_a_root_that_plain_pylance_has_made_is_upgraded(tmp_path: Path) -> None:
    theirs = PylanceNamespace(root=str(tmp_path), dir_listing_enabled="false")
    theirs.create_namespace(api.CreateNamespaceRequest(id=["deep"], properties={"owner": "me"}))
    create(theirs, "deep", "t")
    create(theirs, "u")
    done = upgrade(str(tmp_path))
    assert (done.namespaces, done.tables, done.versions) == (1, 2, 2)
    catalog = Catalog(str(tmp_path))
    assert catalog.namespace_properties("deep") == {"owner": "me"}
    assert (catalog["deep.t"].count(), catalog["u"].count()) == (3, 3)
