"""The table that a reading verb names: now, at a version, a tag or a moment, on a branch.

A moment is a commit, a snapshot, an ISO time, or an age such as `2h ago`.
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from headwater.cli.target import Target
from headwater.errors import InvalidInputError, UnsupportedOperationError

_AGO = re.compile(r"(\d{1,9})\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)\s+ago", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime | None = None) -> int | datetime:
    """Return a commit, or a time; a time without a zone is local. Raise InvalidInput (13) for anything else."""
    said = text.strip().lower()
    if said.isascii() and said.isdigit() and len(said) < 12:
        return int(said)
    if said == "now":
        return now or datetime.now(UTC)
    ago = _AGO.fullmatch(said)
    if ago:
        return (now or datetime.now(UTC)) - timedelta(**{_UNITS[ago[2][0]]: int(ago[1])})
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except ValueError:
        raise InvalidInputError(
            f"{text[:200]!r} is no moment: give a commit's number, an ISO time such as 2026-05-01T12:00, or 2h ago."
        ) from None


def check_one(args: argparse.Namespace) -> None:
    """Raise InvalidInput (13) for more than one of --version, --tag and --at."""
    said = [name for name in ("version", "tag", "at") if getattr(args, name, None) is not None]
    if len(said) > 1:
        raise InvalidInputError(f"Say one of {' and '.join(f'--{name}' for name in said)}.")


def moment_of(args: argparse.Namespace) -> int | datetime | str | None:
    """Return the moment of `--at`; None without it."""
    return None if args.at is None else at(args.target, args.at)


def at(target: Target, text: str) -> int | datetime | str:
    """Return a moment of a catalog: a commit, a time, or the name of one of its snapshots."""
    try:
        return moment(text)
    except InvalidInputError as none:
        if target.server is None and target.metastore is None:
            raise
        if all(found.name != text for found in target.past("snapshots").snapshots()):
            raise InvalidInputError(f"{none} `headwater snapshot` lists the snapshots.") from None
        return text


def open_table(args: argparse.Namespace, name: str | None = None) -> Any:
    """Return the table of a command line: a `CatalogTable`, or a `CatalogStream` for a stream table."""
    check_one(args)
    catalog = args.target.catalog()
    asked = args.name_of(args.table if name is None else name)
    if not asked:
        raise InvalidInputError(f"`headwater {args.command.name}` needs the name of a table.")
    version, tag, branch = (getattr(args, key, None) for key in ("version", "tag", "branch"))
    said = moment_of(args) if hasattr(args, "at") else None
    table = None if said is None else _of_then(args.target, asked, said)
    if table is not None:
        said = None
    else:
        table = catalog[asked]
    if version is None and tag is None and branch is None and said is None:
        return table
    return table.serving.at(version, tag=tag, time=_time(said), branch=branch)


def _of_then(target: Target, name: tuple[str, ...], said: int | datetime | str) -> Any:
    """Return the table in the catalog as it was; None for a catalog without a past."""
    if target.server is None and target.metastore is None:
        return None
    try:
        return target.catalog().at(said)[name]
    except UnsupportedOperationError:  # a server of a catalog without a past
        return None


def _time(said: int | datetime | str | None) -> datetime | None:
    """Return the time of a moment. A catalog without commits has no other moments."""
    if isinstance(said, (int, str)):
        raise InvalidInputError(f"This catalog has no commits, so it cannot be read at {said}: give a time.")
    return None if said is None else said.astimezone(UTC)
