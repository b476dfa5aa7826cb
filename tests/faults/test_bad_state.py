"""Damaged and foreign files in the root: a named error or none at all, nothing lost, other tables unaffected."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import lance_namespace as api
import pyarrow as pa
import pytest

from headwater import Catalog, DirectoryNamespace
from headwater.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError, ThrottlingError
from headwater.tables.translate import kind_of
from headwater.testing.namespace_suite import code_of
from tests.faults.processes import MODES, Outcome, call, check_sound, perform

READS = (
    call("list_tables"),
    call("list_namespaces"),
    call("list_all_tables"),
    call("describe_table", "keep", load_detailed_metadata=True),
    call("table_exists", "keep"),
    call("count_table_rows", "keep"),
)
WRITES = (
    call("create_namespace", "fresh"),
    call("declare_table", "fresh-declared"),
    call("create_table", "fresh-table", rows=3),
    call("drop_table", "keep"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def filled(root: Path, mode: str) -> DirectoryNamespace:
    namespace = DirectoryNamespace(root=str(root), **MODES[mode])
    for name in ("keep", "other"):
        assert perform(namespace, call("create_table", name, rows=3)) is None
    return namespace


def ask_all(root: Path, mode: str) -> list[Outcome]:
    """Every call ends in an answer or in a named error; anything else would be raised here."""
    return [perform(DirectoryNamespace(root=str(root), **MODES[mode]), what) for what in (*READS, *WRITES)]


def files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "__manifest").rglob("*") if path.is_file())


def test_a_damaged_manifest_is_a_named_error_and_never_a_crash(root: Path, tmp_path: Path) -> None:
    filled(root, "V2")
    chance = random.Random(7)
    damages: list[Callable[[bytes], bytes]] = [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: bytes(chance.randrange(256) for _ in data),
        *[lambda data: _flipped(data, chance)] * 4,
    ]
    for number, path in enumerate(files(root)):
        for kind, damage in enumerate(damages):
            broken = tmp_path / f"{number}-{kind}"
            shutil.copytree(root, broken)
            victim = broken / path.relative_to(root)
            victim.write_bytes(damage(victim.read_bytes()))
            data_before = sorted(broken.glob("*_other/data/*"))
            ask_all(broken, "V2")
            assert sorted(broken.glob("*_other/data/*")) == data_before
            shutil.rmtree(broken)


def _flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def test_a_manifest_whose_newest_version_is_truncated_says_so_and_loses_nothing(root: Path) -> None:
    filled(root, "V2")
    newest = min((root / "__manifest" / "_versions").glob("*.manifest"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    namespace = DirectoryNamespace(root=str(root), **MODES["V2"])
    with pytest.raises(LanceNamespaceError, match="__manifest") as caught:
        namespace.list_tables(api.ListTablesRequest(id=[]))
    assert int(caught.value.code) == 18
    assert perform(namespace, call("create_namespace", "fresh")) == 18
    newest.write_bytes(whole)
    assert perform(namespace, call("create_namespace", "fresh")) is None
    check_sound(str(root), "V2", rows=3)


@pytest.mark.parametrize("mode", ["V2", "compat"])
def test_a_manifest_that_is_no_catalog_table_is_refused_and_left_alone(root: Path, mode: str) -> None:
    lance.write_dataset(pa.table({"something": [1, 2]}), str(root / "__manifest"))
    outcomes = ask_all(root, mode)
    assert set(outcomes) == {18}
    assert lance.dataset(str(root / "__manifest")).to_table().to_pydict() == {"something": [1, 2]}
    assert [path.name for path in root.iterdir() if path.name != ".headwater"] == ["__manifest"]


@pytest.mark.parametrize("mode", ["V2", "compat"])
def test_a_file_where_the_manifest_should_be_is_a_named_error(root: Path, mode: str) -> None:
    root.mkdir()
    (root / "__manifest").write_text("precious")
    assert set(ask_all(root, mode)) == {18}
    assert (root / "__manifest").read_text() == "precious"


@pytest.mark.parametrize("mode", MODES)
def test_a_file_where_the_root_should_be_is_a_named_error(root: Path, mode: str) -> None:
    namespace = DirectoryNamespace(root=str(root), **MODES[mode])
    root.write_text("precious")
    with pytest.raises(InvalidInputError, match="is not a folder"):
        DirectoryNamespace(root=str(root), **MODES[mode])
    asked = (call("list_tables"), call("declare_table", "t"), call("create_table", "t", rows=3))
    assert [perform(namespace, what) for what in asked] == [18, 18, 18]
    assert root.read_text() == "precious"


@pytest.mark.parametrize("mode", MODES)
def test_a_file_where_the_catalogs_own_folder_should_be_loses_nothing(root: Path, mode: str) -> None:
    namespace = filled(root, mode)
    shutil.rmtree(root / ".headwater", ignore_errors=True)
    (root / ".headwater").write_text("precious")
    assert perform(namespace, call("drop_table", "other")) == (None if mode == "V1" else 18)
    if mode == "V1":
        assert perform(namespace, call("create_table", "other", rows=3)) is None
    else:
        assert perform(namespace, call("create_namespace", "n")) == 18
        assert perform(namespace, call("create_table", "new", rows=3)) == 18
    (root / ".headwater").unlink()
    check_sound(str(root), mode, rows=3, leaks=True)
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["keep", "other"]


@pytest.mark.parametrize("mode", MODES)
def test_foreign_files_and_folders_in_the_root_change_nothing(root: Path, mode: str) -> None:
    namespace = filled(root, mode)
    (root / "README.txt").write_text("hello")
    (root / "file.lance").write_text("a file, no folder")
    (root / "empty.lance").mkdir()
    (root / "notes").mkdir()
    (root / "notes" / "a.parquet").write_bytes(b"PAR1")
    (root / ".lance").mkdir()
    (root / ".lance" / "x").write_text("")
    (root / "loop.lance").symlink_to("loop.lance")
    (root / "gone.lance").symlink_to("nowhere")
    os.makedirs(os.fsencode(root) + b"/\xff\xfe.lance/x")
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["keep", "other"]
    assert namespace.list_all_tables(api.ListTablesRequest()).tables == ["keep", "other"]
    assert perform(namespace, call("drop_table", "other")) is None
    assert perform(namespace, call("create_table", "empty", rows=3)) is None
    for name in ("file", "loop", "gone"):
        assert perform(namespace, call("create_table", name, rows=3)) in (None, 5, 18, 19)
        assert perform(namespace, call("drop_table", name)) in (None, 4, 18)
    assert perform(namespace, call("count_table_rows", "keep")) is None
    assert (root / "README.txt").read_text() == "hello"
    assert (root / "notes" / "a.parquet").exists()


@pytest.mark.parametrize("mode", ["V1", "compat"])
def test_a_broken_table_folder_is_listed_and_does_not_harm_the_others(root: Path, mode: str) -> None:
    namespace = filled(root, mode)
    (root / "broken.lance" / "_versions").mkdir(parents=True)
    (root / "broken.lance" / "_versions" / f"{2**64 - 2}.manifest").write_bytes(b"not a manifest")
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["broken", "keep", "other"]
    assert perform(namespace, call("count_table_rows", "broken")) in (18, 19)
    assert perform(namespace, call("describe_table", "broken", load_detailed_metadata=True)) in (18, 19)
    assert perform(namespace, call("count_table_rows", "keep")) is None
    assert perform(namespace, call("drop_table", "broken")) is None
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["keep", "other"]


def test_a_row_of_the_manifest_that_points_outside_harms_nothing_there(root: Path, tmp_path: Path) -> None:
    """An attack by someone who can write the catalog's table; the victim lies in this test's own folder."""
    namespace = filled(root, "V2")
    victim = tmp_path / "victim"
    lance.write_dataset(pa.table({"n": [1]}), str(victim))
    dataset = lance.dataset(str(root / "__manifest"))
    row = dataset.to_table(limit=1).to_pylist()[0]
    for number, location in enumerate(("../victim", str(victim), "a/../../victim", "", ".", "..")):
        evil = {**row, "object_id": f"evil{number}", "location": location}
        dataset.insert(pa.Table.from_pylist([evil], schema=dataset.schema))
        perform(namespace, call("drop_table", f"evil{number}"))
    assert lance.dataset(str(victim)).count_rows() == 1
    assert lance.dataset(str(root / "__manifest")).count_rows() >= 2
    assert perform(namespace, call("count_table_rows", "keep")) is None


@pytest.mark.parametrize("mode", MODES)
def test_huge_requests_are_refused_by_name_and_change_nothing(root: Path, mode: str) -> None:
    namespace = filled(root, mode)
    deep = [f"l{level}" for level in range(65)]
    many = {f"p{number}": "v" for number in range(1001)}
    for id in (["x" * 256], ["é" * 128], deep):
        for operation in ("declare_table", "describe_table", "drop_table", "create_namespace"):
            assert perform(namespace, call(operation, *id)) == 13
    assert perform(namespace, call("create_table", "t", rows=3, properties=many)) == 13
    assert perform(namespace, call("create_namespace", "n", properties={"k": "v" * 70_000})) == 13
    assert perform(namespace, call("create_namespace", "n", properties={"": "v"})) == 13
    assert code_of(lambda: namespace.list_tables(api.ListTablesRequest(id=[], page_token="A" * 100_000))) == 13
    assert namespace.list_all_tables(api.ListTablesRequest()).tables == ["keep", "other"]


def test_a_thousand_properties_and_sixty_four_levels_are_kept(root: Path) -> None:
    namespace = DirectoryNamespace(root=str(root))
    many = {f"p{number}": "v\u00e9" * 10 for number in range(1000)}
    names = [f"l{level}" for level in range(64)]
    for end in range(1, 64):
        assert perform(namespace, call("create_namespace", *names[:end])) is None
    assert perform(namespace, call("create_table", *names, rows=3, properties=many)) is None
    found = DirectoryNamespace(root=str(root)).describe_table(api.DescribeTableRequest(id=names))
    assert found.properties == many
    assert perform(namespace, call("count_table_rows", *names)) is None


def test_a_manifest_that_makes_pylance_panic_is_a_named_error(root: Path) -> None:
    filled(root, "V2")
    newest = min((root / "__manifest" / "_versions").glob("*.manifest"))
    newest.write_bytes(newest.read_bytes().replace(b"string", b"strung"))
    outcomes = ask_all(root, "V2")
    assert all(outcome == 18 for outcome in outcomes), outcomes


@pytest.mark.parametrize("kind", [ServiceUnavailableError, ThrottlingError])
def test_an_outage_that_pylance_tells_in_its_own_words_keeps_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[LanceNamespaceError]
) -> None:
    lake = Catalog(tmp_path)
    lake.create_table("t", [{"id": 1}])

    def away(request: object) -> object:
        raise kind("The storage did not do its part.")

    monkeypatch.setattr(lake.namespace, "list_table_versions", away)
    with pytest.raises(Exception, match="did not do its part") as raised:
        lance.dataset(namespace_client=lake.namespace, table_id=["t"])
    assert kind_of(raised.value) is kind
