"""Child tables and their parents: children follow, and both are published in one commit at one state."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import ConcurrentModificationError
from headwater.pipeline.children import ATTEMPTS, children_of, make_children
from headwater.pipeline.jobs import Report, publish, runner_for, stream_of
from headwater.pipeline.progress import NOBODY, Teller
from headwater.streams.serving.child_publishes import ChildBehindError
from headwater.streams.table_functions import function_of


def expand(spark: object, catalog: Catalog, table: str, tell: Teller = NOBODY) -> Report:
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
    tell: Teller = NOBODY,
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
