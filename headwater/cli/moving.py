"""The verbs that move catalogs and data: upgrade, mirror."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from headwater.catalog import Catalog
from headwater.cli.output import show
from headwater.cli.serving import properties_of
from headwater.moving import upgrade


def add_moving(verbs: Any) -> None:
    """The arguments of every verb that moves something."""
    _catalog_verb(
        verbs, "upgrade", "make a directory catalog a metastore, in place; again if it was interrupted", _upgrade
    )

    mirror = _catalog_verb(verbs, "mirror", "keep a __manifest beside a metastore that plain pylance can read", _mirror)
    way = mirror.add_mutually_exclusive_group()
    way.add_argument("--off", action="store_true", help="no more")
    way.add_argument("--show", action="store_true", help="only show whether there is one, and which slot it shows")


def _catalog_verb(verbs: Any, name: str, about: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=about)
    parser.add_argument("catalog", help="a path, a URI, or the name of a profile")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", help="as `connect` takes them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _upgrade(given: argparse.Namespace) -> int:
    show(asdict(upgrade(given.catalog, properties_of(given.property))), given.json)
    return 0


def _mirror(given: argparse.Namespace) -> int:
    catalog = Catalog(given.catalog, **properties_of(given.property))
    shown = catalog.mirror  # refuses a catalog that is not there, or that has no slots
    if not given.show:
        catalog.mirror = not given.off
        shown = catalog.mirror
    show(asdict(shown), given.json)
    return 0
