"""The job that takes out again what came from a source or a file, and publishes what is left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError, error_for
from headwater.pipeline.children import follow, publish_families
from headwater.pipeline.jobs import Report, is_served, log_of, open_lake, publish, summed
from headwater.rest.remote_streams import RemoteStream
from headwater.streams.layout import QUARANTINE, sibling
from headwater.streams.log.undo import landed_from, parts_of
from headwater.streams.serving.derived_columns import load
from headwater.streams.sources.files import local_name, names_of
from headwater.streams.sources.source_files import is_remote


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
    """The stream tables that have something from a source, or from one of its files."""
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
