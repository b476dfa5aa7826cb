"""Jobs that bring tables in and out: Parquet files come in, a catalog goes out as a directory one."""

from __future__ import annotations

import os
import time

from headwater import moving
from headwater.catalog import Catalog
from headwater.pipeline.jobs import Report, open_lake
from headwater.pipeline.progress import NOBODY, Teller


def import_files(
    spark: object,
    catalog: str | Catalog,
    table: str,
    source: str | os.PathLike[str],
    mode: str = "create",
    hive: bool = True,
    tell: Teller = NOBODY,
) -> Report:
    """Make a plain table of the Parquet files in a folder, or of one, in one commit; `mode` as of `create_table`."""
    began = time.perf_counter()
    tell.stage(f"import {table}", 1)
    made = moving.import_parquet(open_lake(spark, catalog), table, source, mode, hive)
    rows, version = made.count(), made.versions()[-1].version
    tell.step(1, rows)
    return Report("import", table, rows, version=version, seconds=time.perf_counter() - began)


def export(
    spark: object,
    catalog: str | Catalog,
    to: str | os.PathLike[str],
    all_versions: bool = False,
    tell: Teller = NOBODY,
    **properties: object,
) -> Report:
    """Make a plain directory catalog at `to`: current rows, stream tables as last published. `files` counts tables."""
    began = time.perf_counter()
    tell.stage(f"export to {os.fspath(to)}", 1)
    done = moving.export(open_lake(spark, catalog), os.fspath(to), all_versions, properties)
    tell.step()
    return Report("export", files=done.tables, position=done.slot or 0, seconds=time.perf_counter() - began)
