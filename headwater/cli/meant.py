"""The table that a reading verb means: now, at a version, a tag or a moment, on a branch."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from headwater.cli.target import Target
from headwater.cli.when import check_one, moment
from headwater.errors import InvalidInputError, UnsupportedOperationError


def moment_of(given: argparse.Namespace) -> int | datetime | str | None:
    """What --at says; None when it was not given."""
    return None if given.at is None else at(given.target, given.at)


def at(target: Target, text: str) -> int | datetime | str:
    """A moment of a catalog: a slot, a time, or one of its snapshots."""
    try:
        return moment(text)
    except InvalidInputError as none:
        if target.server is None and target.metastore is None:
            raise
        if all(found.name != text for found in target.past("snapshots").snapshots()):
            raise InvalidInputError(f"{none} `headwater snapshot` lists the snapshots.") from None
        return text


def open_table(given: argparse.Namespace, name: str | None = None) -> Any:
    """The table of a line, as it says: a `CatalogTable`, or a `CatalogStream` where the rows are a stream table's."""
    check_one(given)
    catalog = given.target.catalog()
    asked = given.name_of(given.table if name is None else name)
    if not asked:
        raise InvalidInputError(f"`headwater {given.command.name}` needs the name of a table.")
    version, tag, branch = (getattr(given, key, None) for key in ("version", "tag", "branch"))
    said = moment_of(given) if hasattr(given, "at") else None
    table = None if said is None else _of_then(given.target, asked, said)
    if table is not None:
        said = None
    else:
        table = catalog[asked]
    if version is None and tag is None and branch is None and said is None:
        return table
    return table.serving.at(version, tag=tag, time=_time(said), branch=branch)


def _of_then(target: Target, name: tuple[str, ...], said: int | datetime | str) -> Any:
    """The table in the catalog as it was; None where the catalog keeps no past."""
    if target.server is None and target.metastore is None:
        return None
    try:
        return target.catalog().at(said)[name]
    except UnsupportedOperationError:  # a server of a catalog without a past
        return None


def _time(said: int | datetime | str | None) -> datetime | None:
    """A moment of a catalog without slots is a time."""
    if isinstance(said, (int, str)):
        raise InvalidInputError(f"This catalog has no slots, so it cannot be read at {said}: give a time.")
    return None if said is None else said.astimezone(UTC)
