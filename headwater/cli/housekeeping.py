"""Verbs of set-up and maintenance: init, verify, repair, collect, migrate, mcp."""

from __future__ import annotations

import argparse
import os
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


def init(args: argparse.Namespace) -> int:
    if args.folder is not None:
        if args.catalog != "pipeline":
            raise InvalidInputError("--from is of `headwater init pipeline --from FOLDER`.")
        return _init_pipeline(args)
    told = {"impl": args.impl} if args.impl is not None else {}
    found = resolve(args.catalog, {**args.target.properties, **told})
    kind = make(found)
    show_record({"catalog": found.shown, "kind": kind}, args.json)
    return 0


def _init_pipeline(args: argparse.Namespace) -> int:
    """Write a first pipeline file in the working directory; one that is there stays."""
    from headwater.pipeline.first_file import first_file

    text = first_file(args.folder, os.getcwd())
    try:
        with open("pipeline.toml", "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInputError("There is a pipeline.toml here already: move it away, or edit it.") from None
    show_record({"file": "pipeline.toml"}, args.json)
    return 0


def verify(args: argparse.Namespace) -> int:
    """Print what a catalog finds in itself. Exit 1 for any of it but notes, which only wait for collection."""
    findings = [_finding(problem) for problem in args.target.catalog().verify()]
    broken = [finding for finding in findings if not finding["note"]]
    if findings or args.json:
        show_records(findings, args.json)
    if not broken and not args.json:
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


def repair(args: argparse.Namespace) -> int:
    """The files that were written; InvalidTableState (19), saying what is missing, if that is not enough."""
    written = mend(args.target.resolved)
    show(written if written or args.json else "Nothing was missing.", args.json)
    return 0


def migrate(args: argparse.Namespace) -> int:
    move = abilities_of(args.target.namespace()).migrate
    if move is None:
        raise UnsupportedOperationError(f"The catalog {args.target.shown} has no folders to migrate.")
    show(move(), args.json)
    return 0


def collect(args: argparse.Namespace) -> int:
    if args.keep_days is not None and args.keep_slots is not None:
        raise InvalidInputError("Say one of --keep-days and --keep-slots.")
    is_directory = isinstance(args.target.namespace(), headwater.DirectoryNamespace)
    catalog = args.target.catalog() if is_directory else args.target.with_past("history to collect")
    kept = "7 days" if args.keep_days is None else f"{args.keep_days:g} days"
    kept = kept if args.keep_slots is None else f"{args.keep_slots} commits"
    left = "7" if args.grace_days is None else f"{args.grace_days:g}"
    if not args.dry_run:
        ask(
            args,
            f"This will delete files that dead writers left in {args.target.shown} more than {left} days ago."
            if is_directory
            else f"This will delete for good the history of {args.target.shown} older than {kept}, with what was "
            "dropped in it.",
        )
    age, grace = (None if days is None else timedelta(days=days) for days in (args.keep_days, args.grace_days))
    if args.keep_slots is not None:
        done = args.target.with_history("slots to keep").collect(args.keep_slots, grace, args.dry_run)
    else:
        done = catalog.collect(age, grace, args.dry_run)
    show(done if args.json else _collected(done, args.dry_run), args.json)
    return 0


def _collected(done: Any, dry_run: bool) -> Any:
    """Return what a collection deleted and why, and the oldest readable state, for people."""
    if not isinstance(done, Collected):
        return done
    went = "would be removed" if dry_run else "was removed"
    told: dict[str, Any] = {"readable": f"from commit {done.boundary} on", "removed": f"nothing {went}"}
    if done.removed:
        told["removed"] = [msgspec.to_builtins(item) for item in done.removed]
    return told


def mcp(args: argparse.Namespace) -> int:
    """Serve agents until stdin ends; the catalog's error at start, if there is none."""
    try:
        from headwater.agents.serving import CALL_SECONDS, serve
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(
            f"`headwater mcp` needs the module {missing.name}: pip install 'headwater[mcp]'."
        ) from None
    seconds = CALL_SECONDS if args.timeout is None else args.timeout
    if not 0 < seconds <= CALL_SECONDS:
        raise InvalidInputError(f"--timeout is more than 0 and at most {CALL_SECONDS:g} seconds.")
    serve(args.catalog, args.target.properties, seconds)
    return 0
