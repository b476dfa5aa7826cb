"""A Lance table as a streaming source of appended rows, whose offsets are versions, and as an exactly-once sink.

An offset `{"version": v, "made": m}` says that all versions up to v were read, and m which commit made v: a table that
was made anew under the name has another. (Without it where no commit is known, and in checkpoints of before.) A stream
without `startingVersion` begins with the rows of the version it finds, fragment by fragment: with `"fragments": k` the
first k were read. After that each Append version is one step; compactions, indices and new columns emit nothing; an
update, delete or overwrite is an error unless `skipChangeCommits` is set, as a stream cannot take rows back.

A tag of the table, named after the query's checkpoint, stands at the last version that was read, so that
`system.cleanup` spares what the query has not read yet. What to do when another client cleaned it up is in `gaps`.

The sink makes one commit per batch, which carries the stream's id and the batch's number. A batch that is in the table
already is not committed again. A tag, set before a stream's first commit and moved after each, says from which version
on its newest batch is to be looked for, and keeps that version. So a stream without a tag has committed nothing yet.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import lance

from headwater.errors import InvalidInputError, InvalidTableStateError, TableVersionNotFoundError
from headwater.spark.catalog import Connection
from headwater.tables.commit.committer import BATCH, STREAM, overwrite
from headwater.tables.commit.history import APPEND, CHANGE, SAME, committed, step
from headwater.tables.handle import TableHandle
from headwater.tables.scan.changes import CREATED, Gap, extents, step_after
from headwater.tables.scan.parts import Fragments
from headwater.tables.scan.prune import may_match
from headwater.tables.scan.table_scan import Extent, whole_fragments
from headwater.tables.translate import NoDataError

Offset = dict[str, int]
CONSUMER = "headwater-stream-"
MADE = "made"


def option(options: dict[str, str], name: str) -> str | None:
    """Options are case-insensitive in Spark."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def made_of(table: TableHandle, version: int) -> int | None:
    """A number that tells the commit of a version from all others; None if it is gone, or keeps no transaction."""
    try:
        id = committed(table.at(version).open(), version).uuid if version > 0 else None
    except (TableVersionNotFoundError, NoDataError, OSError, ValueError):
        return None
    return None if id is None else int.from_bytes(hashlib.blake2b(id.encode(), digest_size=6).digest())


def marked(table: TableHandle, offset: Offset, start: Offset | None = None) -> Offset:
    """Return the offset with the commit that made its version. Where it is still at `start`, what that says stays."""
    if start is not None and start["version"] == offset["version"] and MADE in start:
        return {**offset, MADE: start[MADE]}
    made = made_of(table, offset["version"])
    return offset if made is None else {**offset, MADE: made}


def check_same(table: TableHandle, newest: int, *offsets: Offset) -> None:
    """Error 19 for a checkpoint of another table: its versions say nothing of this one."""
    for offset in offsets:
        made = made_of(table, offset["version"]) if MADE in offset else None
        is_lost = MADE in offset and made is None and offset["version"] > newest
        if is_lost or made not in (None, offset.get(MADE)):
            raise InvalidTableStateError(
                f"{table.name} is another table than the one that this query has read: version {offset['version']} is "
                "not the one it was. It was dropped and made again, or the version was taken back. Start the query "
                "with a new checkpoint."
            )


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
    table: TableHandle, start: Offset, end: Offset, parallelism: int, skip: bool, prune: dict[str, object] | None = None
) -> list[Fragments]:
    """Return the parts of the batch between two offsets; each names the version it is read at."""
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
    """Return the rows of a gap. A batch that is replayed may end inside it: its own end was cleaned up since."""
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


# The sink -----------------------------------------------------------------------------------------------------------

SINK = "headwater-sink-"


def committed_batch(dataset: lance.LanceDataset, stream: str) -> int:
    """Return the newest batch of a stream that is in the table, or -1."""
    tag = dataset.tags.list().get(tag_of(SINK, stream))
    if tag is None:
        return -1
    for version in range(dataset.version, tag["version"] - 1, -1):
        properties = committed(dataset, version).properties
        if properties.get(STREAM) == stream:
            return int(properties[BATCH])
    return -1


def commit_batch(
    connection: Connection,
    table: TableHandle,
    stream: str,
    batch: int,
    fragments: list[dict[str, object]],
    truncate: bool,
) -> int:
    """Commit a batch once. The answer is the version it is in, or the newest one when it was there already."""
    newest = connection.open(table)
    if committed_batch(newest, stream) >= batch or not (fragments or truncate):
        return int(newest.version)
    move_tag(newest, tag_of(SINK, stream), newest.version, only_create=True)
    properties = {STREAM: stream, BATCH: str(batch)}
    current = table.at(newest.version)
    if truncate:
        version = overwrite(connection.committer, current, "true", fragments, properties)
    else:
        version = connection.committer.append(current, fragments, properties)
    with contextlib.suppress(OSError, ValueError):  # the tag only shortens the search
        move_tag(connection.open(table), tag_of(SINK, stream), version)
    return version
