"""The profile `mixed`: the clients of all other profiles in one catalog, and named readers of the stream tables.

Every process opens one catalog, and a client does now this and now that. Each profile checks its own tables.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headwater.testing.simulation import commits, streams, versions
from headwater.testing.simulation.checker import Operation

if TYPE_CHECKING:
    from headwater.testing.simulation.simulated_run import Member, SimulatedRun

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
