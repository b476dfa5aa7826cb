"""Digests of files: one that has rested is read once, and a change is always seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.streams.sources import file_digests
from headwater.streams.sources.file_digests import digest_of_file


def test_a_change_is_seen_though_name_size_and_time_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digests, "RESTED_S", -1)
    path = tmp_path / "a"
    path.write_text("one")
    os.utime(path, (1, 1))
    before = digest_of_file(str(path))
    path.write_text("two")
    os.utime(path, (1, 1))
    assert digest_of_file(str(path)) != before


@pytest.mark.parametrize("rests", [True, False])
def test_only_a_file_that_has_rested_is_known_by_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    found = os.stat(path)
    monkeypatch.setattr(file_digests, "RESTED_S", -1 if rests else 60)
    before = digest_of_file(str(path))
    path.write_text("two")  # as through memory: the marks are those of before
    monkeypatch.setattr(os, "stat", lambda name, **_: found)
    assert (digest_of_file(str(path)) == before) is rests
