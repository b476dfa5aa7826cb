"""The verbs that move catalogs and data (grammar/run.py)."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from headwater import moving
from headwater.cli.output import show


def upgrade(given: argparse.Namespace) -> int:
    show(asdict(moving.upgrade(given.catalog, given.target.properties)), given.json)
    return 0


def mirror(given: argparse.Namespace) -> int:
    catalog = given.target.catalog()
    shown = catalog.mirror  # refuses a catalog that is not there, or that has no slots
    if not given.show:
        catalog.mirror = not given.off
        shown = catalog.mirror
    show(asdict(shown), given.json)
    return 0
