"""A table as a stream of appended rows. Offsets are versions.

An offset `{"version": v}` says that all versions up to v were read. A stream without `startingVersion` begins with
the rows of the version it finds, fragment by fragment: `{"version": v, "fragments": k}` says that the first k were
read. After that each Append version is one step; compactions, indices and new columns emit nothing; an update,
delete or overwrite is an error unless `skipChangeCommits` is set, as a stream cannot take rows back.

A tag of the table, named after the query's checkpoint, stands at the last version that was read, so that
`system.cleanup` spares what the query has not read yet. What to do when another client cleaned it up is in `gaps`.
"""

from __future__ import annotations

import hashlib
from typing import Any

import lance

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.tables.gaps import CREATED, Gap, extents, step_after
from headwater.tables.handle import TableHandle
from headwater.tables.history import APPEND, CHANGE, SAME, step
from headwater.tables.parts import Fragments
from headwater.tables.prune import may_match
from headwater.tables.scan import Extent, whole_fragments

Offset = dict[str, int]
CONSUMER = "headwater-stream-"


def option(options: dict[str, str], name: str) -> str | None:
    """Options are case-insensitive in Spark."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def initial(dataset: lance.LanceDataset, options: dict[str, str]) -> Offset:
    start = option(options, "startingVersion")
    if start is None:
        return {"version": dataset.version, "fragments": 0}
    if start == "latest":
        return {"version": dataset.version}
    if not start.isdigit() or int(start) < 1:
        raise InvalidInputError(f"startingVersion is {start!r}: give a version number or 'latest'.")
    return {"version": int(start) - 1}


def latest(
    table: TableHandle,
    newest: int,
    start: Offset,
    options: dict[str, str],
    max_versions: int | None = None,
    max_rows: int | None = None,
    changes: bool = False,
) -> Offset:
    """The end of the next batch: everything that is there, or as much as the limits allow and at least one step."""
    if "fragments" in start:
        return _through_snapshot(table, start, max_versions, max_rows)
    skip = changes or option(options, "skipChangeCommits") == "true"
    rows = steps = 0
    version = start["version"]
    while version < newest:
        found = step(table, version + 1) if changes else step_after(table, version)
        if found.kind == CHANGE and not skip:
            raise InvalidTableStateError(
                f"Version {found.version} of the table {table.name!r} ({found.operation}) changed rows that "
                "were read before, and a stream of appended rows cannot tell that. Set the option skipChangeCommits "
                "to pass over such versions, or read CHANGES."
            )
        if steps and ((max_rows and rows + found.rows > max_rows) or (max_versions and steps >= max_versions)):
            break
        version = found.version
        if found.kind != SAME:
            rows += found.rows
            steps += 1
    return {"version": version}


def _through_snapshot(table: TableHandle, start: Offset, max_versions: int | None, max_rows: int | None) -> Offset:
    fragments = table.at(start["version"]).open().get_fragments()
    done, rows = start["fragments"], 0
    while done < len(fragments):
        size = fragments[done].metadata.num_rows
        taken = done - start["fragments"]
        if taken and ((max_rows and rows + size > max_rows) or (max_versions and taken >= max_versions)):
            return {"version": start["version"], "fragments": done}
        rows += size
        done += 1
    return {"version": start["version"]}


def plan(
    table: TableHandle, start: Offset, end: Offset, parallelism: int, skip: bool, prune: dict[str, Any] | None = None
) -> list[Fragments]:
    """The parts of the batch between two offsets; each names the version it is read at."""
    parts: list[Fragments] = []
    if "fragments" in start:
        ids = [fragment.fragment_id for fragment in table.at(start["version"]).open().get_fragments()]
        stop = end["fragments"] if "fragments" in end else len(ids)
        parts += _parts(table, start["version"], ids[start["fragments"] : stop], parallelism, prune)
    version = start["version"]
    while version < end["version"]:
        found = step_after(table, version)
        version = found.version
        if found.kind == CHANGE and not skip:
            raise InvalidTableStateError(f"Version {version} of the table {table.name!r} changed rows already read.")
        if isinstance(found, Gap):
            parts += _gap_parts(table, found, end["version"], parallelism)
        elif found.kind == APPEND:
            parts += _parts(table, version, list(found.added), parallelism, prune)
    return parts


def _gap_parts(table: TableHandle, gap: Gap, last: int, parallelism: int) -> list[Fragments]:
    """The rows of a gap. A batch that is replayed may end inside it: its own end was cleaned up since."""
    filter = gap.filter if gap.version <= last else f"{gap.filter} AND {CREATED} <= {last}"
    parts = whole_fragments(extents(table, gap, filter), parallelism)
    return [Fragments(part, gap.version, filter) for part in parts]


def _parts(
    table: TableHandle, version: int, ids: list[int], parallelism: int, prune: dict[str, Any] | None
) -> list[Fragments]:
    wanted = set(ids)
    metadata = may_match(table.at(version).open(), prune)
    extents = [Extent(fragment.id, fragment.num_rows) for fragment in metadata if fragment.id in wanted]
    return [Fragments(part, version) for part in whole_fragments(extents, parallelism)]


def tag_of(prefix: str, key: str) -> str:
    return prefix + hashlib.sha256(key.encode()).hexdigest()[:16]


def move_tag(dataset: lance.LanceDataset, tag: str, version: int, *, only_create: bool = False) -> None:
    """Set a tag to a version, forwards only."""
    known = dataset.tags.list().get(tag)
    if known is None:
        dataset.tags.create(tag, version)
    elif known["version"] < version and not only_create:
        dataset.tags.update(tag, version)


def unread_from(dataset: lance.LanceDataset, prefix: str = CONSUMER) -> int | None:
    """The oldest version any stream stands at: this one and all after it must be kept."""
    versions = [tag["version"] for name, tag in dataset.tags.list().items() if name.startswith(prefix)]
    return min(versions, default=None)
