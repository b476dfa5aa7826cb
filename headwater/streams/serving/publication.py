"""Publishing: the serving copy becomes equal to the state at a position, in one transaction. It is the compaction.

Only rows that changed are written; a changed row keeps its row id. Landing goes on meanwhile: the deltas that are
published cannot change, and later ones wait for the next publish. Two publishes of one table conflict, and the second
looks again.
Each publish records its lineage in its commit. `positions` are the deltas it took in (first exclusive, last inclusive),
`sources` what those were landed from, and `functions` what its derived columns were computed by. A caller adds
`inputs` (tables) and `run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    TableVersionNotFoundError,
)
from headwater.metastore import Delta, Reading, Transaction
from headwater.metastore.sessions import PresentSession, Session
from headwater.names import format_name, parse_name
from headwater.streams.fold.fold import small_pages
from headwater.streams.layout import LANCE, LINEAGE, QUARANTINE
from headwater.streams.log.batches import quarantine
from headwater.streams.reading.position_views import PositionView, Published, newest_published, view_at
from headwater.streams.serving.derived_columns import computed
from headwater.streams.serving.merge import digest_now
from headwater.streams.serving.publish_tasks import Publish, stage_rows
from headwater.streams.serving.scd2 import History, publish_history
from headwater.streams.serving.schema_evolution import published_columns
from headwater.streams.serving.serving_copy import Lake, Staged, Staging, finalize, on_top, open_version, set_aside
from headwater.streams.serving.staged_rows import head_of, record, stage_columns, withdraw
from headwater.streams.stream_lookup import Stream, open_in, open_stream
from headwater.streams.table_functions import function_of, made_of
from headwater.wording import many
from headwater.work import HERE, Runner

ROWS = "rows"
"""The name that lineage has for the function of a child table, among those of its derived columns."""


class StagedPublish(Protocol):
    """A publish of one table that a transaction has staged."""

    @property
    def published(self) -> Published: ...

    @property
    def stream(self) -> Stream: ...


class ChildBehindError(InvalidTableStateError):
    """A child table was made of another state of its parent than the one that is published with it."""

    child: str = ""


def parents_first(snapshot: Reading, paths: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the tables of a publish, parents before their children."""
    waiting = {tuple(path): path for path in paths}
    parents: dict[tuple[str, ...], tuple[str, ...]] = {}
    for path in waiting:
        function = function_of(format_name(path), open_stream(snapshot, path).definition)
        parents[path] = tuple(parse_name(function.parent)) if function is not None else ()
    done: list[Sequence[str]] = []
    while waiting:
        free = [path for path in waiting if parents[path] not in waiting] or list(waiting)
        done += [waiting.pop(path) for path in free]
    return done


def of_parent(tx: Transaction, path: Sequence[str], made: Mapping[tuple[str, ...], StagedPublish]) -> dict[str, Any]:
    """Return the lineage of a child table; ChildBehindError if its parent is published at another state.

    `made`: what the transaction publishes so far, by path.
    """
    stream = open_in(tx, path)
    function, state = function_of(stream.name, stream.definition), made_of(stream.definition.properties)
    if function is None or state is None:
        return {}
    parent = next((each for known, each in made.items() if format_name(known) == function.parent), None)
    if parent is not None and (parent.stream.version_home, parent.published.position) != state.parent:
        behind = ChildBehindError(
            f"{stream.name} was made of {function.parent} at position {state.parent[1]}, and that is at "
            f"{parent.published.position}: run the pipeline that makes it, which publishes both."
        )
        behind.child = stream.name
        raise behind
    version = parent.published.version if parent is not None else 0
    return {"inputs": {function.parent: {"position": state.parent[1], "version": version}}}


def of_rows(stream: Stream) -> dict[str, dict[str, Any]]:
    """Return the function that made the rows of a child table, as lineage names it."""
    function, state = function_of(stream.name, stream.definition), made_of(stream.definition.properties)
    if function is None or state is None:
        return {}
    return {ROWS: {"function": function.function, "identity": state.function[0]}}


MAX_FILES = 1_000
"""So many files of a source are named; all of them are counted."""


def lineage_of(view: PositionView, before: Published | None, made: Published) -> dict[str, Any]:
    """Return the lineage of a publish. `undone`: files of earlier publishes whose rows this one takes out."""
    start = before.position if before is not None else 0
    voided = {position: delta.position for delta in view.after_base for position in delta.properties.get("voids", ())}
    landed = [delta for delta in view.after_base if "voids" not in delta.properties]
    standing = {_file_of(delta) for delta in landed if delta.position not in voided}
    sources, undone = dict[str, dict[str, Any]](), dict[str, dict[str, None]]()
    for delta in landed:
        name, file = _file_of(delta)
        if delta.position > start and delta.position not in voided:
            entry = sources.setdefault(name, {"files": {}, "deltas": 0})
            entry["deltas"] += 1
            entry["files"] |= {file: None} if file else {}
        elif delta.position <= start < voided.get(delta.position, 0) and file and (name, file) not in standing:
            undone.setdefault(name, {})[file] = None
    taken_out = [{"source": name, "files": list(files)} for name, files in undone.items()]
    return {
        "positions": [start, made.position],
        "sources": [_source(name, entry) for name, entry in sources.items()],
        **({"undone": taken_out} if taken_out else {}),
        "functions": {
            derived.name: {"function": derived.function, "identity": computed.identity}
            for derived in view.stream.definition.derived
            for computed in made.derived
            if computed.name == derived.name
        }
        | of_rows(view.stream),
    }


def noted(snapshot: Reading, stream: Stream, version: int | None) -> dict[str, Any]:
    """Return the lineage in a version's commit; of one that changed no rows, that of the publish before it.

    11: there is no such version, or nothing was published yet.
    """
    last = snapshot.last_position(stream.path, format=LANCE, version=stream.version)
    found = snapshot.deltas(stream.path, format=LANCE, version=stream.version)
    known = {delta.position: delta.properties.get(LINEAGE) for delta in found}
    wanted = last if version is None else version
    if wanted not in known:
        raise TableVersionNotFoundError(f"{stream.name} has no published version {wanted}; its newest is {last}.")
    later = (known[number] for number in sorted(known, reverse=True) if number <= wanted)
    return dict(next((lineage for lineage in later if lineage is not None), {}))


def _file_of(delta: Delta) -> tuple[str, str]:
    """Return the source of a delta and the file that it came from, empty texts without them."""
    return str(delta.properties.get("source") or ""), str(delta.properties.get("file") or "")


def sources_so_far(lineages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sources of publishes, oldest first, each with its files. Files that a later publish undoes are out."""
    found: dict[str, dict[str, None]] = {}
    for each in lineages:
        for taken_out in each.get("undone", ()):
            files = found.pop(taken_out["source"], {})
            left = [file for file in files if file not in taken_out["files"]]
            found |= {taken_out["source"]: dict.fromkeys(left)} if left else {}
        for source in each.get("sources", ()):
            found.setdefault(str(source.get("source") or ""), {}).update(dict.fromkeys(source.get("files", ())))
    return [{"source": name, "files": list(files)} for name, files in found.items()]


def _source(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    files = list(entry["files"])
    return {"source": name, "deltas": entry["deltas"], "files": files[:MAX_FILES], "file_count": len(files)}


@dataclass(frozen=True)
class Publication:
    """A publish that was staged, and what remains to be done once it is committed. `made` is False: nothing was new."""

    published: Published
    made: bool
    stream: Stream
    staged: tuple[Staged, ...] = ()
    history: History | None = None


@small_pages
def stage(
    lake: Lake, tx: Transaction, path: Sequence[str], lineage: Mapping[str, object] | None = None, runner: Runner = HERE
) -> Publication:
    """Stage the publish of a table in a transaction. After the commit call `finish`.

    `lineage` is what the caller knows of where the rows come from; the sources of the log are added to it. `runner`:
    the place in which the rows are folded and written.
    """
    snapshot = lake.now()
    stream = open_stream(snapshot, path)
    opened = open_in(tx, path)
    if (opened.id, opened.definition) != (stream.id, stream.definition):
        raise ConcurrentModificationError(f"{stream.name} evolved while its publish began: look again.")
    work = work_of(snapshot, stream)
    known = work.before
    if known is not None and (known.position, known.schema_id) == (work.view.position, stream.definition.schema_id):
        return Publication(known, False, stream)
    return _publish(lake, tx, work, lineage or {}, runner)


def work_of(snapshot: Reading, stream: Stream) -> Publish:
    """Return the work of a publish of a table at a slot; every process gets the same."""
    view, before = view_at(snapshot, stream), newest_published(snapshot, stream)
    return Publish(view, before, head_of(snapshot, stream), snapshot.slot)


def finish(lake: Lake, publication: Publication) -> None:
    """Give the committed manifests their final names. A reader would do it otherwise, and does after a transaction."""
    if lake.own is not None:
        return
    for staged in publication.staged:
        finalize(lake.store, publication.stream, staged.version, staged.key)
    if publication.history is not None:
        for staged in publication.history.staged:
            finalize(lake.store, publication.history.stream, staged.version, staged.key)


def _publish(lake: Lake, tx: Transaction, work: Publish, lineage: Mapping[str, object], runner: Runner) -> Publication:
    stream, newest = work.view.stream, work.head[0] if work.head else 0
    staging = Staging(lake, stream, *(work.head or (0, "")))
    set_aside(lake, stream, newest)
    with on_top(staging, stream):
        return _staged(lake, tx, staging, work, lineage, runner)


def _staged(
    lake: Lake, tx: Transaction, staging: Staging, work: Publish, lineage: Mapping[str, object], runner: Runner
) -> Publication:
    view, before, stream = work.view, work.before, work.view.stream
    dataset = open_version(lake, stream, *work.head) if work.head else None
    evolved = dataset is not None and before is not None and before.schema_id != stream.definition.schema_id
    if evolved and before is not None:
        dataset = stage_columns(lake, stream, staging, before, runner)
        before = replace(before, digest=digest_now(lake, view, before, runner))
        work = replace(work, before=before, staged=staging.staged[-1] if staging.staged else None)
    derived = computed(stream.definition, before, dataset)
    stale_to = max((each.stale_to for each in derived), default=-1)
    done = stage_rows(lake, work, staging, dataset, runner, stale_to)
    made = Published(
        0,
        view.position,
        "",
        done.count,
        done.digest,
        stream.definition.schema_id,
        published_columns(stream.definition),
        done.watermark,
        done.tombstones,
        done.late,
        done.too_late,
        derived,
        done.lines,
    )
    if done.rejected:  # by the publish that passes over them, and so once
        quarantine(tx, stream, done.rejected)
    published = record(lake, tx, stream, staging, made, {**lineage_of(view, before, made), **lineage})
    history = publish_history(lake, tx, stream, view, before, runner) if stream.definition.keeps_history else None
    withdraw(tx, stream, staging, stream, made.position)
    return Publication(published, True, stream, tuple(staging.staged), history)


def check_once(paths: Sequence[Sequence[str]]) -> None:
    """Error 13 for a table that is named twice."""
    twice = [format_name(path) for path, count in Counter(tuple(path) for path in paths).items() if count > 1]
    if twice:
        raise InvalidInputError(f"{', '.join(twice)} is named twice: a publish takes each table once.")


def publish_tables(
    lake: Lake,
    paths: Sequence[Sequence[str]],
    lineage: Mapping[str, Mapping[str, object]] | None = None,
    runner: Runner = HERE,
    session: Session | None = None,
) -> list[Published]:
    """Publish tables in one transaction, so that all are new at one slot; in the open one of a session if it has one.

    `lineage` says by dotted name what else the rows of a table come from; it is kept with the published version.
    `runner`: the place in which rows are folded and written, but not in an open transaction.
    """
    check_once(paths)
    where = session or PresentSession(lake.metastore)
    where.check_writable()
    if where.transaction is not None:
        return where.within(lambda tx: _publish_within(replace(lake, own=tx), paths, lineage or {}))

    def work(tx: Transaction) -> list[Publication]:
        made: dict[tuple[str, ...], Publication] = {}
        for path in parents_first(lake.now(), paths):
            told = (lineage or {}).get(format_name(path), {})
            made[tuple(path)] = stage(lake, tx, path, {**of_parent(tx, path, made), **told}, runner)
        done = [made[tuple(path)] for path in paths]
        tx.restate(planned, message_of(done))
        return done

    planned = "publish " + ", ".join(format_name(path) for path in paths)
    done = where.change(work, planned)
    for publication in done:
        finish(lake, publication)
    return [publication.published for publication in done]


def message_of(done: Sequence[Publication]) -> str:
    """Return the message of a publish: the tables that it made versions of, with their rows."""
    told = [
        f"{each.stream.name} ({many(each.published.rows, 'row')}, version {each.published.version})"
        for each in done
        if each.made
    ]
    return f"publish {', '.join(told or [each.stream.name for each in done])}"


def _publish_within(
    lake: Lake, paths: Sequence[Sequence[str]], lineage: Mapping[str, Mapping[str, object]]
) -> list[Published]:
    """Publish in the open transaction what its tables hold by then, with what the transaction has landed itself.

    Where it has landed nothing in a table, what others land meanwhile waits for the next publish, as always.
    Quarantines come last: the publish of their table may land rows in them.
    """
    tx, made = lake.own, dict[tuple[str, ...], Published]()
    assert tx is not None
    for path in sorted(paths, key=lambda path: path[-1].endswith(QUARANTINE)):
        with nullcontext() if tx.appended(path) else tx.unbound_logs(path):
            made[tuple(path)] = stage(lake, tx, path, lineage.get(format_name(path))).published
    return [made[tuple(path)] for path in paths]
