"""The verbs that move catalogs and data (grammar/run.py)."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from headwater import moving
from headwater.cli.output import show
from headwater.cli.target import Target


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


def export(given: argparse.Namespace) -> int:
    properties = Target(given.to, given.to_property).properties
    show(asdict(moving.export(given.target.catalog(), given.to, given.all_versions, properties)), given.json)
    return 0


def import_files(given: argparse.Namespace) -> int:
    names = given.name_of(given.table)
    table = moving.import_parquet(given.target.made(), names, given.source, given.mode, not given.no_hive)
    answer = {"name": given.table, "id": list(names), "version": table.versions()[-1].version, "rows": table.count()}
    show(answer, given.json)
    return 0


def import_deltacat(given: argparse.Namespace) -> int:
    into = given.name_of(given.into) if given.into else ()
    keyed = not given.plain
    done = moving.import_deltacat(given.target.made(), given.source, into, given.skip_unreadable, keyed)
    show(asdict(done), given.json)
    return 0
