"""Manifests of Lance tables, read and written without pylance: held against pylance's own."""

from __future__ import annotations

from pathlib import Path

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.fragment import LanceFragment
from lance.namespace import DirectoryNamespace as PylanceNamespace

from headwater import DirectoryNamespace
from headwater.errors import InternalError
from headwater.protobuf import number, numbers, packed, pair, pairs, parse, pick, text, varint
from headwater.registries.manifest import table as manifest_table
from headwater.registries.manifest.format import Manifest, live_rows, parse_manifest
from headwater.registries.manifest.state import CHANGES
from headwater.tables.layout import manifest_name

OURS = {"dir_listing_enabled": "false"}


def manifest(folder: Path, version: int) -> Manifest:
    return parse_manifest((folder / "_versions" / manifest_name(version)).read_bytes())


def catalog(root: Path) -> DirectoryNamespace:
    return DirectoryNamespace(root=str(root), **OURS)


def create(namespace: object, *names: str) -> None:
    for name in names:
        namespace.create_namespace(api.CreateNamespaceRequest(id=[name]))  # type: ignore[attr-defined]


def names(namespace: object) -> set[str]:
    return set(namespace.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces)  # type: ignore[attr-defined]


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**29 - 1))
def test_numbers_are_written_as_they_are_read(value: int, field: int) -> None:
    assert list(parse(number(field, value))) == [(field, value, number(field, value))]
    assert numbers(varint(value)) == [value]


@given(st.dictionaries(st.text(), st.text()), st.lists(st.integers(0, 2**32)))
def test_maps_and_lists_are_written_as_they_are_read(values: dict[str, str], listed: list[int]) -> None:
    assert dict(pair(entry) for _, entry, _ in parse(pairs(4, values)) if isinstance(entry, bytes)) == values
    assert [item for _, found, _ in parse(packed(1, listed)) for item in numbers(found)] == listed


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_bytes_that_are_no_manifest_are_refused_and_nothing_else(data: bytes, position: int) -> None:
    for candidate in (data, data + position.to_bytes(8, "little") + b"\0\0\2\0LANC"):
        try:
            parse_manifest(candidate)
        except ValueError:
            continue
        assert b"LANC" in candidate


def test_a_manifest_of_pylance_is_read_as_pylance_reads_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"a": range(10), "b": ["x"] * 10}), uri, max_rows_per_file=4)
    dataset.delete("a < 2")
    dataset.update_metadata({"k": "v"})
    found = manifest(tmp_path / "t", 3)
    assert found.version == 3
    assert found.metadata == {"k": "v"}
    assert found.data_version == dataset.data_storage_version
    assert list(found.fragments) == [item.fragment_id for item in dataset.get_fragments()]
    assert [live_rows(raw) for raw in found.fragments.values()] == [2, 4, 2]
    assert found.is_plain
    before = manifest(tmp_path / "t", 1)
    assert before.fragments[0] != found.fragments[0]
    assert before.fragments[1] == found.fragments[1]
    assert before.identity != found.identity
    assert manifest(tmp_path / "t", 2).transaction is not None


def test_pylance_reads_validates_and_explains_what_we_wrote(tmp_path: Path) -> None:
    create(catalog(tmp_path), "a", "b", "c")
    catalog(tmp_path).drop_namespace(api.DropNamespaceRequest(id=["b"]))
    dataset = lance.dataset(str(tmp_path / "__manifest"))
    dataset.validate()
    assert sorted(map(str, dataset.to_table().column("object_id").to_pylist())) == ["a", "c"]
    newest = manifest(tmp_path / "__manifest", dataset.version)
    assert newest.transaction is not None
    assert CHANGES in newest.transaction.properties
    transaction = dataset.read_transaction(dataset.version)
    assert transaction is not None
    assert isinstance(transaction.operation, lance.LanceOperation.Update)
    assert transaction.read_version == newest.transaction.read_version == dataset.version - 1
    assert list(transaction.operation.removed_fragment_ids) == list(newest.transaction.removed)
    assert [item["version"] for item in dataset.versions()] == list(range(1, dataset.version + 1))


def test_a_writer_of_pylance_that_is_behind_sees_our_commits(tmp_path: Path) -> None:
    """It rebases what may be rebased, and is refused where our commit took away what it builds on."""
    create(catalog(tmp_path), "a")
    behind = lance.dataset(str(tmp_path / "__manifest"))
    row = behind.to_table()
    create(catalog(tmp_path), "b", "c")
    fragment = LanceFragment.create(behind.uri, row.set_column(0, row.schema.field(0), pa.array(["z"])))
    replacing = lance.LanceOperation.Update(
        removed_fragment_ids=[behind.get_fragments()[0].fragment_id], updated_fragments=[], new_fragments=[fragment]
    )
    with pytest.raises(OSError, match="onflict"):
        lance.LanceDataset.commit(behind.uri, replacing, read_version=behind.version)
    lance.LanceDataset.commit(behind.uri, lance.LanceOperation.Append([fragment]), read_version=behind.version)
    assert names(catalog(tmp_path)) == {"a", "b", "c", "z"}
    create(PylanceNamespace(root=str(tmp_path), **OURS), "p")
    create(catalog(tmp_path), "q")
    assert names(PylanceNamespace(root=str(tmp_path), **OURS)) == {"a", "b", "c", "p", "q", "z"}


def test_a_table_with_an_index_is_committed_to_by_pylance_and_keeps_it(tmp_path: Path) -> None:
    create(catalog(tmp_path), "a")
    lance.dataset(str(tmp_path / "__manifest")).create_scalar_index("object_id", "BTREE")
    before = lance.dataset(str(tmp_path / "__manifest"))
    assert not manifest(tmp_path / "__manifest", before.version).is_plain
    create(catalog(tmp_path), "b")
    dataset = lance.dataset(str(tmp_path / "__manifest"))
    assert len(dataset.describe_indices()) == 1
    assert dataset.to_table(filter="object_id = 'b'").num_rows == 1
    assert names(catalog(tmp_path)) == {"a", "b"}


def test_one_process_follows_another_without_reading_data_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = catalog(tmp_path), catalog(tmp_path)
    create(writer, "a", "b")
    assert names(reader) == {"a", "b"}
    monkeypatch.setattr(manifest_table.ManifestTable, "_load", None)
    create(writer, "c", "d")
    writer.drop_namespace(api.DropNamespaceRequest(id=["a"]))
    assert names(reader) == {"b", "c", "d"}


def test_deletion_files_are_followed_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a large fragment are deleted by pylance; who follows knows which they were."""
    monkeypatch.setattr("headwater.registries.manifest.state.REWRITE_ROWS", 2)
    writer, reader = catalog(tmp_path), catalog(tmp_path)
    create(writer, *(f"n{number}" for number in range(12)))
    assert len(names(reader)) == 12
    writer.drop_namespace(api.DropNamespaceRequest(id=["n3"]))
    newest = lance.dataset(str(tmp_path / "__manifest"))
    assert any(item.metadata.deletion_file for item in newest.get_fragments())
    with monkeypatch.context() as patch:
        patch.setattr(manifest_table.ManifestTable, "_load", None)
        assert names(reader) == {f"n{number}" for number in range(12)} - {"n3"}
    create(writer, "after")
    assert names(reader) == names(catalog(tmp_path)) == {*(f"n{number}" for number in range(12)), "after"} - {"n3"}


def test_a_catalog_that_was_removed_and_made_anew_is_not_followed_from_the_old_one(tmp_path: Path) -> None:
    reader = catalog(tmp_path)
    create(catalog(tmp_path), "a", "b")
    assert names(reader) == {"a", "b"}
    (tmp_path / "__manifest").rename(tmp_path / "old")
    create(catalog(tmp_path), "x", "y", "z")
    assert names(reader) == {"x", "y", "z"}


def test_a_change_too_long_for_a_manifest_is_read_from_the_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.registries.manifest.state.LONGEST_CHANGES", 10)
    writer, reader = catalog(tmp_path), catalog(tmp_path)
    create(writer, "a")
    assert names(reader) == {"a"}
    create(writer, "b")
    newest = lance.dataset(str(tmp_path / "__manifest")).version
    made = manifest(tmp_path / "__manifest", newest).transaction
    assert made is not None
    assert CHANGES not in made.properties
    assert names(reader) == {"a", "b"}


def test_a_new_fragment_never_takes_the_number_of_another(tmp_path: Path) -> None:
    """Older writers leave out which number was given last."""
    create(catalog(tmp_path), "a")
    folder = tmp_path / "__manifest"
    newest = lance.dataset(str(folder)).version
    found = manifest(folder, newest)
    bare = b"".join(text(2, raw) for raw in found.fragments.values()) + number(3, newest)
    data = len(bare).to_bytes(4, "little") + bare + bytes(8) + b"\0\0\2\0LANC"
    assert parse_manifest(data).max_fragment == max(found.fragments) == found.max_fragment


def test_a_data_file_stays_when_it_is_not_sure_that_the_commit_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that seemed to fail may land late, and its manifest names the file."""
    namespace = catalog(tmp_path)
    create(namespace, "a")
    late: list[bytes] = []

    def lose(store: object, key: str, data: bytes) -> bool:
        late.append(data)
        raise InternalError("The storage did not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(manifest_table, "create", lose)
        with pytest.raises(InternalError):
            create(namespace, "b")
    newest = lance.dataset(str(tmp_path / "__manifest")).version
    (tmp_path / "__manifest" / "_versions" / manifest_name(newest + 1)).write_bytes(late[0])
    assert names(namespace) == names(catalog(tmp_path)) == {"a", "b"}


def test_a_field_that_is_not_known_leaves_the_table_to_pylance(tmp_path: Path) -> None:
    create(catalog(tmp_path), "a")
    folder = tmp_path / "__manifest"
    newest = lance.dataset(str(folder)).version
    found = manifest(folder, newest)
    assert found.is_plain
    path = folder / "_versions" / manifest_name(newest)
    data = path.read_bytes()
    position = int.from_bytes(data[-16:-8], "little")
    message = data[position + 4 : -16] + text(63, "from the future")
    path.write_bytes(data[:position] + len(message).to_bytes(4, "little") + message + data[-16:])
    assert not manifest(folder, newest).is_plain
    create(catalog(tmp_path), "b")
    assert names(catalog(tmp_path)) == {"a", "b"}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2**64 - 1) | st.binary(max_size=300)), max_size=20), st.data()
)
def test_one_field_is_picked_as_parsing_all_finds_it(
    fields: list[tuple[int, int | bytes]], data: st.DataObject
) -> None:
    message = b"".join(number(*item) if isinstance(item[1], int) else text(*item) for item in fields)  # type: ignore[arg-type]
    wanted = data.draw(st.integers(1, 40))
    assert pick(message, wanted) == [value for field, value, _ in parse(message) if field == wanted]
    cut = message[: data.draw(st.integers(0, len(message)))]
    try:
        expected = [value for field, value, _ in parse(cut) if field == wanted]
    except ValueError:
        with pytest.raises(ValueError, match="message"):
            pick(cut, wanted)
    else:
        assert pick(cut, wanted) == expected


def test_eight_and_four_bytes_are_picked_and_an_unknown_kind_is_no_message() -> None:
    fixed = varint(3 << 3 | 1) + bytes(8) + varint(4 << 3 | 5) + b"abcd"
    assert pick(fixed, 4) == [b"abcd"]
    with pytest.raises(ValueError, match="wire type"):
        pick(varint(3 << 3 | 3), 3)
