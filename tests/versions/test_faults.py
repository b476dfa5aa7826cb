"""A writer killed at any step leaves a version or none, a reader that finishes its work, and no blocked writer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import lance
import pytest

from headwater.errors import ConcurrentModificationError, LanceNamespaceError
from headwater.model import Version
from headwater.names import ObjectId
from headwater.namespace.directory import DirectoryNamespace
from headwater.store import Crash, CrashesAtStore
from headwater.tables.layout import manifest_name
from tests.children import PROCESSES
from tests.versions.dying import STEPS, write
from tests.versions.samples import MANAGED, append, make, numbers, open_kind, opened, stage


@pytest.fixture(params=MANAGED)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryNamespace:
    return open_kind(str(request.param), tmp_path / "lake")


def kill_at(catalog: DirectoryNamespace, step: str) -> None:
    writer = PROCESSES.Process(target=write, args=(catalog.properties.root, step))
    writer.start()
    writer.join(120)
    assert writer.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_killed_at_a_step_leaves_a_version_or_none_and_blocks_nobody(
    catalog: DirectoryNamespace, step: str
) -> None:
    folder = make(catalog, versions=2)
    kill_at(catalog, step)
    expected = [2, 1] if step == "staged" else [3, 2, 1]
    reader = DirectoryNamespace(root=catalog.properties.root)
    assert numbers(reader) == expected
    assert opened(reader).version == expected[0]
    assert opened(reader).count_rows() == 3 + len(expected) - 1
    assert os.path.exists(os.path.join(folder, "_versions", manifest_name(expected[0])))
    assert lance.dataset(folder).version == expected[0]
    for value in (1, 2):
        assert append(catalog, value=value).version == len(expected) + value
    assert opened(DirectoryNamespace(root=catalog.properties.root)).count_rows() == 3 + len(expected) - 1 + 2
    check_order(DirectoryNamespace(root=catalog.properties.root), step)


def check_order(keeper: DirectoryNamespace, step: str) -> None:
    """Somebody who settles the table finds every record at its final manifest, and at most a stray staged file."""
    table = ObjectId(("t",))
    keeper.settle(table)
    records = keeper.versions.records
    assert records is not None
    found = records.find([table.child(str(number)) for number in records.versions(table)]).values()
    assert all(isinstance(item, Version) and item.manifest_path.endswith(".manifest") for item in found)
    left = {problem.kind for problem in keeper.verify()}
    assert left == ({"staged_leftover"} if step in ("staged", "pointed") else set())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 9))
def test_a_crash_at_any_write_of_a_creation_leaves_all_or_nothing(tmp_path: Path, step: int, after: bool) -> None:
    """The wrapper kills the catalog's own writes, one after the other, of a CreateTableVersion."""
    catalog = open_kind(MANAGED[step % 2], tmp_path / "lake")
    make(catalog, versions=2)
    request = stage(catalog, "t", 3)
    dying = DirectoryNamespace(root=catalog.properties.root)
    dying.describe_table({"id": ["t"]})  # type: ignore[arg-type]
    store = CrashesAtStore(dying.store, step, after)
    managed = dying.versions.managed
    assert managed is not None
    dying.versions.store = managed.store = dying.versions.storage.store = store
    dying.versions.managed.records.table.store = store  # type: ignore[union-attr]
    try:
        dying.create_table_version(request)  # type: ignore[arg-type]
        managed.point()
    except (Crash, LanceNamespaceError, OSError):
        pass
    found = numbers(DirectoryNamespace(root=catalog.properties.root))
    assert found in ([2, 1], [3, 2, 1])
    retry = stage(catalog, "t", 3) if found == [2, 1] else stage(catalog, "t", 4)
    catalog.create_table_version(retry)  # type: ignore[arg-type]
    assert numbers(catalog) == list(range(len(found) + 1, 0, -1))


def test_a_reader_without_permission_to_write_still_reads_what_is_final(
    catalog: DirectoryNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(catalog, versions=3)
    reader = DirectoryNamespace(root=catalog.properties.root)

    def refuse(*args: object, **kwargs: object) -> None:
        raise ConcurrentModificationError("no")

    assert reader.versions.records is not None
    monkeypatch.setattr(reader.versions.records, "commit", refuse)
    assert numbers(reader) == [3, 2, 1]
    assert opened(reader).count_rows() == 5
    assert reader.versions.managed is not None
    assert reader.versions.managed.point() == 0
