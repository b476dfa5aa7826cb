"""Digests of files: one that has rested is read once, and a change is always seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.streams.sources import source_files
from headwater.streams.sources.source_files import digest_of_file


def test_a_change_is_seen_though_name_size_and_time_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "SETTLED_S", -1)
    monkeypatch.setattr(source_files, "RESTED_S", -1)
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
    if rests:
        monkeypatch.setattr(source_files, "SETTLED_S", -1)
        monkeypatch.setattr(source_files, "RESTED_S", -1)
    before = digest_of_file(str(path))
    path.write_text("two")  # as through memory: the marks are those of before
    monkeypatch.setattr(os, "stat", lambda name, **_: found)
    assert (digest_of_file(str(path)) == before) is rests


def test_a_new_file_is_read_again_once_when_it_has_settled_and_once_when_it_has_rested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a folder in which files arrive read all files of the last minute at every look."""
    path = tmp_path / "a"
    path.write_text("0")
    found = os.stat(path)
    monkeypatch.setattr(os, "stat", lambda name, **_: found)
    seen = []
    for age in (1, 2, 6, 7, 59, 61, 62, 900):
        path.write_text(str(age))  # as through memory
        monkeypatch.setattr("time.time", lambda at=found.st_ctime + age: at)
        seen.append(digest_of_file(str(path)))
    read = [digest_of_file_of(tmp_path, str(age)) for age in (1, 2, 6, 6, 6, 61, 61, 61)]
    assert seen == read


def digest_of_file_of(folder: Path, text: str) -> str:
    (folder / "other").write_text(text)
    return source_files._digest_of_files([str(folder / "other")])
