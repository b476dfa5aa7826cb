"""Verbs of set-up and maintenance: init, verify, repair, collect, migrate, mcp."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

import msgspec

import headwater
from headwater.cli.consent import ask
from headwater.cli.output import show, show_record, show_records
from headwater.config import init as make
from headwater.config import repair as mend
from headwater.config import resolve
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.metastore import Collected
from headwater.names import format_name
from headwater.namespace.abilities import abilities_of
from headwater.namespace.versions import VersionProblem
from headwater.wording import many

BROKEN_EXIT = 1


def init(given: argparse.Namespace) -> int:
    told = {"impl": given.impl} if given.impl is not None else {}
    found = resolve(given.catalog, {**given.target.properties, **told})
    kind = make(found)
    show_record({"catalog": found.shown, "kind": kind}, given.json)
    return 0


def verify(given: argparse.Namespace) -> int:
    """Print what a catalog finds in itself. Exit 1 for any of it but notes, which only wait for collection."""
    findings = [_finding(problem) for problem in given.target.catalog().verify()]
    broken = [finding for finding in findings if not finding["note"]]
    if findings or given.json:
        show_records(findings, given.json)
    if not broken and not given.json:
        notes = f" {many(len(findings), 'note')}: `headwater collect` sees to that." if findings else ""
        show(f"The catalog is whole.{notes}", False)
    return BROKEN_EXIT if broken else 0


def _finding(problem: VersionProblem) -> dict[str, Any]:
    names = () if problem.id is None else problem.id.names
    return {
        "kind": problem.kind,
        "name": format_name(names) or None,
        "id": list(names),
        "key": problem.key,
        "message": problem.message,
        "note": problem.note,
    }


def repair(given: argparse.Namespace) -> int:
    """The files that were written; InvalidTableState (19), saying what is missing, if that is not enough."""
    written = mend(given.target.resolved)
    show(written if written or given.json else "Nothing was missing.", given.json)
    return 0


def migrate(given: argparse.Namespace) -> int:
    move = abilities_of(given.target.namespace()).migrate
    if move is None:
        raise UnsupportedOperationError(f"The catalog {given.target.shown} has no folders to migrate.")
    show(move(), given.json)
    return 0


def collect(given: argparse.Namespace) -> int:
    if given.keep_days is not None and given.keep_slots is not None:
        raise InvalidInputError("Say one of --keep-days and --keep-slots.")
    is_directory = isinstance(given.target.namespace(), headwater.DirectoryNamespace)
    catalog = given.target.catalog() if is_directory else given.target.with_past("history to collect")
    kept = "7 days" if given.keep_days is None else f"{given.keep_days:g} days"
    kept = kept if given.keep_slots is None else f"{given.keep_slots} slots"
    left = "7" if given.grace_days is None else f"{given.grace_days:g}"
    if not given.dry_run:
        ask(
            given,
            f"What writers that died left in {given.target.shown} more than {left} days ago is deleted."
            if is_directory
            else f"History older than {kept} of {given.target.shown}, and what was dropped in it, is deleted for good.",
        )
    age, grace = (None if days is None else timedelta(days=days) for days in (given.keep_days, given.grace_days))
    if given.keep_slots is not None:
        done = given.target.with_history("slots to keep").collect(given.keep_slots, grace, given.dry_run)
    else:
        done = catalog.collect(age, grace, given.dry_run)
    show(done if given.json else _collected(done, given.dry_run), given.json)
    return 0


def _collected(done: Any, dry_run: bool) -> Any:
    """Return what a collection deleted and why, and the oldest readable state, for people."""
    if not isinstance(done, Collected):
        return done
    went = "would be removed" if dry_run else "was removed"
    told: dict[str, Any] = {"readable": f"from slot {done.boundary} on", "removed": f"nothing {went}"}
    if done.removed:
        told["removed"] = [msgspec.to_builtins(item) for item in done.removed]
    return told


def mcp(given: argparse.Namespace) -> int:
    """Serve agents until stdin ends; the catalog's error at start, if there is none."""
    try:
        from headwater.agents.serving import CALL_SECONDS, serve
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(
            f"`headwater mcp` needs the module {missing.name}: pip install 'headwater[mcp]'."
        ) from None
    seconds = CALL_SECONDS if given.timeout is None else given.timeout
    if not 0 < seconds <= CALL_SECONDS:
        raise InvalidInputError(f"--timeout is more than 0 and at most {CALL_SECONDS:g} seconds.")
    serve(given.catalog, given.target.properties, seconds)
    return 0
