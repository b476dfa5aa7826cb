"""Opening what a run works with: the catalog of a pipeline, and the session of its engine."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.config import load_profile
from headwater.imports import when_used
from headwater.pipeline.grammar import Pipeline
from headwater.pipeline.jobs import check_here
from headwater.pipeline.views import Say

engine_session = when_used("headwater.spark.engine_session")


def open_catalog(pipeline: Pipeline) -> tuple[Catalog, bool]:
    """The catalog of a pipeline, and whether it is there: a profile, or a metastore at a path relative to the file."""
    name = pipeline.catalog
    if "://" not in name and load_profile(name) is None:
        name = str(pipeline.folder / Path(name).expanduser())
    catalog = Catalog(name)
    check_here(catalog)
    metastore_of(catalog.namespace)
    return catalog, catalog.is_there


@contextmanager
def opened_engine(
    pipeline: Pipeline, catalog: Catalog, spark: object, say: Say, needed: Collection[object] = (True,)
) -> Iterator[object]:
    """Yield the session that a run works in; None: it works in this process, or nothing is `needed`."""
    engine = pipeline.engine.chosen(None, None, os.environ)
    if not needed or (spark is None and not engine.is_spark):
        yield None
        return
    with engine_session.engine_session(engine, spark, metastore_of(catalog.namespace).location(), say) as session:
        yield session
