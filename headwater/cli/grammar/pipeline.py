"""The verbs of the pipeline, as headwater/cli/pipeline.py runs them."""

from __future__ import annotations

from headwater.cli.grammar.words import ENGINE, TABLE, YES, Command, arg, number, pair, seconds

FORMATS = ("rows", "op", "debezium", "snapshot")
"""What files hold; a test compares it with the sources' own list."""
NAMED_TABLES = arg("tables", about="stream tables, such as raw.orders", nargs="*")
TABLES = arg("tables", about="stream tables, such as raw.orders (all)", nargs="*")
JSON = arg("--json", about="print JSON", action="store_true")
ENV = arg("--env", about="with the overlay [env.NAME] of the file", metavar="NAME")
_REPORT = "one object: what the job did, as the Python API reports it"

PIPELINE = (
    Command(
        "run", "pipeline", "run a pipeline file: ingest, publish, compute what is new", "pipeline:run",
        (
            arg("file", about="a pipeline file, such as pipeline.toml"),
            ENV, arg("--check", about="only check the file: no data, no catalog", action="store_true"),
            arg("--plan", about="only show the steps, the reasons, and the plan's id", action="store_true"),
            arg("--plan-id", about="do exactly the plan of this id, or nothing"),
            arg("--select", about="only this one (repeatable)", action="append", default=[], metavar="TABLE"),
            arg("--full-refresh", about="rebuild this one (repeatable)", action="append", default=[], metavar="TABLE"),
            arg("--again", about="take files that were undone, too", action="store_true"),
            arg("--watch", about="keep running until Ctrl-C", action="store_true"),
            arg("--every", about="with --watch: the interval (30s)", type=seconds, default=30.0),
            arg("--metrics", about="with --watch: Prometheus metrics at this [HOST:]PORT (off)", metavar="PORT"),
            *ENGINE, JSON,
        ),
        "one object: run, plan, reports; with --plan the plan", catalog=False,
    ),
    Command(
        "test", "pipeline", "run the tests of views in a pipeline file", "pipeline:try_file",
        (arg("file", about="a pipeline file, such as pipeline.toml"), ENV, *ENGINE, JSON),
        "one object a test: name, view, lacks, extra, error, passed", catalog=False,
    ),
    Command(
        "ingest", "pipeline", "ingest change data from files into a stream table", "pipeline:ingest",
        (
            TABLE, arg("source", about="files, by path, address (s3://...) or glob"),
            arg("--format", about="what the files hold (rows)", choices=FORMATS, default="rows"),
            arg("--name", about="the name of the source"),
            arg("--option", about="of the format, name=value (repeatable)", action="append", type=pair, default=[]),
            arg("--strict", about="refuse the whole batch if a row is bad", action="store_true"),
            arg("--again", about="take files that were undone, too", action="store_true"),
            arg("--watch", about="keep taking new files until Ctrl-C", action="store_true"),
            arg("--every", about="with --watch: the interval (2s)", type=seconds, default=2.0),
            arg("--publish", about="with --watch: publish what was taken", action="store_true"),
            *ENGINE,
        ),
        _REPORT,
    ),
    Command(
        "publish", "pipeline", "publish stream tables in one commit", "pipeline:publish",
        (NAMED_TABLES, *ENGINE), _REPORT,
    ),
    Command(
        "backfill", "pipeline", "recompute stale derived values of a stream table", "pipeline:backfill",
        (
            TABLE, arg("--rows", about="about this many rows, in one version (all)", type=number),
            arg("--batch", about="on Spark: rows that are computed together", type=number), *ENGINE,
        ),
        _REPORT,
    ),
    Command(
        "reindex", "pipeline", "index a column of a stream table, or update its indices",
        "pipeline:index",
        (
            TABLE, arg("column", about="the column (all that have an index)", nargs="?"),
            arg("--type", about="of the index, such as IVF_FLAT (by what the column holds)"), *ENGINE,
        ),
        _REPORT,
    ),
    Command(
        "maintain", "pipeline", "compact stream tables, and delete logs past retention", "pipeline:maintain",
        (TABLES, *ENGINE), _REPORT,
    ),
    Command(
        "runs", "pipeline", "list the runs of pipelines, or show one with its steps", "pipeline:show_runs",
        (
            arg("action", about="show, to see one run", nargs="?"),
            arg("id", about="the id of a run, or its beginning", nargs="?"),
            arg("--pipeline", about="only the runs of this pipeline", metavar="NAME"),
            arg("--limit", about="this many, the newest (20)", type=number, default=20),
        ),
        "one object a line: run, pipeline, state, began, seconds, rows, quarantined, late, who, where, error; "
        "of show one object",
        like=(),
    ),
    Command(
        "quarantine", "pipeline", "show rows that were refused; take or drop them", "pipeline:quarantine",
        (
            TABLE, arg("--retry", about="take those again that fit now", action="store_true"),
            arg("--drop", about="drop them", action="store_true"),
            arg("--reason", about="only the rows with this reason, such as bad_value"),
            arg("--source", about="only the rows of this source or file"),
            arg("--pipeline", about="with --retry: judge by the expectations of this file", metavar="FILE"), YES,
        ),
        "one object a row: row, reason, column, source, time, position; with --retry or --drop one object: the counts",
    ),
    Command(
        "lineage", "pipeline", "show the sources of a table, or the tables made from it", "pipeline:lineage",
        (
            TABLE, arg("--upstream", about="its sources (the default)", action="store_true"),
            arg("--downstream", about="the tables made from it", action="store_true"),
            arg("--open-lineage", about="write OpenLineage events to a file or URL", metavar="TO"),
            arg("--token", about="for the URL: a bearer token, as env:NAME or file:PATH"),
        ),
        "one object: the table and, nested, what it comes from",
    ),
)  # fmt: skip
