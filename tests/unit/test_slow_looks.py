"""A listing that looks into folders side by side shows what one look after another shows."""

from __future__ import annotations

from pathlib import Path

from headwater.clock import SeededClock
from headwater.names import ROOT
from headwater.registries.layout import DEREGISTERED_MARKER
from headwater.registries.listing import FIRST_LOOKS, ListingRegistry
from headwater.registry import Kind
from headwater.store import LocalStore


class SlowClock(SeededClock):
    """A second goes by between two questions."""

    def monotonic(self) -> float:
        self.sleep(1)
        return super().monotonic()


def test_a_slow_disk_is_looked_at_side_by_side_and_shows_the_same_tables_in_order(tmp_path: Path) -> None:
    for number in range(3 * FIRST_LOOKS):
        folder = tmp_path / f"t{number}.lance"
        folder.mkdir()
        if number % 5:
            (folder / "_versions").mkdir()
        if number % 7 == 0:
            (folder / DEREGISTERED_MARKER).write_bytes(b"reserved")
    one = ListingRegistry(LocalStore(tmp_path), SeededClock())
    many = ListingRegistry(LocalStore(tmp_path), SlowClock())
    shown = [f"t{number}" for number in range(3 * FIRST_LOOKS) if number % 5 and number % 7]
    assert one.children(ROOT, Kind.TABLE, "", None) == sorted(shown)
    assert many.children(ROOT, Kind.TABLE, "", None) == sorted(shown)
