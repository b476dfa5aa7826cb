"""Which pages of memory a fold asks for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from numpy._core.multiarray import _set_madvise_hugepage  # type: ignore[attr-defined]

from headwater.streams.fold.fold import TOLD, SmallPages


@pytest.fixture(params=[True, False], autouse=True)
def chosen(request: pytest.FixtureRequest) -> Iterator[bool]:
    """What the process had chosen before anything is folded."""
    before = _set_madvise_hugepage(request.param)
    yield request.param
    _set_madvise_hugepage(before)


def is_huge() -> bool:
    found = bool(_set_madvise_hugepage(True))
    _set_madvise_hugepage(found)
    return found


def test_pages_are_small_while_anybody_folds_and_then_as_they_were(
    chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOLD, raising=False)
    small_pages = SmallPages()
    entered, leave = threading.Event(), threading.Event()

    @small_pages
    def other() -> None:
        entered.set()
        leave.wait(60)

    thread = threading.Thread(target=other)
    with small_pages:
        thread.start()
        entered.wait(60)
        assert not is_huge()
    assert not is_huge()
    leave.set()
    thread.join(60)
    assert is_huge() == chosen


def test_who_has_said_what_pages_to_take_gets_them(chosen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOLD, str(int(chosen)))
    with SmallPages():
        assert is_huge() == chosen
