"""Child tables in a run: their tables follow the changes of their parents, each in one commit.

Tasks make the rows (see streams/sources/child_rows). The driver commits them with the state that they were made of, so
a run that was killed leaves a table that knows exactly how far it has followed its parent. A parent and its children
are published in one commit at one state.

The job that takes out again what came from a source or a file, and publishes what is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    error_for,
)
from headwater.metastore import Reading, Transaction
from headwater.names import parse_name
from headwater.pipeline.executors import NO_PROGRESS
from headwater.pipeline.jobs import Report, is_served, log_of, open_lake, publish, runner_for, stream_of, summed
from headwater.rest.remote_streams import RemoteStream
from headwater.streams.definition import to_properties, with_properties
from headwater.streams.layout import QUARANTINE, sibling
from headwater.streams.log.landing import UPSERT, BatchOrigin, Landed, LandingReport, rows_so_far
from headwater.streams.log.prepared_landing import EvolvedError, PreparedLanding
from headwater.streams.log.undo import landed_from, parts_of
from headwater.streams.reading.position_views import view_at
from headwater.streams.serving.derived_columns import beside, identity, load, modules_of
from headwater.streams.serving.publication import ChildBehindError
from headwater.streams.serving.serving_copy import lake
from headwater.streams.sources.child_rows import ChildWork, can_follow, divided
from headwater.streams.sources.files import local_name, names_of
from headwater.streams.sources.formats import total
from headwater.streams.sources.source_files import is_remote
from headwater.streams.stream_lookup import Stream, open_in, open_stream
from headwater.streams.table_functions import MADE_OF, SOURCE, MadeOf, TableFunction, function_of, made_of, why_anew
from headwater.work import Json, Runner, Task
from headwater.work.runners import Progress


def expand(spark: object, catalog: Catalog, table: str, tell: Progress = NO_PROGRESS) -> Report:
    """Make a child table follow its parent: the children of changed parents are made again, in one commit."""
    began, runner = time.perf_counter(), runner_for(spark, tell)
    so_far = runner.done
    done = make_children(runner, stream_of(catalog, table))
    report = Report("expand", table, done.rows, quarantined=done.quarantined, position=done.position)
    seconds = time.perf_counter() - began
    return replace(report, checks=done.checks, seconds=seconds, where=runner.done - so_far)


def follow(spark: object, catalog: Catalog, parent: str) -> list[str]:
    """Make the child tables of a table follow it, and theirs; return their names."""
    children = [each.name for each in children_of(catalog, parent)]
    for name in children:
        expand(spark, catalog, name)
    return children


def publish_families(
    spark: object,
    catalog: Catalog,
    publishable: Sequence[str],
    tables: Sequence[str],
    lineage: Mapping[str, Mapping[str, object]] | None = None,
    tell: Progress = NO_PROGRESS,
) -> Report:
    """Publish tables in one commit, child tables with their parents at the very state that the children are of.

    `publishable`: the tables that may be published beside them. If others land in a parent meanwhile, its children
    follow it again first.
    """
    names = _with_parents(catalog, publishable, tables)
    for _ in range(ATTEMPTS):
        try:
            return publish(spark, catalog, *names, lineage=lineage, tell=tell)
        except ChildBehindError as behind:
            expand(spark, catalog, behind.child, tell)
    raise ConcurrentModificationError(f"Others change {', '.join(names)} all the time: run again.")


def _with_parents(catalog: Catalog, publishable: Sequence[str], tables: Sequence[str]) -> list[str]:
    names = list(tables)
    for name in names:  # it grows by the parents of parents
        table: object = catalog[name]
        function = function_of(name, table.definition) if isinstance(table, CatalogStream) else None
        if function is not None and function.parent in publishable and function.parent not in names:
            names.append(function.parent)
    return names


ATTEMPTS = 20
"""The number of times that children are made again because other writers changed their table meanwhile."""


def make_children(runner: Runner, stream: CatalogStream) -> LandingReport:
    """Make a child table hold the children of its parent as it is now, in one commit.

    Only parents with changed inputs are given to the function, unless all children have to be made again.
    """
    for _ in range(ATTEMPTS):
        snapshot = stream.namespace.metastore.now()
        child = open_stream(snapshot, stream.path)
        function = function_of(child.name, child.definition)
        if function is None:
            raise InvalidInputError(f"{child.name} has no function that makes its rows of another table.")
        parent = open_stream(snapshot, parse_name(function.parent))
        check_parent(function, parent, child)
        with beside(Path(function.folder)) if function.folder is not None else nullcontext():
            work = _work(snapshot, parent, child, function)
            prepared = _prepared(runner, stream, snapshot, parent, work)
        state = MadeOf(function.identity(work.identity), (parent.version_home, view_at(snapshot, parent).position), 0)
        try:
            return _committed(stream, prepared, state, work.child.position)
        except EvolvedError:
            continue
    raise ConcurrentModificationError(f"Others change {stream.name} all the time: run again.")


def check_parent(function: TableFunction, parent: Stream, child: Stream) -> None:
    """Raise InvalidInput (13) for a parent without the keys and inputs that a child table was declared with."""
    definition = parent.definition
    if set(definition.keys) != set(function.keys):
        raise InvalidInputError(
            f"{child.name} has the parent {parent.name} with the keys {', '.join(function.keys)}, and that has: "
            f"{', '.join(definition.keys) or 'none'}."
        )
    for name in function.inputs:
        if name not in definition.by_name:
            known = ", ".join(definition.by_name)
            raise InvalidInputError(
                f"The function of {child.name} has the input {name!r}, which is not a column of {parent.name}: {known}."
            )
    for name in function.keys:
        of_parent, own = definition.by_name[name].type, child.definition.by_name[name].type
        if of_parent != own:
            raise InvalidInputError(
                f"The column {name!r} of {child.name} is {own}, and {of_parent} in its parent {parent.name}: "
                "write the same type."
            )


def children_of(catalog: Catalog, parent: str) -> list[CatalogStream]:
    """Return the child tables of a table, each before its own children."""
    found: list[CatalogStream] = []
    for name in catalog:
        table: object = catalog[name]
        if isinstance(table, CatalogStream):
            function = function_of(name, table.definition)
            if function is not None and function.parent == parent:
                found += [table, *children_of(catalog, name)]
    return found


def _work(snapshot: Reading, parent: Stream, child: Stream, function: TableFunction) -> ChildWork:
    view, own = view_at(snapshot, child), identity(function)
    known = made_of(child.definition.properties)
    why = why_anew(known, function.identity(own), parent.version_home, view.position)
    after = None if known is None or why or not can_follow(snapshot, parent, known.parent[1]) else known.parent[1]
    return ChildWork(snapshot.slot, parent.path, view, function, own, after, rows_so_far(snapshot, child))


def _prepared(runner: Runner, stream: CatalogStream, snapshot: Reading, parent: Stream, work: ChildWork) -> list[Json]:
    location = stream.namespace.location()
    here = lake(stream.namespace.metastore, location.root, dict(location.storage))
    parts = divided(here, snapshot, parent, work, runner)
    is_here = runner.spark is None
    modules = () if is_here else modules_of([work.function])
    name = "headwater.streams.sources.child_rows:run_part"
    tasks = [Task(name, (here if is_here else location, work, part), modules) for part in parts]
    answers = runner.run(tasks, f"make {stream.name} of {parent.name}")
    return [each for answer in answers for each in answer]


def _committed(stream: CatalogStream, prepared: Sequence[Json], state: MadeOf, position: int) -> LandingReport:
    """Commit the changes with the state that they were made of; EvolvedError: the child table is another by now."""
    landings: list[PreparedLanding] = []
    for each in prepared:
        first: Any = landings[0] if landings else None
        origin = BatchOrigin(SOURCE)
        landings.append(PreparedLanding(stream.namespace.metastore, stream.path, each, UPSERT, False, origin, first))

    def work(tx: Transaction) -> list[Landed]:
        found = open_in(tx, stream.path)
        if tx.last_position(found.path, version=found.version) != position:
            raise EvolvedError
        landed = [landing(tx) for landing in landings]
        now = position + sum(len(each.deltas) for each in landed)
        text = MadeOf(state.function, state.parent, now).to_text()
        changed = with_properties(found.definition, {MADE_OF: text})
        tx.update_table_version(found.path, found.version, to_properties(changed))
        return landed

    reports = [stream.report(each) for each in stream.run(work, f"{UPSERT} {stream.name} by its function")]
    return total(reports) if reports else LandingReport(stream.position)


def undo_source(
    spark: object,
    catalog: str | Catalog,
    table: str | None = None,
    source: str | None = None,
    file: str | None = None,
    digest: str | None = None,
) -> Report:
    """Take out again what came from a source, or from one of its files (all its generations), and publish that.

    Without a table it is taken out of every stream table that has some of it. With `digest` only what was taken of
    that content. The rows that it had quarantined go too, and are counted. Rows that it did not touch stay as they are,
    with their derived values. Child tables follow, and are published in the same commit. A file that was undone is not
    taken again before its content changes, unless it is asked for.
    """
    began = time.perf_counter()
    lake = open_lake(spark, catalog)
    path = file if file is None or is_remote(file) else os.path.realpath(local_name(file))
    parts: list[Report] = []
    for name in [table] if table is not None else fed_by(lake, source, file):
        stream = log_of(lake, name)
        with half_done(parts, name):
            if isinstance(stream, CatalogStream):
                for derived in stream.definition.derived:
                    load(derived)  # before anything is taken out
            done = stream.undo(source=source, file=path if isinstance(stream, RemoteStream) else file, digest=digest)
        told = f"It is taken out of {name}, which is not published: `headwater publish {name}` does that."
        with half_done(parts, name, told):
            parts.append(replace(_published(spark, lake, name), job="undo", quarantined=done.quarantined))
    return summed("undo", parts, began)


def _published(spark: object, lake: Catalog, name: str) -> Report:
    """Publish a table with the child tables that follow it; return its own report."""
    family = [name] if is_served(lake) else [name, *follow(spark, lake, name)]
    done = publish_families(spark, lake, family, family) if len(family) > 1 else publish(spark, lake, name)
    return next((part for part in done.parts if part.table == name), done)


@contextmanager
def half_done(done: Sequence[Report], name: str, told: str = "") -> Iterator[None]:
    """Raise an error of the same code that says what a job of several parts had done before it failed.

    `done`: the reports of what is done. `told`: what to say of the table `name`, if a part of it is done.
    """
    try:
        yield
    except LanceNamespaceError as error:
        others = [report.table for report in done if report.table != name]
        before = f"Done before it: {', '.join(others)}." if others else ""
        if not told and not before:
            raise
        raise error_for(int(error.code), " ".join(filter(None, (str(error), told, before)))) from error


def fed_by(lake: Catalog, source: str | None, file: str | None) -> list[str]:
    """Return the stream tables that have something from a source, or from one of its files."""
    if source is None:
        raise InvalidInputError("Say which stream table, or which source.")
    files = names_of(file) if file is not None else None
    tables = {name: lake[name] for name in lake}
    streams = {name: each for name, each in tables.items() if isinstance(each, (CatalogStream, RemoteStream))}
    deltas = {each.id.names: each.deltas() for each in streams.values()}
    found = []
    for name, each in streams.items():
        beside, version = deltas.get(sibling(each.id.names, QUARANTINE), ()), each.version_id.rpartition("/")[2]
        parts = parts_of(deltas[each.id.names], beside, version)
        if landed_from(parts, source=source, files=files):
            found.append(name)
    if not found:
        told = f"the file {file} of the source {source!r}" if file is not None else f"the source {source!r}"
        raise InvalidTableStateError(f"No stream table has anything from {told}: it was undone, or never taken.")
    return found
