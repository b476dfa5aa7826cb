"""A deterministic simulation of the catalog: the code of several processes in one, by a seed (docs/reliability.md)."""

from headwater.testing.simulation.running import PROFILES, Outcome, Settings, readable, shrink, simulate

__all__ = ["PROFILES", "Outcome", "Settings", "readable", "shrink", "simulate"]
