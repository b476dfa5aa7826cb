"""Thousands of random histories against a plain in-memory model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headwater.clock import SeededClock
from headwater.errors import ConcurrentModificationError, LanceNamespaceError
from headwater.metastore import Metastore, Transaction
from headwater.metastore.commit import group_commit as commit_module
from headwater.metastore.state import index as index_module
from tests.metastore.model import Model, Thing, tree_of
from tests.metastore.published_reader import read

NAMES = ("a", "b", "c", "x|y")
NAME = st.sampled_from(NAMES)
KINDS = ("namespace", "namespace", "table")
# A path is written down as a choice among what exists when the operation is made concrete, or a name beside it.
CHOICE = st.integers(0, 50)
SOME = st.one_of(st.tuples(st.just("some"), CHOICE), st.tuples(st.just("below"), CHOICE, NAME))
NEW = st.tuples(st.just("below"), CHOICE, NAME)
PROPERTIES = st.dictionaries(st.sampled_from(("k", "l")), st.one_of(st.integers(0, 9), st.text(max_size=3)), max_size=2)
CREATE = st.tuples(st.just("create"), NEW, st.sampled_from(("namespace", "table")), PROPERTIES)
OPERATIONS = st.one_of(
    CREATE,
    CREATE,
    st.tuples(st.just("update"), SOME, PROPERTIES),
    st.tuples(st.just("rename"), SOME, NEW),
    st.tuples(st.just("rename"), SOME, NEW),
    st.tuples(st.just("alias"), SOME, NAME),
    st.tuples(st.just("append"), SOME, st.integers(0, 99)),
    st.tuples(st.just("get"), SOME),
    st.tuples(st.just("list"), SOME),
)
LAST = st.one_of(st.none(), st.tuples(st.just("drop"), SOME, st.booleans()))


def concrete(model: Model, operation: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operation with its choices replaced by paths."""
    return tuple(_path(model, part) if isinstance(part, tuple) else part for part in operation)


def _path(model: Model, choice: tuple[Any, ...]) -> list[str]:
    tree = model.tree()
    if choice[0] == "some":
        paths = sorted(tree) or [("a",)]
        return list(paths[choice[1] % len(paths)])
    parents = [(), *sorted(path for path, thing in tree.items() if thing[0] == "namespace" and len(path) < 4)]
    return [*parents[choice[1] % len(parents)], choice[2]]


def on_store(tx: Transaction, operation: tuple[Any, ...]) -> Any:
    match operation:
        case ("create", path, "namespace", properties):
            tx.create_namespace(path, properties)
        case ("create", path, _, properties):
            tx.create_table(path, properties)
        case ("update", path, properties):
            tx.update(path, properties)
        case ("rename", old, new):
            tx.rename(old, new)
        case ("alias", path, name):
            tx.alias(path, name)
        case ("append", path, number):
            tx.append_delta(path, [(f"file-{number}", 1, 1)])
        case ("drop", path, cascade):
            tx.drop(path, cascade)
        case ("get", path):
            found = tx.get(path)
            return found.kind, found.properties, sorted(found.aliases)
        case ("list", path):
            return [(child.name, child.kind, child.properties) for child in tx.list(path)]
    return None


def on_model(model: Model, operation: tuple[Any, ...], slot: int) -> Any:
    match operation:
        case ("create", path, kind, properties):
            model.create(path, kind, properties)
        case ("update", path, properties):
            model.update(path, properties)
        case ("rename", old, new):
            model.rename(old, new)
        case ("alias", path, name):
            model.alias(path, name)
        case ("append", path, number):
            model.append(path, f"file-{number}")
        case ("drop", path, cascade):
            model.drop(path, cascade, slot)
        case ("get", path):
            found = model.find(path)
            return found.kind, found.properties, sorted(found.aliases)
        case ("list", path):
            children = model.namespace(path).children
            ordered: list[tuple[str, Thing]] = sorted(children.items(), key=lambda pair: pair[0].encode())
            return [(name, child.kind, child.properties) for name, child in ordered]
    return None


def outcome(action: Callable[..., Any], *args: Any) -> Any:
    """What it answers, or the class of what it raises."""
    try:
        return action(*args)
    except LanceNamespaceError as error:
        return type(error)


class Histories(RuleBasedStateMachine):
    """Two handles on one catalog, one model, and the model's state at every slot."""

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.root = tempfile.mkdtemp(prefix="headwater-model-")
        self.clock = SeededClock(seed)
        self.handles = [Metastore(self.root, clock=self.clock), Metastore(self.root, clock=self.clock)]
        self.model = Model()
        self.slot = 0
        self.boundary = 0
        self.past: dict[int, Any] = {0: {}}
        self.committed: list[str] = []
        pairs = list(zip("abc", KINDS, strict=True))
        self.transaction(0, [("create", ("below", 0, name), kind, {}) for name, kind in pairs], None)
        self.transaction(1, [("create", ("below", 1, name), kind, {}) for name, kind in pairs], None)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root, ignore_errors=True)

    @rule(handle=st.integers(0, 1), operations=st.lists(OPERATIONS, min_size=1, max_size=4), last=LAST)
    def transaction(self, handle: int, operations: list[Any], last: Any) -> None:
        model = self.model.copied()
        with self.handles[handle].transaction("one") as tx:
            for drawn in [*operations, *([last] if last else [])]:
                operation = concrete(model, drawn)
                told = outcome(on_store, tx, operation)
                assert told == outcome(on_model, model, operation, self.slot + 1), operation
        self._committed(tx, model)

    @rule(
        first=st.lists(OPERATIONS, min_size=1, max_size=2),
        first_drop=LAST,
        second=st.lists(OPERATIONS, min_size=1, max_size=2),
        second_drop=LAST,
    )
    def two_transactions_at_once(self, first: list[Any], first_drop: Any, second: list[Any], second_drop: Any) -> None:
        """Whatever both are told, it is what one after the other would have been told."""
        drawn = [[*first, *([first_drop] if first_drop else [])], [*second, *([second_drop] if second_drop else [])]]
        operations = [[concrete(self.model, operation) for operation in operations] for operations in drawn]
        transactions = [handle.transaction(f"tx {n}") for n, handle in enumerate(self.handles)]
        told: list[list[Any]] = [
            [outcome(on_store, tx, op) for op in ops] for tx, ops in zip(transactions, operations, strict=True)
        ]
        for tx, ops, answers in zip(transactions, operations, told, strict=True):
            try:
                tx.commit()
            except ConcurrentModificationError:
                continue
            model = self.model.copied()
            serial = [outcome(on_model, model, op, self.slot + 1) for op in ops]
            changed = not tx.draft.empty
            if changed or tx is transactions[0]:
                assert answers == serial
            self._committed(tx, model)

    @rule(handle=st.integers(0, 1), drawn=NEW, choice=CHOICE, buried=st.booleans())
    def undrop(self, handle: int, drawn: tuple[Any, ...], choice: int, buried: bool) -> None:
        model = self.model.copied()
        path = _path(model, drawn)
        if buried and model.graves:
            path = model.grave_path(choice) or path
        message = f"undrop {'.'.join(path)}"
        told = outcome(lambda: self.handles[handle].run(lambda tx: tx.undrop(path), message) and None)
        assert told == outcome(model.undrop, path, self.boundary), path
        if told is None:
            self._commit_as(model, message)

    @rule(handle=st.integers(0, 1))
    def restart(self, handle: int) -> None:
        self.handles[handle] = Metastore(self.root, clock=self.clock)

    @rule(handle=st.integers(0, 1))
    def checkpoint(self, handle: int) -> None:
        self.handles[handle].checkpoint()

    @precondition(lambda self: self.slot > 2)
    @rule(handle=st.integers(0, 1), keep=st.integers(0, 6))
    def collect(self, handle: int, keep: int) -> None:
        collected = self.handles[handle].collect(keep=keep)
        if collected.boundary > self.boundary:
            self.boundary = collected.boundary
            self._commit_as(self.model, f"collect up to slot {self.boundary}")
            self.past = {slot: tree for slot, tree in self.past.items() if slot >= self.boundary}

    @rule(handle=st.integers(0, 1), choice=st.integers(0, 1000))
    def look_back(self, handle: int, choice: int) -> None:
        slot = sorted(self.past)[choice % len(self.past)]
        assert tree_of(self.handles[handle].at(slot)) == self.past[slot]

    @rule()
    def verify(self) -> None:
        assert self.handles[0].verify() == []

    @invariant()
    def both_handles_show_the_model(self) -> None:
        if hasattr(self, "model"):
            expected = self.model.tree()
            assert tree_of(self.handles[0]) == expected
            assert tree_of(self.handles[1]) == expected
            assert read(self.root) == expected
            log = [entry.message for entry in self.handles[1].log(after=self.boundary)]
            assert log == self.committed[self.boundary :]

    def _committed(self, tx: Transaction, model: Model) -> None:
        if not tx.draft.empty:
            assert tx.slot == self.slot + 1
            self._commit_as(model, tx.header.message)

    def _commit_as(self, model: Model, message: str) -> None:
        self.slot += 1
        self.model = model
        self.committed.append(message)
        self.past[self.slot] = model.tree()


def explore(monkeypatch: pytest.MonkeyPatch, examples: int, steps: int) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 9)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def test_random_histories_read_as_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    explore(monkeypatch, examples=40, steps=25)


@pytest.mark.long
def test_thousands_of_random_histories_read_as_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    explore(monkeypatch, examples=2000, steps=30)
