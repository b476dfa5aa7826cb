"""The data pipeline: land changes, merge, publish, compute, index.

pipeline.toml -- grammar --> Pipeline -- facts, planning --> Plan -- running --> jobs --> stream tables of a catalog
"""

from headwater.pipeline.checking import check_pipeline, try_views
from headwater.pipeline.children import undo_source as undo
from headwater.pipeline.first_file import first_file
from headwater.pipeline.grammar import Pipeline, parse_pipeline, read_pipeline
from headwater.pipeline.jobs import Report, backfill, export, import_files, ingest, publish
from headwater.pipeline.keeping import index, maintain
from headwater.pipeline.planning import Plan, Step
from headwater.pipeline.running import Run, plan_pipeline, run_pipeline
from headwater.pipeline.watching import watch, watch_pipeline

__all__ = [
    "Pipeline",
    "Plan",
    "Report",
    "Run",
    "Step",
    "backfill",
    "check_pipeline",
    "export",
    "first_file",
    "import_files",
    "index",
    "ingest",
    "maintain",
    "parse_pipeline",
    "plan_pipeline",
    "publish",
    "read_pipeline",
    "run_pipeline",
    "try_views",
    "undo",
    "watch",
    "watch_pipeline",
]
