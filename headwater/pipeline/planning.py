"""Plan of a pipeline run: its steps in order, each with a reason. Pure: facts in, steps out.

A plan names the very files, tables and inputs it is about, so its id is a digest of all it will do: the same id is the
same plan, and a plan whose facts have changed meanwhile has another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from headwater.errors import InvalidInputError
from headwater.pipeline.grammar import Pipeline, TableSpec, ViewSpec, WantedIndex, in_order
from headwater.sql.spark_parser import SPARK, names_in
from headwater.streams.definition import DERIVED
from headwater.streams.table_functions import MadeOf, TableFunction, why_anew
from headwater.wording import many
from headwater.work import DRIVER, EMBEDDED, EXECUTORS

CREATE, ALTER, REFRESH, INGEST, TAKE = "create", "alter", "refresh", "ingest", "take"
EXPAND, PUBLISH, BACKFILL, INDEX, VIEW = "expand", "publish", "backfill", "index", "view"
WAITS = "it has no schema, and no file of it has come that would tell its columns"
OTHER_DIALECT = "its SQL is read as Spark SQL now"
BYTES_OF_A_ROW = 200
"""The size of a row of a source file, as far as a plan can know it."""
FIXED = frozenset(("keys", "sequence_by", "column types"))


@dataclass(frozen=True)
class FileFact:
    """A file of a source. `taken`: this content is in the table already; `undone`: it was, and was undone."""

    path: str
    digest: str
    bytes: int
    taken: bool = False
    undone: bool = False

    @property
    def left_out(self) -> bool:
        """True if it is as it was undone: it is not taken again by itself."""
        return self.undone and not self.taken


class KnownIndex(NamedTuple):
    """An index that a column of a table has."""

    column: str
    type: str
    name: str = ""


@dataclass(frozen=True)
class TableFact:
    """A stream table as it is now. `inputs` is what a view was last made of; `changed` what the file says otherwise."""

    position: int = 0
    schema_id: int = 0
    published: int | None = None
    """The position of the last publish; None: there was none."""
    published_schema: int = 0
    rows: int = 0
    tail_rows: int = 0
    stale: int = 0
    indexed: tuple[KnownIndex, ...] = ()
    changed: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    is_stream: bool = True
    id: str = ""
    """What tells it from another table that was made under its name."""
    keys: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    """Derived columns that the file has no more."""
    computed: tuple[tuple[object, ...], ...] = ()
    """What its derived columns were computed by and how far, which may change at one position."""
    made_of: MadeOf | None = None
    """Of a child table: what its rows were made of."""

    @property
    def moment(self) -> list[Any]:
        """The moment of the table that a view depends on: its id, position, columns and values."""
        return [self.id, self.position, self.schema_id, *map(list, self.computed)]


@dataclass(frozen=True)
class Facts:
    """Facts for a plan: files by source, tables by name (also those that only views read), and the identities of the
    functions of derived columns, by table and column.
    """

    files: Mapping[str, Sequence[FileFact]]
    tables: Mapping[str, TableFact]
    functions: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, str] = field(default_factory=dict)
    """Why views that are there cannot be computed for some keys only, by their SQL; nothing: they can."""
    live: Mapping[str, str] = field(default_factory=dict)
    """Live sources to take from first, by name, each with where it goes on; they are planned by what they are, since
    nobody knows their rows before they are taken."""


@dataclass(frozen=True)
class Step:
    """One thing to do with one table, why, and how much of it."""

    do: str
    table: str
    why: str
    source: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    rows: int | None = None
    bytes: int | None = None
    column: str | None = None
    type: str | None = None


@dataclass(frozen=True)
class Leftover:
    """An index that the file does not name. A run leaves it: somebody else may have made it, or need it."""

    table: str
    index: str
    column: str
    type: str


@dataclass(frozen=True)
class Plan:
    """The steps of a run. `skipped` counts files that are known already; `undone` are left out until they change.

    `waiting` are tables that cannot be made yet: nothing says what their columns are before a file comes.
    """

    pipeline: str
    steps: tuple[Step, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    found: str = ""
    """A digest of the state that the plan is for, of the pipeline file and of its functions."""
    undone: Mapping[str, Sequence[str]] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    stays: tuple[Leftover, ...] = ()

    @property
    def id(self) -> str:
        text = json.dumps([self.pipeline, self.found, [asdict(step) for step in self.steps]], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.table for step in self.steps))


def make_plan(
    pipeline: Pipeline, facts: Facts, select: Sequence[str] = (), full_refresh: Sequence[str] = (), again: bool = False
) -> Plan:
    """Return the plan of a run: of all tables and views, or of those selected; those refreshed are made anew.

    With `again` files that were undone are taken again.
    """
    names = [*(table.name for table in pipeline.tables), *(view.name for view in pipeline.views)]
    for name in (*select, *full_refresh):
        if name not in names:
            raise InvalidInputError(
                f"{name!r} is not a table or view of the pipeline {pipeline.name!r}: {', '.join(names)}."
            )
    wanted = families(pipeline, set(select or names) | set(full_refresh))
    steps = [
        Step(TAKE, each.into, facts.live[each.name], each.name) for each in pipeline.live if each.name in facts.live
    ]
    for table in pipeline.tables:
        if table.name in wanted:
            steps += _table_steps(pipeline, facts, table.name, table.name in full_refresh, again)
            if table.made_by is not None:
                steps += _expand_steps(facts, table.name, table.made_by, steps)
    steps += _publish_steps(pipeline, facts, wanted, steps)
    for table in pipeline.tables:
        if table.name in wanted:
            steps += _index_steps(pipeline, facts, table.name, steps)
    for view in in_order(pipeline.views):
        if view.name in wanted:
            steps += _view_steps(facts, view, view.name in full_refresh, steps)
    kept = [source for source in pipeline.sources if source.into in wanted and source.into not in full_refresh]
    skipped = {source.name: sum(file.taken for file in facts.files.get(source.name, ())) for source in kept}
    undone = {source.name: [file.path for file in facts.files.get(source.name, ()) if file.left_out] for source in kept}
    undone = {name: paths for name, paths in undone.items() if paths and not again}
    waiting = tuple(table.name for table in pipeline.tables if table.name in wanted and _waits(pipeline, facts, table))
    stays = tuple(each for table in pipeline.tables if table.name in wanted for each in _leftovers(table, facts, steps))
    return Plan(pipeline.name, tuple(steps), skipped, _digest(pipeline, facts), undone, waiting, stays)


def _waits(pipeline: Pipeline, facts: Facts, table: TableSpec) -> bool:
    """Return True if no file has come yet that would say what its columns are: an empty one does not."""
    sources = [source for source in pipeline.sources if source.into == table.name]
    if pipeline.is_live(table.name):
        return False
    known = facts.tables.get(table.name) is not None or table.schema is not None
    files = (file for source in sources for file in facts.files.get(source.name, ()))
    return not known and not any(file.bytes for file in files)


def _table_steps(pipeline: Pipeline, facts: Facts, name: str, refresh: bool, again: bool) -> list[Step]:
    fact = facts.tables.get(name)
    steps: list[Step] = []
    sources = [source for source in pipeline.sources if source.into == name]
    if _waits(pipeline, facts, pipeline.table(name)) or (fact is None and pipeline.is_live(name)):
        return []  # a live source makes its tables with their first rows
    if fact is None:
        steps.append(Step(CREATE, name, "it is not there"))
    elif refresh:
        steps.append(Step(REFRESH, name, "it is to be made anew: dropped, created, and all its files taken again"))
    elif FIXED & set(fact.changed):
        other = ", ".join(sorted(FIXED & set(fact.changed)))
        raise InvalidInputError(
            f"The table {name} has other {other} than the file says, which cannot be changed in place. "
            f"Run with --full-refresh {name} to rebuild it from its files."
        )
    elif fact.changed:
        gone = "".join(f"; the derived column {each} is dropped" for each in fact.dropped)
        steps.append(Step(ALTER, name, f"the file has another {', '.join(fact.changed)}{gone}"))
    for source in sources:
        found = facts.files.get(source.name, ())
        new = [file for file in found if refresh or fact is None or not (file.taken or (file.left_out and not again))]
        if new:
            files = tuple((file.path, file.digest) for file in new)
            size = sum(file.bytes for file in new)
            steps.append(Step(INGEST, name, many(len(new), "new file"), source.name, files, bytes=size))
    return steps


def families(pipeline: Pipeline, names: set[str]) -> set[str]:
    """Return these tables with their parents and children: they are published together."""
    pairs = [(table.name, table.made_by.parent) for table in pipeline.tables if table.made_by is not None]
    while more := {name for pair in pairs if set(pair) & names for name in pair} - names:
        names = names | more
    return names


def _expand_steps(facts: Facts, name: str, function: TableFunction, before: Sequence[Step]) -> list[Step]:
    """Return a step that makes the rows of a child table, if its parent, its function or its own rows changed."""
    parent, fact = facts.tables.get(function.parent), facts.tables.get(name)
    own = [step.do for step in before if step.table == name]
    changing = [step for step in before if step.table == function.parent]
    if parent is None and not changing:
        return []
    if fact is None or parent is None or {CREATE, REFRESH} & {*own, *(step.do for step in changing)}:
        return [Step(EXPAND, name, f"recomputed: {function.parent} or the table itself is new")]
    made = function.identity(facts.functions.get(name, ""))
    why = why_anew(fact.made_of, made, parent.id, fact.position)
    if why:
        return [Step(EXPAND, name, f"recomputed: {why}", rows=parent.rows + parent.tail_rows)]
    is_behind = fact.made_of is not None and fact.made_of.parent[1] != parent.position
    is_new = any(step.do in (INGEST, EXPAND) for step in changing)
    return [Step(EXPAND, name, f"incremental: {function.parent} changed")] if is_behind or is_new else []


def _publish_steps(pipeline: Pipeline, facts: Facts, wanted: set[str], before: Sequence[Step]) -> list[Step]:
    steps = []
    for name in pipeline.publish:
        fact = facts.tables.get(name)
        if name not in wanted or (fact is None and not any(step.table == name for step in before)):
            continue
        why = _why_publish(fact, [step.do for step in before if step.table == name])
        if why:
            steps.append(Step(PUBLISH, name, why, rows=fact.tail_rows if fact is not None else None))
        if fact is None or any(step.do == REFRESH and step.table == name for step in before):
            continue
        derives = any(key.startswith(DERIVED) for key in pipeline.table(name).properties)
        if fact.stale or (derives and "properties" in fact.changed):
            steps.append(Step(BACKFILL, name, "values of an older function", rows=fact.stale))
    return steps


def _why_publish(fact: TableFact | None, done: Sequence[str]) -> str:
    if INGEST in done:
        return "new changes are taken in"
    if EXPAND in done:
        return "its rows follow those of its parent"
    if fact is None or fact.published is None or REFRESH in done:
        return "it was never published"
    if fact.position > fact.published:
        return f"positions {fact.published + 1} to {fact.position} are not published"
    if ALTER in done or fact.schema_id != fact.published_schema:
        return "its columns changed"
    return ""


def _index_steps(pipeline: Pipeline, facts: Facts, name: str, before: Sequence[Step]) -> list[Step]:
    """Missing indices of tables that have rows by then."""
    fact = facts.tables.get(name)
    refreshed = any(step.do == REFRESH and step.table == name for step in before)
    known = fact.indexed if fact is not None and not refreshed else ()
    has_rows = fact is not None and fact.rows > 0
    if not has_rows and not any(step.do == PUBLISH and step.table == name for step in before):
        return []
    return [
        Step(INDEX, name, _why_index(each), column=each.column, type=each.type)
        for each in pipeline.table(name).indices
        if not is_indexed(each.column, each.type, known)
    ]


def _why_index(wanted: WantedIndex) -> str:
    return f"{wanted.column} has no index" + (f" of type {wanted.type}" if wanted.type is not None else "")


def is_indexed(column: str, type: str | None, known: Sequence[KnownIndex]) -> bool:
    """Return True if a column has an index, of a type if that is told."""
    return any(each.column == column and type in (None, each.type) for each in known)


def _leftovers(table: TableSpec, facts: Facts, steps: Sequence[Step]) -> list[Leftover]:
    """Indices that the file does not name, but for those that publishes make on the key and those that go."""
    fact = facts.tables.get(table.name)
    if fact is None or any(step.do == REFRESH and step.table == table.name for step in steps):
        return []
    own = [WantedIndex(name, "BTREE") for name in fact.keys]
    return [
        Leftover(table.name, each.name, each.column, each.type)
        for each in fact.indexed
        if each.column not in fact.dropped
        and not any(is_indexed(one.column, one.type, [each]) for one in (*table.indices, *own))
    ]


def _view_steps(facts: Facts, view: ViewSpec, refresh: bool, before: Sequence[Step]) -> list[Step]:
    fact = facts.tables.get(view.name)
    changing = {step.table for step in before}
    inputs = inputs_of(view, {*facts.tables, *changing})
    if not inputs:
        raise InvalidInputError(f'[view."{view.name}"] reads no table of the catalog: {view.sql[:200]}')
    if fact is not None and fact.is_stream and fact.keys != view.keys and not refresh:
        raise InvalidInputError(
            f"The view {view.name} has other keys than the file says ({', '.join(fact.keys)}), which cannot be changed "
            f"in place. Run with --full-refresh {view.name} to rebuild it."
        )
    why = _why_view(facts, view, fact, inputs, changing)
    if fact is not None and refresh:
        anew = Step(REFRESH, view.name, "it is to be made anew: dropped and created")
        return [anew, Step(VIEW, view.name, "recomputed: it is made anew")]
    if not why:
        return []
    if fact is None:
        return [Step(CREATE, view.name, "it is not there"), Step(VIEW, view.name, f"recomputed: {why}")]
    whole = _why_whole(facts, view, fact, inputs, before)
    used = [facts.tables[name] for name in inputs if name in facts.tables]
    if whole:
        told = why if whole == why else f"{why}, and {whole}"
        return [Step(VIEW, view.name, f"recomputed: {told}", rows=sum(each.rows + each.tail_rows for each in used))]
    return [Step(VIEW, view.name, f"incremental: {why}")]


def _why_whole(facts: Facts, view: ViewSpec, fact: TableFact, inputs: Sequence[str], before: Sequence[Step]) -> str:
    """Return why a view is computed as a whole, as far as the plan knows."""
    made_anew = [step.table for step in before if step.do in (REFRESH, ALTER, BACKFILL) and step.table in inputs]
    if made_anew:
        return f"{made_anew[0]} becomes another"
    known = {name: facts.tables[name] for name in inputs if name in facts.tables}
    moments = {name: each.moment for name, each in known.items()}
    streams = {name for name, each in known.items() if each.is_stream}
    return why_whole(view, fact.inputs, fact.position, moments, streams) or facts.whole.get(view.name, "")


def why_whole(
    view: ViewSpec,
    record: Mapping[str, Any],
    position: int,
    moments: Mapping[str, Sequence[Any]],
    streams: Collection[str],
) -> str:
    """Return why a view cannot follow the changes of its inputs, by its record, or an empty text.

    `position` is its own, `moments` are those of its inputs now, `streams` the ones that have a feed of changes.
    """
    if record.get("sql") != sql_digest(view):
        return "its SQL changed"
    if record.get("dialect") != SPARK:
        return OTHER_DIALECT
    if record["position"] != position:
        return "its rows were changed by others"
    tables: Mapping[str, Sequence[Any]] = record["tables"]
    if set(tables) != set(moments):
        return "it reads other tables"
    for name, now in moments.items():
        was = tables[name]
        if list(was) == list(now):
            continue
        if name not in streams:
            return f"{name} is a plain table, without a feed of changes"
        if [was[0], *was[2:]] != [now[0], *now[2:]]:
            return f"{name} became another"
    return ""


def _why_view(facts: Facts, view: ViewSpec, fact: TableFact | None, inputs: Sequence[str], changing: set[str]) -> str:
    if fact is None:
        return "it was never made"
    if fact.inputs.get("sql") != sql_digest(view):
        return "its SQL changed"
    if fact.inputs.get("dialect") != SPARK:
        return OTHER_DIALECT
    new = [name for name in inputs if name in changing]
    if not new:
        known = fact.inputs.get("tables", {})
        new = [name for name in inputs if known.get(name) != facts.tables[name].moment]
    return f"{', '.join(new)} changed" if new else ""


def place_of(step: Step, pipeline: Pipeline) -> str:
    """Return the place where a step will run, by the pipeline's engine and by the size that is known beforehand."""
    if not pipeline.engine.is_spark:
        return EMBEDDED
    if step.do in (CREATE, ALTER, REFRESH, TAKE):
        return DRIVER
    derives = step.do == PUBLISH and any(key.startswith(DERIVED) for key in pipeline.table(step.table).properties)
    if derives or step.do in (EXPAND, BACKFILL, VIEW):
        return EXECUTORS
    rows = step.rows if step.rows is not None else (step.bytes or 0) // BYTES_OF_A_ROW
    known = step.rows is not None or step.bytes is not None
    if rows > pipeline.engine.driver_rows or not pipeline.engine.driver_rows:
        return EXECUTORS
    return DRIVER if known else f"{DRIVER}, or {EXECUTORS} above {many(pipeline.engine.driver_rows, 'row')}"


def inputs_of(view: ViewSpec, tables: set[str]) -> list[str]:
    """Return the tables of the catalog that a view's SQL names."""
    return [name for name in sorted(names_in(view.sql, tables)) if name != view.name]


def sql_digest(view: ViewSpec) -> str:
    return hashlib.blake2b(json.dumps([view.sql, view.keys]).encode(), digest_size=8).hexdigest()


def _digest(pipeline: Pipeline, facts: Facts) -> str:
    """Of the state of the tables, and of what the file and its functions say; the files of sources are in the steps."""
    found = {name: [*fact.moment, fact.published] for name, fact in facts.tables.items()}
    told = [str(pipeline.folder), pipeline.digest, dict(facts.functions), found]
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=8).hexdigest()
