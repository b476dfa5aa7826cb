"""What a catalog does in steps, and stores that end or fail at one of them. Light to import: children import this."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headwater.errors import ServiceUnavailableError
from headwater.store import Crash, LocalStore, Store, WrappedStore
from headwater.store.wrappers import WRITES
from tests.children import PROCESSES

NOW = timedelta(0)
LIVES, KILLED, DIES, LOSES, FAILS = "lives", "killed", "dies", "loses", "fails"
"""How a request ends that is the n-th: as always; with the process; with all after it; without an answer; not done."""


State = frozenset[tuple[str, int, int]]


@dataclass(frozen=True)
class Request:
    """One request of an action, and every file of the root after it."""

    verb: str
    key: str
    state: State

    @property
    def changes(self) -> bool:
        return self.verb in WRITES


def state_of(root: str) -> State:
    """Every file: its path, its size and when it was written."""
    found = set()
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                path = os.path.join(folder, name)
                facts = os.stat(path)
                found.add((path, facts.st_size, facts.st_mtime_ns))
    return frozenset(found)


class Fault:
    """Counts every request of an action, in all stores it opens, and lets the n-th end in a way of its own."""

    def __init__(self, number: int, how: str) -> None:
        self.number = number
        self.how = how
        self.count = 0
        self.requests: list[Request] = []
        self._lock = threading.Lock()

    def around(self, root: str, verb: str, key: str, action: Callable[[], Any]) -> Any:
        with self._lock:
            self.count += 1
            mine = self.count == self.number
            dead = self.how == DIES and self.count > self.number
        if dead:
            raise Crash
        if self.how == LIVES:
            answer = action()
            self.requests.append(Request(verb, key, state_of(root)))
            return answer
        if not mine:
            return action()
        if self.how != FAILS:
            answer = action()
            if self.how == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == DIES:
                raise Crash
            if verb not in WRITES:
                return answer
        raise ServiceUnavailableError(f"The storage did not answer {verb} {key!r}.")


class FaultyStore(WrappedStore):
    def __init__(self, root: str, fault: Fault) -> None:
        super().__init__(LocalStore(root))
        self.root = root
        self.fault = fault

    def around(self, verb: str, key: str, action: Callable[[], Any]) -> Any:
        return self.fault.around(self.root, verb, key, action)


@contextmanager
def stores(number: int, how: str) -> Iterator[Fault]:
    """Whoever opens a catalog here gets such a store."""
    import headwater.catalog
    import headwater.config
    import headwater.moving.upgrade
    import headwater.namespace.metastore  # noqa: F401

    fault = Fault(number, how)

    def opened(uri: str, options: Any = None) -> Store:
        return FaultyStore(uri, fault)

    holders = [module for name, module in list(sys.modules.items()) if name.startswith("headwater.")]
    patched = [module for module in holders if "open_store" in vars(module)]
    before = {module: vars(module)["open_store"] for module in patched}
    for module in patched:
        vars(module)["open_store"] = opened
    try:
        yield fault
    finally:
        for module, function in before.items():
            vars(module)["open_store"] = function


def catalog_at(root: str) -> Any:
    from headwater import Catalog, MetastoreNamespace

    return Catalog(MetastoreNamespace(root=root))


def lance_commit(root: str) -> None:
    catalog_at(root)["a.t"].append([{"id": 100}])


def delta_commit(root: str) -> None:
    catalog_at(root)["log"].upsert([{"k": 100, "v": "new"}, {"k": 1, "v": "changed"}], token="once", source="tests")


def publish(root: str) -> None:
    catalog_at(root)["log"].publish()


def transaction(root: str) -> None:
    with catalog_at(root).transaction("all of it") as tx:
        tx["a.t"].append([{"id": 100}])
        tx["a.u"].delete("id = 1")
        tx["log"].upsert([{"k": 100, "v": "new"}])
        tx.rename_table("a.v", "a.moved")


def whole_transaction(root: str) -> None:
    """What Lance keeps in a table's folder, and what is about the catalog as a whole."""
    with catalog_at(root).transaction("the rest") as tx:
        tx["a.t"].append([{"id": 100}])
        tx["a.t"].tags["new"] = 2
        tx["a.u"].tags["old"] = 2
        del tx["a.u"].tags["gone"]
        tx["a.v"].branches.create("trial")
        tx["a.v"].tags.create("on-trial", 1, branch="trial")
        del tx["a.u"].branches["dropped"]
        tx.snapshot("taken")
        tx.drop_snapshot("passing")
        tx.alter_namespace("", {"owner": "ann"})


def upgrade(root: str) -> None:
    from headwater.moving.upgrade import upgrade as begin

    begin(root)


def mirror(root: str) -> None:
    catalog = catalog_at(root)
    catalog.mirror = True
    catalog.close()


def collection(root: str) -> None:
    catalog_at(root).collect(keep=NOW, grace=NOW)


ACTIONS = {
    each.__name__: each
    for each in (lance_commit, delta_commit, publish, transaction, whole_transaction, upgrade, mirror, collection)
}


def prepare(root: str, action: str) -> None:
    """A catalog in which the action has something to do."""
    from headwater import Catalog, DirectoryNamespace

    rows = [{"id": number} for number in range(3)]
    if action == "upgrade":
        old = Catalog(DirectoryNamespace(root=root))
        for name in ("a.t", "a.u", "top"):
            old.create_table(name, rows)
            old[name].append([{"id": 3}])
        old["a.t"].tags["first"] = 1
        return
    import pyarrow as pa

    catalog = catalog_at(root)
    for name in ("a.t", "a.u", "a.v", "a.gone"):
        catalog.create_table(name, rows)
    log = catalog.create_stream_table("log", pa.table({"k": [0], "v": [""]}).schema, keys="k")
    log.upsert([{"k": number, "v": "old"} for number in range(3)])
    log.publish()
    log.upsert([{"k": 1, "v": "later"}])
    catalog["a.u"].append([{"id": 3}])
    catalog.snapshot("kept")
    catalog["a.u"].delete("id = 3")
    if action == "whole_transaction":
        catalog["a.u"].tags["old"] = catalog["a.u"].tags["gone"] = 1
        catalog["a.u"].branches.create("dropped", 1)
        catalog.snapshot("passing", [])
    catalog.drop_table("a.gone")
    catalog.close()


def contents(catalog: Any) -> dict[str, list[Any]]:
    """Every row of every table, and of stream tables also what is published; snapshots, tags and branches, which are
    in the folder of a table once somebody has looked at them."""
    import lance

    found: dict[str, list[Any]] = {}
    if hasattr(catalog.namespace, "metastore"):
        found["the catalog"] = [str(catalog.namespace_properties()), *(each.name for each in catalog.snapshots())]
    for name in catalog:
        table = catalog[name]
        found[name] = sorted(str(row) for row in table.to_arrow().to_pylist())
        if hasattr(table, "serving"):
            found[f"{name} as published"] = sorted(str(row) for row in table.serving.to_arrow().to_pylist())
        refs = [*sorted(dict(table.serving.tags).items()), *table.serving.branches]
        if refs:
            found[f"{name}, names"] = refs
            folder = lance.dataset(str(table.serving.describe().location))
            assert {each["version"] for each in folder.tags.list().values()} == set(dict(table.serving.tags).values())
            assert sorted(folder.branches.list()) == list(table.serving.branches)
            if "trial" in table.serving.branches:  # made where it is: Lance notes the whole path of a branch's table
                assert len(table.serving.at(branch="trial")) == 3
    return found


def requests_of(root: str, action: str) -> list[Request]:
    with stores(0, LIVES) as fault:
        ACTIONS[action](root)
    return fault.requests


def killed(root: str, action: str, number: int) -> None:
    """The target of a child that is killed at its n-th request."""
    with stores(number, KILLED):
        ACTIONS[action](root)


def in_a_child(root: str, action: str, number: int) -> None:
    child = PROCESSES.Process(target=killed, args=(root, action, number))
    child.start()
    child.join(120)
    assert child.exitcode in (-signal.SIGKILL, 0), child.exitcode


def here(root: str, action: str, number: int, how: str) -> bool:
    """Do it in this process with a store that ends or fails at a request; whether it was acknowledged."""
    with stores(number, how), suppress(Crash, Exception):
        ACTIONS[action](root)
        return True
    return False
