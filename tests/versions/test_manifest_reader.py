"""Many manifests read one after the other name what each of them names, whatever they share."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headwater.lance_manifest import ManifestReader, names_in, read_contents


def manifests(root: Path) -> list[bytes]:
    """Those of a table that grew, lost rows, got an index and a column, was compacted and restored."""
    uri = str(root / "t.lance")
    for number in range(6):
        dataset = lance.write_dataset(
            pa.table({"id": [number, number + 10]}), uri, mode="append" if number else "create"
        )
    dataset.delete("id = 12")
    dataset.create_scalar_index("id", "BTREE")
    dataset.add_columns({"more": "id + 1"})
    dataset.optimize.compact_files()
    dataset.checkout_version(3).restore()
    return [path.read_bytes() for path in sorted(Path(uri).glob("_versions/*.manifest"))]


@pytest.mark.parametrize("order", [1, -1])
def test_the_names_of_many_manifests_are_those_of_each(tmp_path: Path, order: int) -> None:
    given = manifests(tmp_path)[::order]
    assert len(given) > 8
    alone = [read_contents(data) for data in given]
    files, folders = names_in(given)
    assert files == frozenset().union(*(each.files for each in alone))
    assert folders == frozenset().union(*(each.folders for each in alone))
    reader, sizes = ManifestReader(), dict[str, int]()
    for data, each in zip(given, alone, strict=True):
        found = reader.read(data)
        sizes |= found.sizes
        assert found.committed_ms == each.committed_ms
        assert found.files <= each.files
        assert each.files <= sizes.keys() | {name for name in each.files if not name.startswith("data/")}


def test_a_manifest_that_was_read_before_names_only_what_is_not_a_fragment(tmp_path: Path) -> None:
    data = manifests(tmp_path)[0]
    reader = ManifestReader()
    whole, again = reader.read(data), reader.read(data)
    assert any(name.startswith("data/") for name in whole.files)
    assert not any(name.startswith("data/") for name in again.files)


def test_a_manifest_that_is_not_understood_takes_nothing_from_the_next(tmp_path: Path) -> None:
    first, *_, last = manifests(tmp_path)
    reader = ManifestReader()
    seen = set(reader.read(first).files)
    for broken in (b"nothing", first[:-1]):
        with pytest.raises(ValueError):  # noqa: PT011  # whatever is wrong first
            reader.read(broken)
    assert seen | reader.read(last).files >= read_contents(last).files
