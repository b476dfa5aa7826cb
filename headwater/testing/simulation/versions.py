"""The profile `versions`: clients append to one managed Lance table as pylance does, beside transactions and others.

The list of the checker is the newest manifest: every fragment of it is a value that one append has added. Manifests are
written here and not by Lance, so what is simulated is the catalog's part: all of `namespace/versions` over a metastore.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableVersionNotFoundError,
)
from headwater.lance_manifest import FRAGMENT, LENGTH, MAGIC, manifest_message
from headwater.metastore import Metastore
from headwater.metastore.sessions import NewRows, TransactionSession
from headwater.model import Table, Version
from headwater.names import DELIMITER, ObjectId
from headwater.namespace.composition import ComposedNamespace
from headwater.namespace.versions import TableVersions
from headwater.namespace.versions.operations import NewVersion
from headwater.protobuf import as_bytes, number, parse, pick, text
from headwater.registries.metastore import MetastoreRegistry
from headwater.store import KeyNotFoundError, create
from headwater.testing.simulation.commits import FAILED, Operation, Value, check_lists, check_snapshots, note_outcome

if TYPE_CHECKING:
    from headwater.testing.simulation.simulated_run import Member, SimulatedRun

ROOT = "/simulated"
ID = ObjectId(("t",))
REBASES = 6
MOVES = (
    ("append", 10),
    ("transaction", 4),
    ("read", 6),
    ("bypass", 1),
    ("settle", 1),
    ("checkpoint", 1),
    ("collect", 1),
)
"""What a client does, and how often of 24."""


def manifest(values: Sequence[Value]) -> bytes:
    """Return a Lance manifest with a fragment for each value: two with as many values have one size."""
    fragments = [number(1, place) + text(2, text(1, f"{value:08}.lance")) for place, value in enumerate(values)]
    message = b"".join(text(FRAGMENT, fragment) for fragment in fragments)
    return LENGTH.pack(len(message)) + message + bytes(8) + bytes((0, 0, 2, 0)) + MAGIC


def values_of(data: bytes) -> list[Value]:
    fragments = [as_bytes(value) for field, value, _ in parse(manifest_message(data)) if field == FRAGMENT]
    files = [as_bytes(pick(fragment, 2)[0]) for fragment in fragments]
    return [int(as_bytes(pick(file, 1)[0])[:8]) for file in files]


class SimulatedCatalog(ComposedNamespace):
    """The parts of a metastore catalog over a simulated store."""

    def __init__(self, member: Member) -> None:
        self.metastore = Metastore(member.store, clock=member.clock, author=member.process.name)
        registry = MetastoreRegistry(self.metastore, member.clock)
        super().__init__(registry, registry, member.store, ROOT, member.clock, DELIMITER, {})

    def namespace_id(self) -> str:
        return "simulated"


class Versions:
    """One run of the profile."""

    native = False

    def __init__(self, run: SimulatedRun) -> None:
        self.run = run
        run.disk.path = None  # turns of writers on a local disk are files of that disk: here everybody is overtaken
        self.past: list[tuple[object, object]] = []
        self.wrong: list[str] = []
        """Answers to clients that no fault explains."""

    def close(self) -> None:
        return None

    def open(self, member: Member) -> SimulatedCatalog:
        return SimulatedCatalog(member)

    def prepare(self, catalog: SimulatedCatalog) -> None:
        catalog.operations.declare_table(ID, None, {})
        table = catalog.operations.find_table(ID)
        catalog.versions.create(table, self._staged(catalog, table, 1, [], True), None)

    def plan(self, chance: random.Random, steps: int) -> list[str]:
        moves, weights = zip(*MOVES, strict=True)
        return chance.choices(moves, weights, k=steps)

    def act(self, catalog: SimulatedCatalog, client: str, move: str, chance: random.Random) -> None:
        operation = self.run.call(client, move)
        with note_outcome(self.run, operation):
            getattr(self, f"_{move}")(catalog, chance, operation)

    # A client, as pylance does it

    def _append(self, catalog: SimulatedCatalog, chance: random.Random, operation: Operation) -> None:
        """Stage a manifest upon the newest and ask for its version. After an error, describe it and perhaps rebase."""
        value = self.run.fresh()
        operation.appended = [("t", value)]
        for _ in range(REBASES):
            table = catalog.operations.find_table(ID)
            catalog.versions.begin_append(table, None)
            base, values = self._newest(catalog, table)
            self.run.note(operation)
            asked = self._staged(catalog, table, base + 1, [*values, value], chance.random() < 0.5)
            if asked.e_tag and chance.random() < 0.3:  # servers and clients differ in the quotes
                asked = replace(asked, e_tag=asked.e_tag.strip('"'))
            try:
                catalog.versions.create(table, asked, None)
                if chance.random() < 0.1:  # its answer is lost, and the same request is sent again
                    self._again(catalog, table, asked)
                return
            except InvalidInputError as error:
                self.wrong.append(f"invalid: {error}")
                raise
            except CommitStateUnknownError:
                if chance.random() < 0.5:  # there are clients that delete what they have staged then
                    catalog.clock.sleep(chance.choice((0, 0.3, 2)))
                    with suppress(LanceNamespaceError):
                        catalog.store.delete(asked.manifest_path.removeprefix("simulated/"))
                    raise
                if self._is_own(catalog, table, asked):
                    return
            except LanceNamespaceError:
                if self._is_own(catalog, table, asked):
                    return
            catalog.store.delete(asked.manifest_path.removeprefix("simulated/"))
        operation.outcome = FAILED
        raise LanceNamespaceError("It was overtaken too often.")

    def _again(self, catalog: SimulatedCatalog, table: Table, asked: NewVersion) -> None:
        """Send a request again that was answered: while its manifest is there, its bytes say whose version it is."""
        try:
            catalog.versions.create(table, asked, None)
        except ConcurrentModificationError as error:
            if catalog.store.head(asked.manifest_path.removeprefix("simulated/")) is not None:
                self.wrong.append(f"repeated: {error}")
            raise

    def _is_own(self, catalog: SimulatedCatalog, table: Table, asked: NewVersion) -> bool:
        """Return True if the version is the one that was asked for. Where nobody can tell, its fate is unknown."""
        try:
            found = catalog.versions.describe(table, asked.version, None).version
            staged, final = catalog.store.get_all(
                [asked.manifest_path.removeprefix("simulated/"), self._key(table, found)]
            )
        except LanceNamespaceError as error:
            raise CommitStateUnknownError(f"The version cannot be described: {error}") from error
        if staged is None or final is None:
            raise CommitStateUnknownError("The staged manifest is gone.")
        return staged == final

    def _staged(
        self, catalog: SimulatedCatalog, table: Table, version: int, values: Sequence[Value], tagged: bool
    ) -> NewVersion:
        """Stage a manifest; the request for its version, with or without an e_tag."""
        line, data = catalog.versions.line(table), manifest(values)
        path = f"{line.manifest(version)}-{catalog.clock.uuid()}"
        catalog.store.put(line.key(path), data, durable=False)
        entry = catalog.store.head(line.key(path))
        tag = entry.etag if entry is not None and tagged else None
        return NewVersion(version, line.object_path(path), len(data), tag, "V2")

    def _newest(self, catalog: SimulatedCatalog, table: Table) -> tuple[int, list[Value]]:
        found, _ = catalog.versions.page(table, None, None, 1, descending=True)
        version = found[0].version
        return version.number, values_of(catalog.store.get(self._key(table, version)))

    def _key(self, table: Table, version: Version) -> str:
        return f"{table.location}/{version.manifest_path}"

    # Others

    def _transaction(self, catalog: SimulatedCatalog, chance: random.Random, operation: Operation) -> None:
        """Append in a transaction of the catalog: the version is hidden until the slot is there."""
        value = self.run.fresh()
        operation.appended = [("t", value)]
        metastore = catalog.metastore
        tx = metastore.transaction(str(operation.id))
        session = TransactionSession(tx, no_rows)
        registry = MetastoreRegistry(metastore, catalog.clock, session)
        inside = TableVersions(registry, registry, catalog.store, ROOT, catalog.clock)
        table = registry.find([ID], newest=True)[ID]
        assert isinstance(table, Table)
        base = inside.describe(table, None, None).version
        values = values_of(catalog.store.get(self._key(table, base)))
        operation.reads = [("t", values)]
        self.run.note(operation)
        inside.create(table, self._staged(catalog, table, base.number + 1, [*values, value], True), None)
        tx.commit()

    def _read(self, catalog: SimulatedCatalog, chance: random.Random, operation: Operation) -> None:
        """Read the newest version, and one of the older ones again."""
        table = catalog.operations.find_table(ID)
        newest, values = self._newest(catalog, table)
        operation.reads = [("t", values)]
        self.run.note(operation)
        older = catalog.versions.describe(table, chance.randint(1, newest), None).version
        self.past.append((older.number, values_of(catalog.store.get(self._key(table, older)))))

    def _bypass(self, catalog: SimulatedCatalog, chance: random.Random, operation: Operation) -> None:
        """Write the next version under its final name, behind the catalog's back, as Lance does: if it is absent."""
        table = catalog.operations.find_table(ID)
        newest, values = self._newest(catalog, table)
        line = catalog.versions.line(table)
        create(catalog.store, line.key(line.manifest(newest + 1)), manifest([*values, 99_999_999]))

    def _settle(self, catalog: SimulatedCatalog, chance: random.Random, operation: Operation) -> None:
        managed = catalog.versions.managed
        assert managed is not None
        managed.settle(catalog.versions.line(catalog.operations.find_table(ID)))

    def _checkpoint(self, catalog: SimulatedCatalog, chance: random.Random, operation: Operation) -> None:
        catalog.metastore.checkpoint()

    def _collect(self, catalog: SimulatedCatalog, chance: random.Random, operation: Operation) -> None:
        catalog.metastore.collect(keep=chance.choice((0, 3)))

    def check(self, catalog: SimulatedCatalog, history: Sequence[Operation]) -> Iterator[str]:
        """Check the newest version against the history, and that every version can be opened and never changed."""
        table = catalog.operations.find_table(ID)
        newest, final = self._newest(catalog, table)
        yield from check_lists([each for each in history if each.appended or each.reads], {"t": final})
        yield from self.wrong
        for number_ in range(1, newest + 1):
            try:
                version = catalog.versions.describe(table, number_, None).version
                self.past.append((number_, values_of(catalog.store.get(self._key(table, version)))))
            except TableVersionNotFoundError:
                yield f"version {number_} of {newest} is not there"
            except (LanceNamespaceError, KeyNotFoundError) as error:
                yield f"version {number_} cannot be opened: {error}"
        yield from check_snapshots(self.past)


def no_rows(rows: NewRows) -> None:
    raise AssertionError("Transactions of this profile collect no rows.")
