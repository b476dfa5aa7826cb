"""Killed, unanswered and failing at every request of what a catalog does: nothing torn, blocked or doubled."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.config import open_catalog
from headwater.errors import InvalidTableStateError
from tests.faults import catalog_steps as steps

Rows = dict[str, list[Any]]


@dataclass
class Prepared:
    """A root before an action, what is in it before and after, and the requests that takes."""

    root: Path
    action: str
    before: Rows
    after: Rows
    requests: list[steps.Request]

    @property
    def numbers(self) -> dict[str, list[int]]:
        """At which requests an end of each kind is an end of its own.

        A failure at each. An answer can be lost of each that changes something: other answers are given again. Ended
        after a request that left every file as it was, the process has ended as after the one before.
        """
        every = range(1, len(self.requests) + 1)
        states = [frozenset(), *(request.state for request in self.requests)]
        ends = [number for number in every if states[number] != states[number - 1]]
        changes = [number for number in every if self.requests[number - 1].changes]
        return {steps.FAILS: list(every), steps.LOSES: changes, steps.KILLED: ends, steps.DIES: ends}

    @property
    def deciding(self) -> int:
        """The request that makes it done: the first slot that is written, or the last write of all."""
        changes = self.numbers[steps.LOSES]
        return next((number for number in changes if "/slots/" in self.requests[number - 1].key), changes[-1])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    known: dict[str, Prepared] = {}

    def prepare(action: str) -> Prepared:
        if action not in known:
            folder = tmp_path_factory.mktemp(action)
            steps.prepare(str(folder / "before"), action)
            shutil.copytree(folder / "before", folder / "after")
            requests = steps.requests_of(str(folder / "after"), action)
            after = steps.contents(steps.catalog_at(str(folder / "after")))
            before = after if action == "upgrade" else steps.contents(steps.catalog_at(str(folder / "before")))
            known[action] = Prepared(folder / "before", action, before, after, requests)
        return known[action]

    return prepare


METASTORE = "headwater.MetastoreNamespace"


def opened(root: Path) -> str:
    """What kind of catalog opens there; half done, every open is refused (19)."""
    try:
        return open_catalog(str(root)).namespace_id().split()[0]
    except InvalidTableStateError:
        return "half done"


def check(root: Path, known: Prepared, acknowledged: bool | None) -> None:
    """It is done or not done, done if it was acknowledged; the next commit succeeds, and all is as it should be."""
    if known.action == "upgrade":
        kind = opened(root)
        assert kind == METASTORE or not acknowledged
        if kind != METASTORE:
            steps.upgrade(str(root))
    catalog = steps.catalog_at(str(root))
    found = steps.contents(catalog)
    assert found in ((known.after,) if acknowledged else (known.before, known.after))
    if known.action in ("mirror", "collection"):
        steps.ACTIONS[known.action](str(root))
        catalog = steps.catalog_at(str(root))
    if known.action == "delta_commit":
        steps.delta_commit(str(root))  # the token: not a second time
        assert steps.contents(catalog) == known.after
    catalog["a.t"].append([{"id": 999}])
    rows = [row["id"] for row in catalog["a.t"]]
    assert rows.count(999) == 1
    assert len(rows) == len(set(rows))
    if "log" in catalog:
        catalog["log"].upsert([{"k": 999, "v": "next"}])
        catalog["log"].publish()
        assert sorted(map(str, catalog["log"].serving)) == sorted(map(str, catalog["log"].to_arrow().to_pylist()))
        assert steps.contents(catalog.at("kept"))["a.u"] == [str({"id": number}) for number in range(4)]
    catalog.close()
    left = catalog.namespace.verify()
    assert {problem.kind for problem in left} <= {"staged_leftover"}, "of a writer that died, for the next collection"
    if left:
        catalog.collect(grace=steps.NOW)
    assert catalog.namespace.verify() == []


def end_at(known: Prepared, numbers: Iterable[int], how: str, place: Path) -> None:
    for number in numbers:
        root = place / f"{how}-{number}"
        shutil.copytree(known.root, root)
        acknowledged = None
        if how == steps.KILLED:
            steps.in_a_child(str(root), known.action, number)
        else:
            acknowledged = steps.here(str(root), known.action, number, how)
        try:
            check(root, known, None if how == steps.DIES else acknowledged)
        except BaseException as error:
            error.add_note(f"{known.action} {how} at {number}: {known.requests[number - 1].verb}")
            raise
        shutil.rmtree(root)


@pytest.mark.parametrize("action", ["lance_commit", "publish", "collection"])
def test_a_process_that_is_killed_leaves_it_done_or_not_done(
    prepared: Callable[[str], Prepared], tmp_path: Path, action: str
) -> None:
    known = prepared(action)
    end_at(known, [known.deciding], steps.KILLED, tmp_path)


@pytest.mark.parametrize("action", steps.ACTIONS)
def test_a_request_that_fails_or_is_not_answered_leaves_it_done_or_not_done(
    prepared: Callable[[str], Prepared], tmp_path: Path, action: str
) -> None:
    known = prepared(action)
    end_at(known, [known.deciding], steps.LOSES, tmp_path)
    end_at(known, [known.deciding], steps.FAILS, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("how", [steps.KILLED, steps.LOSES, steps.FAILS, steps.DIES])
@pytest.mark.parametrize("action", steps.ACTIONS)
def test_any_request_that_ends_so_leaves_it_done_or_not_done(
    prepared: Callable[[str], Prepared], tmp_path: Path, action: str, how: str
) -> None:
    known = prepared(action)
    end_at(known, known.numbers[how], how, tmp_path)
