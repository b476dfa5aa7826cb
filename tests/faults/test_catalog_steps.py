"""Killed, unanswered and failing at every request of what a catalog does: nothing torn, blocked or doubled."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
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
    """A root before an action, what is in it before and after, and how many requests that takes."""

    root: Path
    action: str
    before: Rows
    after: Rows
    requests: int


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


def every(count: int) -> Iterator[int]:
    return iter(range(1, count + 1))


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


def kill_at(known: Prepared, numbers: Iterator[int], place: Path) -> None:
    for number in numbers:
        root = place / str(number)
        shutil.copytree(known.root, root)
        steps.in_a_child(str(root), known.action, number)
        check(root, known, None)
        shutil.rmtree(root)


def fail_at(known: Prepared, numbers: Iterator[int], how: str, place: Path) -> None:
    for number in numbers:
        root = place / str(number)
        shutil.copytree(known.root, root)
        acknowledged = steps.here(str(root), known.action, number, how)
        check(root, known, None if how == steps.DIES else acknowledged)
        shutil.rmtree(root)


@pytest.mark.parametrize("action", ["lance_commit", "publish", "collection"])
def test_a_process_that_is_killed_leaves_it_done_or_not_done(
    prepared: Callable[[str], Prepared], tmp_path: Path, action: str
) -> None:
    known = prepared(action)
    kill_at(known, iter([1 + known.requests * 2 // 3]), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("action", steps.ACTIONS)
def test_a_process_that_is_killed_at_any_request_leaves_it_done_or_not_done(
    prepared: Callable[[str], Prepared], tmp_path: Path, action: str
) -> None:
    known = prepared(action)
    kill_at(known, every(known.requests), tmp_path)


@pytest.mark.parametrize("action", steps.ACTIONS)
def test_a_request_that_fails_or_is_not_answered_leaves_it_done_or_not_done(
    prepared: Callable[[str], Prepared], tmp_path: Path, action: str
) -> None:
    known = prepared(action)
    for place, how in enumerate((steps.LOSES, steps.FAILS, steps.DIES), start=1):
        fail_at(known, iter([1 + known.requests * place // 4]), how, tmp_path / how)


@pytest.mark.long
@pytest.mark.parametrize("how", [steps.LOSES, steps.FAILS, steps.DIES])
@pytest.mark.parametrize("action", steps.ACTIONS)
def test_any_request_that_fails_or_is_not_answered_leaves_it_done_or_not_done(
    prepared: Callable[[str], Prepared], tmp_path: Path, action: str, how: str
) -> None:
    known = prepared(action)
    fail_at(known, every(known.requests), how, tmp_path)
