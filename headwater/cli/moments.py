"""Verbs about the past: versions, history, log, diff, undo, restore, snapshot."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headwater.cli.lookups import names_of
from headwater.cli.output import cell, confirm, is_terminal, show_record, show_records
from headwater.cli.target import at
from headwater.errors import InvalidInputError, TableTagNotFoundError, TransactionNotFoundError
from headwater.imports import when_used
from headwater.metastore import Diff, LogChange, LogEntry, Object
from headwater.metastore.records.objects import HistoryEntry, summarized, words_of
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.names import format_name
from headwater.wording import many

if TYPE_CHECKING:
    from headwater.catalog import Catalog


SHOWN_CHANGES = 4
pipeline = when_used("headwater.cli.pipeline")
"""The look-ups of this module do without the pipeline."""
_TRANSACTION = re.compile(r"\d{1,18}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def versions(args: argparse.Namespace) -> int:
    if args.limit == 0:
        raise InvalidInputError("--limit is at least 1.")
    found = names_of(args.target).versions(args.name_of(args.table), args.branch)
    newest = found[-args.limit :] if args.limit else found
    listed = reversed(newest) if args.descending else newest
    shown = ({"version": item.version, "time": item.time, "change": item.change} for item in listed)
    show_records(shown, args.json)
    return 0


def history(args: argparse.Namespace) -> int:
    asked = list(args.name_of(args.name))
    found = args.target.past("history").history(asked)
    is_short = is_terminal() and not args.json
    records = (
        {
            "slot": entry.slot,
            "time": entry.time,
            "operation": f"{entry.operation} {entry.kind}" if args.json else entry.summary,
            **({"change": entry.change, "position": entry.position} if args.json else {}),
            "name": None if is_short and list(entry.path) == asked else format_name(entry.path),
            "id": list(entry.path),
            "version": entry.version,
            "author": entry.author,
            "message": None if is_short and _says_no_more(entry) else entry.message,
        }
        for entry in _newest(found, args.limit)
    )
    show_records(records, args.json, wrapped=("operation", "message"))
    return 0


def _says_no_more(entry: HistoryEntry) -> bool:
    """Return True if a message only joins the operation, the name and the version of an entry."""
    told, name = entry.summary, format_name(entry.path)
    known = {f"{told}{word} {name}" for word in ("", " to", " into", " of", " from")}
    known.add(f"publish {name} ({told.removeprefix('publish ')}, version {entry.version})")
    return entry.message in known or entry.message.removesuffix(f" (version {entry.version})") in known


def _newest(found: Sequence[object], limit: int | None) -> Sequence[Any]:
    return found if limit is None else found[len(found) - min(limit, len(found)) :]


def log(args: argparse.Namespace) -> int:
    entries = list(args.target.past("log").log(args.after))
    show_records(
        (entry_record(entry, args.json) for entry in _newest(entries, args.limit)), args.json, wrapped=("message",)
    )
    return 0


def entry_record(entry: LogEntry, as_json: bool) -> dict[str, object]:
    """Return a transaction as a record: with all its changes as JSON, or in words.

    On a terminal the message stands for a single change, and several changes follow it.
    """
    texts = [_words(change) for change in summarized(entry.changes)]
    if is_terminal() and not as_json:
        shown = [*texts[:SHOWN_CHANGES], *(["..."] if len(texts) > SHOWN_CHANGES else [])]
        several = "; ".join(shown) if len(texts) > 1 or not entry.message else ""
        message = ": ".join(filter(None, (entry.message, several)))
        return {"slot": entry.slot, "time": entry.time, "author": entry.author, "message": message}
    return {
        "slot": entry.slot,
        "time": entry.time,
        **({"txn": entry.txn} if as_json else {}),
        "author": entry.author,
        "message": entry.message,
        "changes": [_change(change) for change in entry.changes] if as_json else "; ".join(texts),
    }


def _words(change: LogChange) -> str:
    of = "" if change.kind in ("namespace", "table") else "of "
    return f"{words_of(change)} {of}{format_name(change.path)}" if change.path else words_of(change)


def _change(change: LogChange) -> dict[str, object]:
    return {
        "operation": change.operation,
        "kind": change.kind,
        "name": format_name(change.path),
        "id": list(change.path),
    }


def diff(args: argparse.Namespace) -> int:
    past = args.target.past("history")
    since = at(args.target, args.since)
    until = at(args.target, args.until) if args.until is not None else past.slot
    show_records(differences(past.diff(since, until)), args.json, "headwater: nothing changed.")
    return 0


def differences(found: Diff) -> Iterator[dict[str, object]]:
    """Yield the differences of two states, one record for each object."""
    for change, objects in (("added", found.added), ("dropped", found.removed)):
        yield from (_difference(item.path, item.kind, change) for item in _named(objects))
    for moved in found.moved:
        yield {**_difference(moved.path, moved.kind, "moved"), "was": format_name(moved.old_path)}
    for changed in found.changed:
        old, new = changed.old_properties, changed.properties
        keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        yield {**_difference(changed.path, changed.kind, "properties"), "was": _texts({k: old.get(k) for k in keys})}
    for stream in found.streams:
        noun = "version" if stream.format == LANCE_FORMAT else "delta"  # of the Lance table, of the log that feeds it
        told = (("new", stream.added), ("fewer", stream.removed))
        rows = ", ".join(many(len(those), f"{word} {noun}") for word, those in told if those)
        yield {**_difference(stream.path, "table", "rows"), "was": rows}


def _texts(values: dict[str, object]) -> str:
    return ", ".join(f"{key}={'(none)' if value is None else cell(value)}" for key, value in values.items())


def _named(objects: Sequence[Object]) -> Iterator[Object]:
    return (item for item in objects if item.kind in ("namespace", "table"))


def _difference(path: Sequence[str], kind: str, change: str) -> dict[str, object]:
    return {"name": format_name(path), "id": list(path), "kind": kind, "change": change, "was": None}


def run_undo(args: argparse.Namespace) -> int:
    """Undo a transaction by its commit number or id; or, of a stream table, what came from a source or a file."""
    named = next((each for each in (args.source, args.file, args.digest) if each is not None), None)
    if args.what is None and args.source is None:
        raise InvalidInputError("Say what to undo: the number of a commit, a stream table, or --source.")
    if args.what is not None and named is None and _TRANSACTION.fullmatch(args.what):
        return _undo_transaction(args, args.what)
    if args.dry_run:
        raise InvalidInputError("--dry-run is for transactions: what a source gave can be taken again.")
    args.table = args.what
    if args.what is not None:
        args.target.catalog()[args.name_of(args.what)]  # 4 before anybody is asked
    if named is None:
        raise InvalidInputError(f"Say what to undo of {args.what}: --source or --file; or give the number of a commit.")
    if args.file is None and args.digest is None:  # one file that is named can be taken again
        confirm(
            args,
            f"This will remove from {args.what or 'every stream table'} what came from "
            f"{named or 'the unnamed source'}.",
        )
    return int(pipeline.undo_source(args))


def _undo_transaction(args: argparse.Namespace, what: str) -> int:
    catalog = args.target.with_past("log")
    entry = find_transaction(catalog, what)
    if not args.dry_run:
        said = f" ({entry.message})" if entry.message else ""
        confirm(args, f"This will undo commit {entry.slot}{said} by a new commit.")
    done = catalog.undo(entry, args.dry_run)
    steps = [f"{step.action} {step.kind} {format_name(step.path)}" for step in done.steps]
    show_record({"undone": None if args.dry_run else entry.slot, "slot": done.slot, "steps": steps}, args.json)
    return 0


def find_transaction(catalog: Catalog, what: str) -> LogEntry:
    """Return the transaction of a slot, or with an id. Commits that were made together share a slot: then its id is
    asked for, so that nobody undoes the work of others."""
    slot = int(what) if what.isdigit() else None
    if slot == 0 or (slot is not None and slot > catalog.slot):
        found = []
    elif slot is not None:
        found = [entry for entry in _from(catalog, slot) if entry.slot == slot]
    else:
        found = [entry for entry in catalog.log() if entry.txn == what]
    if not found:
        where = f"with the number {slot}" if slot is not None else f"with the id {what}"
        raise TransactionNotFoundError(f"There is no commit {where}: `headwater log` lists them.")
    if len(found) > 1:
        told = "; ".join(f"{entry.txn} ({entry.message})" for entry in found[:SHOWN_CHANGES])
        raise InvalidInputError(f"Commit {slot} has {len(found)} transactions. Give the id of the one to undo: {told}.")
    return found[0]


def _from(catalog: Catalog, slot: int) -> Iterator[LogEntry]:
    """Yield the log from a commit on, as far as that can have more of it."""
    for entry in catalog.log(slot - 1):
        if entry.slot > slot:
            return
        yield entry


def restore(args: argparse.Namespace) -> int:
    catalog = args.target.catalog()
    name = args.name_of(args.table)
    table = catalog[name].serving
    version = _version(args, table)
    confirm(
        args, f"This will make version {version} of {format_name(name)} the current one. Newer versions stay readable."
    )
    chosen = table if args.branch is None else table.at(branch=args.branch)
    chosen.restore(version)
    newest = chosen.versions()[-1].version
    show_record({"name": format_name(name), "id": list(name), "restored": version, "version": newest}, args.json)
    return 0


def _version(args: argparse.Namespace, table: Any) -> int:
    """The version that a line means, said in one way."""
    said = [args.number, args.version, args.tag, args.at]
    if sum(item is not None for item in said) != 1:
        raise InvalidInputError("Say which version to restore: its number, --tag or --at.")
    if args.tag is not None:
        return int(table.tags[args.tag])
    if args.at is not None:
        return int(table.at(time=_time(at(args.target, args.at)), branch=args.branch).version)
    return int(args.number if args.number is not None else args.version)


def run_snapshot(args: argparse.Namespace) -> int:
    """List, add and drop named moments of the whole catalog."""
    if args.action not in ("list", "add", "drop"):
        raise InvalidInputError("`headwater snapshot` is followed by one of list, add NAME and drop NAME.")
    if args.table and args.action != "add":
        raise InvalidInputError("--table is of `headwater snapshot add`.")
    if args.action != "list":
        if args.name is None:
            raise InvalidInputError(f"`headwater snapshot {args.action}` needs a name.")
        catalog = args.target.with_past("snapshots")
        if args.action == "drop":
            if args.name not in {item.name for item in catalog.snapshots()}:
                raise TableTagNotFoundError(f"There is no snapshot {args.name!r}: `headwater snapshot` lists them.")
            confirm(args, f"This will drop the snapshot {args.name}.")
            catalog.drop_snapshot(args.name)
        else:
            catalog.snapshot(args.name, [args.name_of(table) for table in args.table] or None)
    found = args.target.past("snapshots").snapshots()
    show_records(
        ({"snapshot": item.name, "slot": item.slot, "time": item.time, "tables": len(item.tables)} for item in found),
        args.json,
        "headwater: there are no snapshots; `headwater snapshot add NAME` takes one.",
    )
    return 0


def _time(said: int | datetime | str) -> datetime:
    if isinstance(said, (int, str)):
        raise InvalidInputError("--at of a restore is a time: a commit or snapshot is of the whole catalog.")
    return said.astimezone(UTC)
