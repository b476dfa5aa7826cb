"""One simulated run from its seed: processes with their clients, faults, the history, its check, and its shrinking.

The profile `mixed`: the clients of all other profiles in one catalog, and named readers of the stream tables.

Every process opens one catalog, and a client does now this and now that. Each profile checks its own tables.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from headwater.errors import LanceNamespaceError
from headwater.testing.simulation import commits, streams, versions
from headwater.testing.simulation.commits import OK, UNKNOWN, Commits, Operation, SmallLimits
from headwater.testing.simulation.scheduler import (
    HAS_GREENLETS,
    GreenletBaton,
    Process,
    Scheduler,
    SimulatedClock,
    ThreadBaton,
    simulated_threads,
)
from headwater.testing.simulation.storage import Disk, Faults, SimulatedStore
from headwater.testing.simulation.streams import StreamTables
from headwater.testing.simulation.versions import Versions

MORE = (("streams named", 8), ("streams publish", 4), ("streams collect_log", 4))
"""Moves beside those of the profiles, and how often of 113: what a named reader needs is collected if nobody looks."""


class Mixed:
    """One run of the profile."""

    native = True

    def __init__(self, run: SimulatedRun) -> None:
        self._commits, self._versions = commits.Commits(run), versions.Versions(run)
        self._streams = streams.StreamTables(run)

    def close(self) -> None:
        self._streams.close()

    def open(self, member: Member) -> versions.SimulatedCatalog:
        return self._versions.open(member)

    def prepare(self, catalog: versions.SimulatedCatalog) -> None:
        self._commits.prepare(catalog.metastore)  # first: it reads at every slot
        self._versions.prepare(catalog)
        self._streams.prepare(catalog.metastore)

    def plan(self, chance: random.Random, steps: int) -> list[str]:
        """Return the moves of one client, each after the name of its profile."""
        profiles = (("commits", commits.MOVES), ("streams", streams.MOVES), ("versions", versions.MOVES))
        every = [(f"{profile} {move}", weight) for profile, moves in profiles for move, weight in moves]
        moves, weights = zip(*every, *MORE, strict=True)
        return chance.choices(moves, weights, k=steps)

    def act(self, catalog: versions.SimulatedCatalog, client: str, move: str, chance: random.Random) -> None:
        profile, _, own = move.partition(" ")
        if profile == "versions":
            self._versions.act(catalog, client, own, chance)
        elif profile == "commits":
            self._commits.act(catalog.metastore, client, own, chance)
        else:
            self._streams.act(catalog.metastore, client, own, chance)

    def check(self, catalog: versions.SimulatedCatalog, history: Sequence[Operation]) -> Iterator[str]:
        """Check each profile by the operations on its own lists."""
        lists = [each for each in history if each.appended or each.reads]
        of_versions = [each for each in lists if {key for key, _ in [*each.appended, *each.reads]} == {"t"}]
        of_commits = [each for each in lists if each not in of_versions]
        yield from self._versions.check(catalog, of_versions)
        yield from self._commits.check(catalog.metastore, of_commits)
        yield from self._streams.check(catalog.metastore, history)


SKEW_MS = 5_000


@dataclass(frozen=True)
class Member:
    """One incarnation of a process, with its store and its clock."""

    process: Process
    store: SimulatedStore
    clock: SimulatedClock


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run: its seed and size, and what shrinking has taken away."""

    seed: int
    steps: int = 40
    profile: str = "commits"
    faults: tuple[str, ...] | None = None
    """The kinds of faults that stay; None: all that the seed has drawn."""
    skipped: frozenset[int] = frozenset()
    """The moves that are left out, by their number among all clients."""


@dataclass
class RunOutcome:
    """The end of a run: its history as text, and what it violates."""

    settings: RunSettings
    lines: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


class LoadProfile(Protocol):
    """A load: what clients do to a catalog, and what is checked in the end."""

    native: bool
    """True if native code (Lance) calls the store: its tasks are threads, as its stack cannot be put aside."""

    def open(self, member: Member) -> object: ...
    def prepare(self, catalog: object) -> None: ...
    def plan(self, chance: random.Random, steps: int) -> list[str]: ...
    def act(self, catalog: object, client: str, move: str, chance: random.Random) -> None: ...
    def check(self, catalog: object, history: Sequence[Operation]) -> Iterator[str]: ...
    def close(self) -> None: ...


PROFILES: dict[str, Any] = {
    "commits": Commits,
    "segments": SmallLimits,
    "streams": StreamTables,
    "versions": Versions,
    "mixed": Mixed,
}


class SimulatedRun:
    """The processes of one run. Each has clients, which share its catalog as threads do."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        chance = random.Random(f"{settings.seed}/settings")
        profile = PROFILES[settings.profile]
        light = HAS_GREENLETS and not profile.native
        self.scheduler = Scheduler(settings.seed, GreenletBaton() if light else ThreadBaton())
        self.local = chance.random() < 0.5
        faults = Faults.drawn(chance, self.local)
        if settings.faults is not None:
            faults = Faults({kind: rate for kind, rate in faults.rates.items() if kind in settings.faults})
        self.disk = Disk(self.scheduler, self.local, faults, random.Random(f"{settings.seed}/faults"))
        self.disk.trace = lambda process, text: self.say(process.name, f"  {text}")
        self.disk.cut = self._cut
        self.scheduler.ended = self._ended
        self.outcome = RunOutcome(settings)
        self.profile: LoadProfile = profile(self)
        self._names = [f"w{number}" for number in range(1, chance.randint(2, 3) + 1)]
        self._skews = {name: chance.randint(-SKEW_MS, SKEW_MS) for name in self._names}
        clients = [f"{name}.{number}" for name in self._names for number in range(chance.randint(1, 2))]
        self._plans = self._planned(clients, chance)
        self._running: dict[str, Process] = {}
        self._values = 0
        self._incarnations = 0

    def _planned(self, clients: Sequence[str], chance: random.Random) -> dict[str, list[tuple[str, int]]]:
        """Return what each client still has to do: its moves, each with a seed of its own."""
        steps, skipped = self.settings.steps // len(clients) + 1, self.settings.skipped
        planned = {
            client: [(move, chance.getrandbits(32)) for move in self.profile.plan(chance, steps)] for client in clients
        }
        numbers = iter(range(steps * len(clients)))
        return {client: [each for each in moves if next(numbers) not in skipped] for client, moves in planned.items()}

    # The history

    def call(self, client: str, move: str) -> Operation:
        operation = Operation(len(self.outcome.operations) + 1, client, self.scheduler.step)
        self.outcome.operations.append(operation)
        self.say(client, f"T{operation.id} {move}")
        return operation

    def note(self, operation: Operation) -> None:
        told = [f"read {key} {values}" for key, values in operation.reads]
        told += [f"append {value} to {key}" for key, value in operation.appended]
        self.say(operation.client, f"T{operation.id} " + ", ".join(told))

    def answer(self, operation: Operation, outcome: str, why: str = "") -> None:
        operation.outcome = outcome
        if outcome != UNKNOWN:
            operation.answered = self.scheduler.step
        self.say(operation.client, f"T{operation.id} {outcome}{f' ({why})' if why else ''}")

    def fresh(self) -> int:
        self._values += 1
        return self._values

    def say(self, who: str, text: str) -> None:
        """Add a line to the history."""
        self.outcome.lines.append(f"{self.scheduler.step:6} {who:5} {text}")

    # Processes

    def _start(self, name: str) -> None:
        self._incarnations += 1
        process = Process(name, self._incarnations)
        self._running[name] = process
        self.say(name, "starts")
        self.scheduler.spawn(process, lambda: self._serve(process))

    def _member(self, process: Process) -> Member:
        seed = f"{self.settings.seed}/{process.name}/{process.number}"
        clock = SimulatedClock(self.scheduler, seed, self._skews.get(process.name, 0))
        return Member(process, SimulatedStore(self.disk, process), clock)

    def _serve(self, process: Process) -> None:
        """Open the catalog, again after a failure of the storage; then one thread for each client."""
        member = self._member(process)
        while True:
            try:
                catalog = self.profile.open(member)
                break
            except LanceNamespaceError as error:
                self.say(process.name, f"cannot open: {type(error).__name__}")
                member.clock.sleep(0.05)
        for client in self._plans:
            if client.startswith(f"{process.name}."):
                self.scheduler.spawn(process, lambda client=client: self._work(catalog, client))  # type: ignore[misc]

    def _work(self, catalog: object, client: str) -> None:
        moves = self._plans[client]
        while moves:
            move, seed = moves.pop(0)
            self.profile.act(catalog, client, move, random.Random(seed))

    def _ended(self, process: Process) -> None:
        if process.dead and not self.scheduler.stuck:
            self.say(process.name, "is dead")
            self._start(process.name)

    def _cut(self) -> None:
        for process in self._running.values():
            process.dead = True

    # The run

    def run(self) -> RunOutcome:
        place = "local disk" if self.local else "object store"
        self.say("run", f"seed {self.settings.seed}, {self.settings.profile}, {place}, faults: {self.disk.faults}")
        with simulated_threads(self.scheduler), closing(self.profile):
            self.profile.prepare(self.profile.open(self._member(Process("setup", 0))))
            for name in self._names:
                self._start(name)
            try:
                self.scheduler.run()
                self.scheduler.current = None
                self._check()
            except Exception as error:
                self.outcome.violations.append(f"{type(error).__name__}: {error}")
        for violation in self.outcome.violations:
            self.say("check", violation)
        counts = [
            sum(each.outcome == outcome for each in self.outcome.operations) for outcome in (OK, "failed", UNKNOWN)
        ]
        self.say("run", "{} ok, {} failed, {} unknown".format(*counts))
        return self.outcome

    def _check(self) -> None:
        if self.scheduler.stuck:
            self.outcome.violations.append(f"stuck: {self.scheduler.stuck}")
            return
        self.disk.faults = Faults()
        catalog = self.profile.open(self._member(Process("check", 0)))
        self.outcome.violations += self.profile.check(catalog, self.outcome.operations)


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{40}")
_ZEROS = re.compile(r"(?<![0-9a-f])0{8,}(?=\d)|(?<=slots/)0+/0*")


def readable(lines: Sequence[str]) -> list[str]:
    """Return a history with its ids numbered in the order in which they appear, and without leading zeros."""
    names: dict[str, str] = {}
    short = [_ZEROS.sub("", line) for line in lines]
    return [_ID.sub(lambda found: names.setdefault(found[0], f"#{len(names) + 1}"), line) for line in short]


def simulate(settings: RunSettings) -> RunOutcome:
    """Carry out one run."""
    return SimulatedRun(settings).run()


def shrink(failing: RunOutcome, budget: int = 200) -> RunOutcome:
    """Return a smaller run that still violates something: without kinds of faults, and without moves.

    `budget`: the runs that may be tried.
    """
    best, tried = failing, 0
    kinds = list(SimulatedRun(failing.settings).disk.faults.rates)
    for kind in kinds:
        left = tuple(each for each in best.settings.faults or kinds if each != kind)
        best, tried = _smaller(best, _changed(best.settings, faults=left)), tried + 1
    moves = set(range(failing.settings.steps + 8)) - best.settings.skipped
    size = max(len(moves) // 2, 1)
    while tried < budget:
        for first in range(0, len(moves), size):
            some = sorted(moves - best.settings.skipped)[first : first + size]
            if some and tried < budget:
                best, tried = (
                    _smaller(best, _changed(best.settings, skipped=best.settings.skipped | set(some))),
                    tried + 1,
                )
        if size == 1:
            break
        size = max(size // 2, 1)
    return best


def _changed(settings: RunSettings, **changes: object) -> RunSettings:
    values = {name: getattr(settings, name) for name in ("seed", "steps", "profile", "faults", "skipped")}
    return RunSettings(**{**values, **changes})


def _smaller(best: RunOutcome, settings: RunSettings) -> RunOutcome:
    found = simulate(settings)
    return found if found.violations else best
