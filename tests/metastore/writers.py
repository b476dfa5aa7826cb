"""Work of the writer processes of the tests. Light to import: each process imports this."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa

from headwater import MetastoreNamespace
from headwater.errors import ConcurrentModificationError, InternalError, LanceNamespaceError
from headwater.metastore import Metastore, Transaction
from headwater.store import CrashesAtStore, LocalStore, Store
from tests.children import PROCESSES

WRITERS = 8


def in_processes(target: Callable[..., None], *args: Any) -> list[Any]:
    """Run the target in as many processes as there are writers; what each put into its queue."""
    answers = PROCESSES.Queue()
    processes = [PROCESSES.Process(target=target, args=(answers, number, *args)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    collected = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return collected


def increment(tx: Transaction) -> None:
    counter = tx.get(["counter"]).properties["n"]
    tx.update(["counter"], properties={"n": counter + 1})


def count(answers: Any, number: int, root: str, rounds: int) -> None:
    """Read a counter and write it plus one, so many times; how many commits were acknowledged."""
    store = Metastore(root)
    acknowledged = 0
    for _ in range(rounds):
        try:
            with store.transaction("plain") as tx:
                increment(tx)
        except ConcurrentModificationError:
            store.run(increment, "run")
        acknowledged += 1
    answers.put(acknowledged)


def count_until_killed(root: str, tally: str) -> None:
    """Increment for ever; a byte in the tally for each acknowledged commit."""
    store = Metastore(root)
    with open(tally, "ab", buffering=0) as file:
        while True:
            store.run(increment, "until killed")
            file.write(b".")


def append(answers: Any, number: int, root: str, rounds: int) -> None:
    """Append in plain transactions, not by run(): an append must never conflict with an append."""
    store = Metastore(root)
    positions = []
    for turn in range(rounds):
        with store.transaction("append") as tx:
            appended = tx.append_delta(["t"], [(f"{number}-{turn}", 1, 1)])
        positions.append((appended.position, f"{number}-{turn}"))
    answers.put(positions)


def race_for_names(answers: Any, number: int, root: str, rounds: int) -> None:
    store = Metastore(root)
    for turn in range(rounds):
        for edit in edits(f"n{turn}", f"m{number}"):
            try:
                store.run(edit)
            except (ConcurrentModificationError, InternalError):
                raise
            except LanceNamespaceError:
                continue
    answers.put(number)


def edits(name: str, other: str) -> tuple[Callable[[Transaction], Any], ...]:
    return (
        lambda tx: tx.create_namespace(["a", name]),
        lambda tx: tx.rename(["a"], ["b"]) if tx.exists(["a"]) else tx.rename(["b"], ["a"]),
        lambda tx: tx.drop(["b", name]),
        lambda tx: tx.create_table(["b", name]),
        lambda tx: tx.rename(["b", name], ["b", other]),
    )


def prepare(root: Any) -> None:
    with Metastore(root).transaction("before") as tx:
        tx.create_namespace(["a"])
        tx.create_namespace(["a", "b"])
        tx.create_table(["a", "b", "t"])
        tx.append_delta(["a", "b", "t"], [("first", 1, 1)])


def work(tx: Transaction) -> None:
    """A transaction that makes every kind of file."""
    tx.create_namespace(["new"], {"k": 1})
    tx.rename(["a", "b"], ["new", "b"])
    tx.append_delta(["new", "b", "t"], [("second", 1, 1)], partition=["x"])
    tx.create_table(["a", "u"])
    tx.update(["a"], {"seen": True})


def committing(store: Store) -> None:
    Metastore(store).run(work)


def killed(root: str, step: int, after: bool) -> None:
    committing(CrashesAtStore(LocalStore(root), step, after, crash=lambda: os.kill(os.getpid(), signal.SIGKILL)))


def append_wherever_it_is(root: str, table: str, first: int) -> None:
    """Append four values to a table that others rename meanwhile, each until it is there."""
    catalog: Any = MetastoreNamespace(root=root)

    def path() -> list[str]:
        return list(catalog.metastore.by_id(table).path)

    def landed(value: int) -> bool:
        while True:
            here = path()
            with contextlib.suppress(Exception):  # renamed between the look-up and the read
                rows = lance.dataset(namespace_client=catalog, table_id=here).to_table()
                return value in rows.column("a").to_pylist()

    for value in range(first, first + 4):
        while not landed(value):
            here, rows = path(), pa.table({"a": pa.array([value], pa.int64())})
            with contextlib.suppress(Exception):  # renamed meanwhile: the client cannot know whether it landed
                lance.write_dataset(rows, namespace_client=catalog, table_id=here, mode="append")
