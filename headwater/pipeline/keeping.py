"""Jobs that keep tables fast and small: indices that follow their rows, and housekeeping by policy.

A policy stands in properties of a table or of a namespace above it, the nearest wins: `maintain.compact` and
`maintain.collect` (yes or no), `maintain.index` (yes, no, or the part of the rows that may be missing from an index)
and `maintain.keep_days` (how long old versions of a plain table are kept).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from headwater.arguments import check_options
from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.catalog.table_parts import index_type_of
from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError
from headwater.names import parse_name
from headwater.pipeline.executors import NO_PROGRESS
from headwater.pipeline.facts import indexed
from headwater.pipeline.jobs import Report, check_here, open_lake, runner_for, stream_of, summed
from headwater.pipeline.planning import is_indexed
from headwater.streams.layout import HISTORY
from headwater.tables.indices import BUILD_OPTIONS, index_type
from headwater.work import Runner
from headwater.work.runners import Progress

PREFIX = "maintain."
YES, NO = "yes", "no"


@dataclass(frozen=True)
class Policy:
    """Housekeeping policy of a table. `missing`: the fraction of rows that an index may lack; None: any."""

    compact: bool = True
    collect: bool = True
    missing: float | None = 0.0
    keep_days: float | None = None


def policy_of(properties: Mapping[str, str], name: str) -> Policy:
    """Return a policy from the properties that count for a table; 13 names one that is not understood. Pure."""
    told = {key.removeprefix(PREFIX): text for key, text in properties.items() if key.startswith(PREFIX)}
    for key in told.keys() - {"compact", "collect", "index", "keep_days"}:
        raise InvalidInputError(f"{name} has a property {PREFIX}{key}, which is not part of a policy.")
    try:
        index = told.get("index", YES)
        missing = {YES: 0.0, NO: None}[index] if index in (YES, NO) else float(index)
        days = float(told["keep_days"]) if "keep_days" in told else None
    except ValueError:
        raise InvalidInputError(f"The policy of {name} has a value that is not a number: {told}.") from None
    return Policy(_is(told, "compact", name), _is(told, "collect", name), missing, days)


def _is(told: Mapping[str, str], key: str, name: str) -> bool:
    text = told.get(key, YES)
    if text not in (YES, NO):
        raise InvalidInputError(f"{PREFIX}{key} of {name} is {YES} or {NO}, not {text!r}.")
    return text == YES


def properties_for(catalog: Catalog, name: str) -> dict[str, str]:
    """Return the properties that count for a table: its own, and before them those of the namespaces above it."""
    found: dict[str, str] = {}
    names = parse_name(name)
    for depth in range(1, len(names)):
        found |= catalog.namespace_properties(names[:depth])
    table = catalog[name]
    own = table.definition.properties if isinstance(table, CatalogStream) else table.properties
    return {**found, **own}


# Indices -------------------------------------------------------------------------------------------------------------


def index(
    spark: object,
    catalog: str | Catalog,
    table: str,
    column: str | None = None,
    type: str | None = None,
    name: str | None = None,
    tell: Progress = NO_PROGRESS,
    **options: object,
) -> Report:
    """Index a column of a stream table's serving copy, or bring its indices up to date; `coverage` of each is told.

    A column that has one, of this type if that is told, keeps it: rows that it lacks are added. With a session
    executors build it, in pieces by fragments.
    """
    began = time.perf_counter()
    runner = runner_for(spark, tell)
    so_far = runner.done
    check_options(options, BUILD_OPTIONS, "An index")
    stream = stream_of(open_lake(spark, catalog), table)
    before = stream.published
    known = indexed(stream) if before is not None else ()
    if column is not None and not is_indexed(column, index_type(type) if type is not None else None, known):
        if column not in stream.definition.shown:
            raise InvalidInputError(f"{table} has no column {column!r}: {', '.join(stream.definition.shown)}.")
        kind = type or index_type_of(stream.definition.shown[column].type)
        stream.create_index(column, kind, name, runner, **options)
    else:
        stream.update_indices(runner)
    after = stream.published
    report = Report("index", stream.name, coverage=stream.coverage())
    if after is not None:
        rows = after.rows if before is None or before.version != after.version else 0
        report = dataclasses.replace(report, rows=rows, position=after.position, version=after.version)
    return dataclasses.replace(report, seconds=time.perf_counter() - began, where=runner.done - so_far)


# Housekeeping --------------------------------------------------------------------------------------------------------


def maintain(
    spark: object, catalog: str | Catalog, *tables: str, keep: timedelta | None = None, tell: Progress = NO_PROGRESS
) -> Report:
    """Keep tables fast and small, as the policy of each says: worn fragments are written anew, indices brought up to
    date, old versions cleaned up, and what is past retention is collected.

    `files` counts what the collection removed; `keep` is its retention (seven days).
    """
    began = time.perf_counter()
    runner = runner_for(spark, tell)
    so_far, lake = runner.done, open_lake(spark, catalog)
    check_here(lake)
    metastore = metastore_of(lake.namespace).metastore
    names = [name for name in tables or tuple(lake) if not name.endswith(HISTORY)]  # its table's publishes keep it
    tell.stage("maintain", len(names))
    parts = []
    for name in names:
        parts.append(_maintained(lake, name, policy_of(properties_for(lake, name), name), runner))
        tell.step()
    removed = metastore.collect(keep)
    report, files = summed("maintain", parts, began), removed.data + removed.published
    return dataclasses.replace(report, table="", files=files, parts=tuple(parts), where=runner.done - so_far)


def _maintained(lake: Catalog, name: str, policy: Policy, runner: Runner) -> Report:
    table = lake[name]
    if not isinstance(table, CatalogStream):
        if policy.compact:
            table.optimize(**({} if policy.keep_days is None else {"keep_days": policy.keep_days}))
        return Report("maintain", name)
    rewritten = policy.compact and table.compact(runner)
    covered = table.coverage() if policy.missing is not None else {}
    if any(part < 1 - (policy.missing or 0) for part in covered.values()):
        table.update_indices(runner)
    if policy.collect:
        table.collect()
    published = table.published
    version = published.version if published is not None else 0
    return Report(
        "maintain", name, version=version, files=int(rewritten), position=table.position, coverage=table.coverage()
    )
