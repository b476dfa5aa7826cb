"""A deterministic simulation of the catalog: the code of several processes in one, by a seed (docs/reliability.md)."""

from headwater.testing.simulation.simulated_run import PROFILES, RunOutcome, RunSettings, readable, shrink, simulate

__all__ = ["PROFILES", "RunOutcome", "RunSettings", "readable", "shrink", "simulate"]
