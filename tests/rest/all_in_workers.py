"""Has every server that tests start in a thread do its work in workers: `pytest -p tests.rest.all_in_workers ...`.

One pool for all of them: its workers open the root that a call names.
"""

from __future__ import annotations

import atexit
from typing import Any

import pytest
from lance_namespace import LanceNamespace

from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.rest import server
from headwater.rest.dispatch import Hosted
from headwater.rest.settings import Limits
from headwater.rest.work import InWorkers
from headwater.workers import Host, Pool, WorkerLimits

KINDS = {"MetastoreNamespace": MetastoreNamespace, "DirectoryNamespace": DirectoryNamespace}


class HostedRoots:
    """Hosts any number of catalogs."""

    def __init__(self) -> None:
        self._known: dict[str, Hosted] = {}

    def answer(self, told: Any, body: Any) -> Any:
        kind, given = told.pop("catalog")
        key = f"{kind} {given}"
        if key not in self._known:
            self._known[key] = Hosted(KINDS[kind](**given), Limits())
        return self._known[key].answer(told, body)


def host() -> HostedRoots:
    return HostedRoots()


class RootedPool:
    """A pool whose calls say which catalog they are about."""

    def __init__(self, pool: Pool, namespace: Any) -> None:
        self._pool = pool
        self._catalog = [type(namespace).__name__, namespace._given]

    def run(self, method: str, arguments: Any, *more: Any, **named: Any) -> Any:
        return self._pool.run(method, {**arguments, "catalog": self._catalog}, *more, **named)


def pytest_configure(config: pytest.Config) -> None:
    pool = Pool(Host(f"{__name__}:host"), WorkerLimits(most=2))
    atexit.register(pool.close)
    create_app = server.create_app

    def create(namespace: LanceNamespace, *given: Any, **named: Any) -> Any:
        if type(namespace).__name__ in KINDS and named.get("work") is None and not _in_memory(namespace):
            rooted: Any = RootedPool(pool, namespace)
            named["work"] = InWorkers(rooted, namespace)
        return create_app(namespace, *given, **named)

    server.create_app = create


def _in_memory(namespace: Any) -> bool:
    return str(namespace._given.get("root", "")).startswith("memory:")
