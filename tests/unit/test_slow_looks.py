"""A listing that looks into folders side by side shows what one look after another shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.clock import SeededClock
from headwater.names import ROOT
from headwater.registries import folders
from headwater.registries.layout import DEREGISTERED_MARKER
from headwater.registries.listing import SHARE, ListingRegistry
from headwater.registry import Kind
from headwater.store import LocalStore
from headwater.store.wrappers import PlainStore


class SlowClock(SeededClock):
    """A second goes by between two questions."""

    def monotonic(self) -> float:
        self.sleep(1)
        return super().monotonic()


def test_a_slow_disk_is_looked_at_side_by_side_and_shows_the_same_tables_in_order(tmp_path: Path) -> None:
    for number in range(3 * SHARE):
        folder = tmp_path / f"t{number}.lance"
        folder.mkdir()
        if number % 5:
            (folder / "_versions").mkdir()
            (folder / "_versions" / "1.manifest").touch()
        if number % 7 == 0:
            (folder / DEREGISTERED_MARKER).write_bytes(b"reserved")
    shown = sorted(f"t{number}" for number in range(3 * SHARE) if number % 5 and number % 7)
    os.mkdir(os.fsencode(tmp_path) + b"/\xff.lance")  # no text: nobody could ask for it
    store = LocalStore(tmp_path)
    for registry in (
        ListingRegistry(store, SeededClock()),
        ListingRegistry(store, SlowClock()),
        ListingRegistry(PlainStore(store), SlowClock()),
    ):
        assert registry.children(ROOT, Kind.TABLE, "", None) == shown


def test_folders_of_a_file_system_that_does_not_count_them_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is one that not everybody may look into, whatever it counts."""
    for name in ("one", "closed"):
        (tmp_path / f"{name}.lance" / "_versions").mkdir(parents=True)
    (tmp_path / "closed.lance").chmod(0o700)
    asked: list[str] = []
    access = os.access

    def noted(path: str, mode: int) -> bool:
        asked.append(path)
        return access(path, mode)

    monkeypatch.setattr(os, "access", noted)
    registry = ListingRegistry(LocalStore(tmp_path), SeededClock())
    assert registry.children(ROOT, Kind.TABLE, "", None) == ["closed", "one"]
    assert [path for path in asked if path.endswith("_versions")] == [f"{tmp_path}/closed.lance/_versions"]
    monkeypatch.setattr(folders, "OWN_LINKS", 1 << 20)
    assert registry.children(ROOT, Kind.TABLE, "", None) == ["closed", "one"]
    assert f"{tmp_path}/one.lance/_versions" in asked
