"""Real processes that race, are killed and are stopped. Light to import: every process starts from it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa

from headwater import DirectoryNamespace
from headwater.errors import LanceNamespaceError
from headwater.registries.manifest import queue
from headwater.registries.manifest.queue import Spool
from headwater.registries.manifest.table import ManifestTable
from headwater.testing.namespace_suite import ipc
from tests.children import PROCESSES

PATIENCE_S = 120

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
}
OWN = {"__manifest", ".headwater"}

Call = tuple[str, dict[str, Any]]
"""An operation and its request; `rows` in it is how many rows a table is created with."""
Outcome = int | None
"""The code of the error a call ended in, or None."""


def call(operation: str, *id: str, **fields: Any) -> Call:
    return operation, {"id": list(id), **fields}


def perform(namespace: DirectoryNamespace, what: Call) -> Outcome:
    operation, request = what[0], dict(what[1])
    rows = request.pop("rows", None)
    body = () if rows is None else (ipc(pa.table({"n": list(range(rows))})),)
    try:
        getattr(namespace, operation)(request, *body)
    except LanceNamespaceError as error:
        if int(error.code) in (18, 19):
            print(f"{operation} of {request['id']}: {error}", file=sys.stderr)  # Shown when the test fails.
        return int(error.code)
    return None


def race(root: str, mode: str, scripts: Sequence[Sequence[Call]]) -> list[list[Outcome]]:
    """Each script in a process of its own, all beginning each of their calls at the same moment."""
    answers, barrier = PROCESSES.Queue(), PROCESSES.Barrier(len(scripts))
    processes = [
        PROCESSES.Process(target=_run, args=(answers, barrier, number, root, mode, list(script)))
        for number, script in enumerate(scripts)
    ]
    for process in processes:
        process.start()
    collected = dict(answers.get(timeout=PATIENCE_S) for _ in processes)
    for process in processes:
        process.join(PATIENCE_S)
    broken = [answer for answer in collected.values() if isinstance(answer, str)]
    assert not broken, broken
    return [collected[number] for number in range(len(scripts))]


def _run(answers: Any, barrier: Any, number: int, root: str, mode: str, script: list[Call]) -> None:
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    outcomes: list[Outcome] = []
    try:
        for what in script:
            barrier.wait(PATIENCE_S)
            outcomes.append(perform(namespace, what))
    except BaseException as error:
        barrier.abort()
        answers.put((number, f"{type(error).__name__}: {error}"))
        return
    answers.put((number, outcomes))


def churn(root: str, mode: str, name: str) -> None:
    """Create, rename, declare, deregister and drop, until killed."""
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    nested = mode != "V1"
    while True:
        place = [name] if nested else []
        if nested:
            perform(namespace, call("create_namespace", name, mode="ExistOk"))
        perform(namespace, call("create_table", *place, f"{name}t", rows=3))
        perform(namespace, call("rename_table", *place, f"{name}t", new_table_name=f"{name}u"))
        perform(namespace, call("declare_table", f"{name}d"))
        perform(namespace, call("create_table", f"{name}r", rows=3))
        perform(namespace, call("drop_table", f"{name}r"))
        perform(namespace, call("drop_table", f"{name}d"))
        perform(namespace, call("drop_table", *place, f"{name}u"))
        if nested:
            perform(namespace, call("drop_namespace", name, behavior="Cascade"))


def lead_until(signal_number: int, step: str, root: str, ready: Any, answers: Any) -> None:
    """Take the turn, wait until somebody asks, go on to the step, and send oneself the signal there."""
    strike = _once(partial(os.kill, os.getpid(), signal_number))
    lead, claim, commit, answer = queue.Turns._lead, Spool.claim, ManifestTable.commit, Spool._write

    def patient_lead(turns: queue.Turns, request: Any, spool: Spool) -> None:
        ready.set()
        while not any(name.endswith(".ask") for name in spool._names()):
            time.sleep(0.001)
        lead(turns, request, spool)

    def at(point: str, work: Any, before: bool) -> Any:
        def patched(*args: Any, **kwargs: Any) -> Any:
            if point == step and before:
                strike()
            result = work(*args, **kwargs)
            if point == step and not before:
                strike()
            return result

        return patched

    queue.Turns._lead = patient_lead  # type: ignore[method-assign, assignment]
    Spool.claim = at("claim", at("claimed", claim, False), True)  # type: ignore[method-assign]
    ManifestTable.commit = at("commit", at("committed", commit, False), True)  # type: ignore[method-assign]
    Spool._write = at("answer", at("answered", answer, False), True)  # type: ignore[method-assign]
    namespace = DirectoryNamespace(root=root, **MODES["V2"])
    answers.put(perform(namespace, call("create_namespace", "leader")))


def _once(action: Any) -> Any:
    done: list[bool] = []

    def run() -> None:
        if not done:
            done.append(True)
            action()

    return run


def kill(process: Any) -> None:
    """End a process that this test started."""
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):  # It may end just now.
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
    process.join(PATIENCE_S)


def rows_of_manifest(root: str) -> list[dict[str, Any]]:
    """What `__manifest` holds, read by pylance alone."""
    if not any((Path(root) / "__manifest" / "_versions").glob("*.manifest")):
        return []
    rows: list[dict[str, Any]] = lance.dataset(f"{root}/__manifest").to_table().to_pylist()
    return rows


def check_sound(root: str, mode: str, rows: int | None = None, leaks: bool = False) -> None:
    """No duplicate, no orphan, no half state; unless `leaks`, no folder that no table is in.

    `rows` is how many rows each table that is more than declared must have.
    """
    found = rows_of_manifest(root)
    ids = [row["object_id"] for row in found]
    assert len(set(ids)) == len(ids), f"duplicate ids: {sorted(ids)}"
    namespaces = {row["object_id"] for row in found if row["object_type"] == "namespace"}
    assert not [id for id in ids if "$" in id and id.rpartition("$")[0] not in namespaces], "an orphan"
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    locations = set()
    for id in namespace.list_all_tables(api.ListTablesRequest()).tables:
        names = id.split("$")
        table = namespace.describe_table(api.DescribeTableRequest(id=names, load_detailed_metadata=True))
        locations.add(Path(str(table.location)).name)
        if not table.is_only_declared:
            count = lance.dataset(str(table.location)).to_table().num_rows
            assert rows is None or count == rows, (id, count)
    left = {path.name for path in Path(root).iterdir() if path.is_dir()} - OWN - locations
    assert leaks or not left, f"leaked: {left}"
