"""The verbs that move catalogs and data (grammar/run.py)."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from headwater import moving
from headwater.cli.output import show
from headwater.cli.target import Target


def upgrade(args: argparse.Namespace) -> int:
    show(asdict(moving.upgrade(args.catalog, args.target.properties)), args.json)
    return 0


def mirror(args: argparse.Namespace) -> int:
    catalog = args.target.catalog()
    shown = catalog.mirror  # refuses a catalog that is not there, or that has no commits
    if not args.show:
        catalog.mirror = not args.off
        shown = catalog.mirror
    show(asdict(shown), args.json)
    return 0


def export(args: argparse.Namespace) -> int:
    properties = Target(args.to, args.to_property).properties
    show(asdict(moving.export(args.target.catalog(), args.to, args.all_versions, properties)), args.json)
    return 0


def import_files(args: argparse.Namespace) -> int:
    names = args.name_of(args.table)
    table = moving.import_parquet(args.target.made(), names, args.source, args.mode, not args.no_hive)
    answer = {"name": args.table, "id": list(names), "version": table.versions()[-1].version, "rows": table.count()}
    show(answer, args.json)
    return 0


def import_deltacat(args: argparse.Namespace) -> int:
    into = args.name_of(args.into) if args.into else ()
    keyed = not args.plain
    done = moving.import_deltacat(args.target.made(), args.source, into, args.skip_unreadable, keyed)
    show(asdict(done), args.json)
    return 0
