"""What a catalog does in steps, and stores that end or fail at one of them. Light to import: children import this."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from headwater.errors import ServiceUnavailableError
from headwater.store import Crash, LocalStore, Store, WrappedStore

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
NOW = timedelta(0)
LIVES, KILLED, DIES, LOSES, FAILS = "lives", "killed", "dies", "loses", "fails"
"""How a request ends that is the n-th: as always; with the process; with all after it; without an answer; not done."""


class AtRequest(WrappedStore):
    """Counts the requests of a store, reads too, and lets the n-th end in a way of its own."""

    def __init__(self, inner: Store, number: int, how: str) -> None:
        super().__init__(inner)
        self.number = number
        self.how = how
        self.count = 0
        self._lock = threading.Lock()

    def around(self, verb: str, key: str, action: Callable[[], Any]) -> Any:
        with self._lock:
            self.count += 1
            mine = self.count == self.number
            dead = self.how == DIES and self.count > self.number > 0
        if dead:
            raise Crash
        if not mine or self.how == LIVES:
            return action()
        if self.how == FAILS:
            raise ServiceUnavailableError(f"The storage did not answer {verb} {key!r}.")
        answer = action() if self.number % 2 or self.how == LOSES else None
        if self.how == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == DIES:
            raise Crash
        if verb in ("get", "head", "list", "children", "get_all"):
            return answer
        raise ServiceUnavailableError(f"The storage did not answer {verb} {key!r}.")

    def put_all(self, items: Any, durable: bool = True) -> None:
        for key, data in items:
            self.put(key, data, durable=durable)


@contextmanager
def stores(number: int, how: str) -> Iterator[list[AtRequest]]:
    """Whoever opens a catalog here gets such a store; the ones that were opened."""
    import headwater.catalog
    import headwater.config
    import headwater.moving.upgrade
    import headwater.namespace.metastore  # noqa: F401

    made: list[AtRequest] = []

    def opened(uri: str, options: Any = None) -> Store:
        made.append(AtRequest(LocalStore(uri), number, how))
        return made[-1]

    holders = [module for name, module in list(sys.modules.items()) if name.startswith("headwater.")]
    patched = [module for module in holders if "open_store" in vars(module)]
    before = {module: vars(module)["open_store"] for module in patched}
    for module in patched:
        vars(module)["open_store"] = opened
    try:
        yield made
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
    each.__name__: each for each in (lance_commit, delta_commit, publish, transaction, upgrade, mirror, collection)
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
    catalog.drop_table("a.gone")
    catalog.close()


def contents(catalog: Any) -> dict[str, list[Any]]:
    """Every row of every table, and of stream tables also what is published."""
    found: dict[str, list[Any]] = {}
    for name in catalog:
        table = catalog[name]
        found[name] = sorted(str(row) for row in table.to_arrow().to_pylist())
        if hasattr(table, "serving"):
            found[f"{name} as published"] = sorted(str(row) for row in table.serving.to_arrow().to_pylist())
    return found


def requests_of(root: str, action: str) -> int:
    with stores(0, LIVES) as made:
        ACTIONS[action](root)
    return max(store.count for store in made)


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
