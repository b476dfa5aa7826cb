"""A pipeline file as values: what to take in, which tables and views there are, what to publish. Pure.

Everything that the file may say stands here; a name that is not known is refused, with the one that was meant.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.pipeline.file_values import (
    CHILD,
    ENV,
    NOT_OF_CHILDREN,
    as_mapping,
    as_tables,
    as_text,
    as_texts,
    check_distinct,
    check_names,
    check_plain,
    child_columns,
    child_function,
    filled_in,
    merged,
    naming_section,
    overlaid,
    parents_first,
    section_of,
)
from headwater.pipeline.hooks import Hooks, check_hooks
from headwater.pipeline.live.live_source import TABLE as ANY_TABLE
from headwater.pipeline.live.live_source import LiveSpec, feeds
from headwater.pipeline.live.source_specs import KINDS
from headwater.schema_text import parse_schema, parse_type
from headwater.sql.spark_parser import names_in, parse_condition, parse_query
from headwater.streams.definition import DERIVED, define
from headwater.streams.log.checks import EXPECT, Check
from headwater.streams.serving.derived_columns import with_folder
from headwater.streams.sources.formats import FORMATS, check_format
from headwater.streams.table_functions import TABLE_FUNCTION, TableFunction, table_function_of
from headwater.tables.indices import index_type
from headwater.wording import did_you_mean
from headwater.work.tasks import PipelineEngine, parse_engine

SECTIONS = ("pipeline", "source", "table", "view", "publish", "test")
HOOKS = ("on_failure", "on_quarantine", "hook_secret", "hook_internal")
PIPELINE = ("name", "catalog", "engine", "master", "spark", *HOOKS)
SOURCE = ("name", "path", "format", "into")
OF_ROWS = ("keys", "sequence_by", "lateness", "contract", "stored_as_scd_type", *EXPECT)
TABLE = ("schema", *OF_ROWS, "columns", "index", *CHILD)
COLUMN = ("function", "inputs", "type", "version")
INDEX = ("column", "type")
VIEW = ("sql", "keys")
PUBLISH = ("tables",)
TEST = ("name", "view", "given", "expect")
DEFAULTS = OF_ROWS
"""Names that [table] itself may give, for every table of the file."""
SQL = {"view": ("sql",), "table": tuple(EXPECT)}
"""Names of sections whose texts are SQL: nothing is put into them."""


@dataclass(frozen=True)
class Source:
    """Files of change data and the table they go into, or a live source, which has no path.

    `into` of a live source may have `{table}` in it, and then it stands for many tables.
    """

    name: str
    path: str
    into: str
    format: str = "rows"
    options: Mapping[str, Any] = field(default_factory=dict)
    live: LiveSpec | None = None

    def feeds(self, table: str) -> bool:
        """Return True if its rows go into a table."""
        return self.into == table if self.live is None else feeds(self.into, table)


@dataclass(frozen=True)
class WantedIndex:
    """An index that a published table should have."""

    column: str
    type: str | None = None


@dataclass(frozen=True)
class TableSpec:
    """A stream table as the file wants it. `schema` is None: it is taken from the first files."""

    name: str
    schema: pa.Schema | None = None
    keys: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    indices: tuple[WantedIndex, ...] = ()

    @property
    def made_by(self) -> TableFunction | None:
        """The function that makes its rows of those of another table; None: its rows come from sources."""
        return table_function_of(self.name, self.schema or pa.schema([]), self.properties)


@dataclass(frozen=True)
class ViewSpec:
    """A table made by SQL over tables of the catalog. Its keys tell its rows apart, so only changes are written."""

    name: str
    sql: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class ViewTest:
    """A test of a view: rows of tables, by name, and the rows that the view has of them."""

    name: str
    view: str
    given: Mapping[str, Sequence[Mapping[str, Any]]]
    expect: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file. Paths in it are relative to `folder`, where the file is."""

    name: str
    catalog: str
    folder: Path
    sources: tuple[Source, ...] = ()
    tables: tuple[TableSpec, ...] = ()
    views: tuple[ViewSpec, ...] = ()
    publish: tuple[str, ...] = ()
    file: str = "pipeline.toml"
    digest: str = ""
    """Of all that the file says."""
    engine: PipelineEngine = field(default_factory=PipelineEngine)
    hooks: Hooks = field(default_factory=Hooks)
    tests: tuple[ViewTest, ...] = ()
    publishes_all: bool = True
    """True if [publish] names no tables: those that live sources make are published too."""
    patterns: Mapping[str, TableSpec] = field(default_factory=dict)
    """For each `into` with `{table}` in it: what the file says of all tables that it stands for."""

    @property
    def live(self) -> tuple[Source, ...]:
        """The live sources."""
        return tuple(source for source in self.sources if source.live is not None)

    def is_live(self, table: str) -> bool:
        """Return True if a live source makes and fills a table: `{table}` is none that the file fills otherwise."""
        filled = {source.into for source in self.sources if source.live is None}
        filled |= {each.name for each in self.tables if each.made_by is not None}
        return table not in filled and any(source.feeds(table) for source in self.live)

    def table(self, name: str) -> TableSpec:
        return next(table for table in self.tables if table.name == name)

    def spec_of(self, name: str) -> TableSpec:
        """Return the settings of the file for a table of a live source: by its name, or for all of the source."""
        named = (table for table in self.tables if table.name == name)
        alike = (replace(spec, name=name) for into, spec in self.patterns.items() if feeds(into, name))
        return next(named, None) or next(alike, TableSpec(name))


def read_pipeline(path: str | Path, env: str | None = None) -> Pipeline:
    """Return the pipeline of a file, with its overlay `env`; InvalidInput (13) says what is wrong in it."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInputError(f"There is no pipeline file {file}.") from None
    except OSError as error:
        raise InvalidInputError(f"The pipeline file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"The pipeline file {file} cannot be read: {error}.") from None
    found = parse_pipeline(text, file.resolve().parent, file.name, env, os.environ)
    tables = (replace(table, properties=with_folder(table.properties, found.folder)) for table in found.tables)
    return replace(found, tables=tuple(tables))


def parse_pipeline(
    text: str,
    folder: Path,
    shown: str = "pipeline.toml",
    env: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Pipeline:
    """Return the pipeline of a text. `environment`: the values of `${NAME}`."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(f"{shown} is not TOML: {error}.") from None
    with naming_section(shown):
        values = filled_in(overlaid(values, env, SECTIONS[:-1]), environment or {}, SQL)
        return replace(_pipeline(values, folder, shown), digest=_digest(values))


def _digest(values: Mapping[str, object]) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _pipeline(values: Mapping[str, object], folder: Path, file: str) -> Pipeline:
    check_names(values, (*SECTIONS, ENV), "a pipeline file")
    head = section_of(values, "pipeline")
    check_names(head, PIPELINE, "[pipeline]")
    listed = as_tables(values.get("source", []), "[[source]]")
    sources = tuple(_source(place, each) for place, each in enumerate(listed, 1))
    written = _tables(section_of(values, "table"), [source.into for source in sources])
    patterns = {each.into: written.pop(each.into) for each in sources if each.live and ANY_TABLE in each.into}
    views = tuple(_view(name, each) for name, each in section_of(values, "view").items())
    check_distinct([each.name for each in sources], "source")
    both = [name for name in written if any(name == view.name for view in views)]
    if both:
        raise InvalidInputError(f"{both[0]!r} is both a table and a view.")
    publish = section_of(values, "publish")
    check_names(publish, PUBLISH, "[publish]")
    tables = as_texts(publish.get("tables", list(written)), "[publish] tables")
    for name in tables:
        if name not in written and not any(each.live is not None and each.feeds(name) for each in sources):
            raise InvalidInputError(f"[publish] names {name!r}, which is not a table of this file.")
    in_order(views)
    catalog = as_text(head.get("catalog"), "[pipeline] catalog")
    name = as_text(head.get("name"), "[pipeline] name")
    spark = as_mapping(head.get("spark", {}), "[pipeline.spark]")
    engine = parse_engine(head.get("engine"), head.get("master"), spark, "[pipeline]")
    found, hooks = tuple(written.values()), _hooks(head)
    tests = tuple(_test(n, each, views) for n, each in enumerate(as_tables(values.get("test", []), "[[test]]"), 1))
    told: dict[str, Any] = {"engine": engine, "hooks": hooks, "tests": tests, "patterns": patterns}
    told["publishes_all"] = "tables" not in publish
    return Pipeline(name, catalog, folder, sources, found, views, tables, file, **told)


def _hooks(head: Mapping[str, object]) -> Hooks:
    texts = [as_text(head[name], f"[pipeline] {name}") if name in head else "" for name in HOOKS[:3]]
    internal = head.get("hook_internal", False)
    if not isinstance(internal, bool):
        raise InvalidInputError("[pipeline] hook_internal is true or false.")
    hooks = Hooks(texts[0], texts[1], texts[2], internal)
    with naming_section("[pipeline]"):
        check_hooks(hooks)
    return hooks


def _tables(section: Mapping[str, object], fed: Sequence[str]) -> dict[str, TableSpec]:
    """Return the tables of a file, also those that only a source names: what [table] says itself is said of each."""
    defaults = {name: value for name, value in section.items() if name in TABLE}
    check_names(defaults, DEFAULTS, "[table]")
    own = {name: each for name, each in section.items() if name not in TABLE}
    own |= {name: {} for name in fed if name not in own}
    each = {name: as_mapping(values, f'[table."{name}"]') for name, values in own.items()}
    made: dict[str, TableSpec] = {}
    for name in parents_first(each):
        if "from" not in each[name]:
            check_plain(f'[table."{name}"]', each[name])
            made[name] = _table(name, merged(defaults, each[name]))
        elif name in fed:
            raise InvalidInputError(f'[table."{name}"] has from = and a source: its rows come from one of them.')
        else:
            made[name] = _child_table(name, merged(_for_child(defaults), each[name]), made)
    return made


def _for_child(defaults: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in defaults.items() if name not in ("keys", *NOT_OF_CHILDREN)}


def _child_table(name: str, values: Mapping[str, Any], tables: Mapping[str, TableSpec]) -> TableSpec:
    where, parent_keys = f'[table."{name}"]', tables[values["from"]].keys
    check_names(values, TABLE, where)
    schema, keys = child_columns(where, values, parent_keys)
    made = _table(name, {**values, "keys": keys}, schema)
    function = child_function(name, values, schema, parent_keys, made.checks)
    return replace(made, properties={**made.properties, TABLE_FUNCTION: function.to_text()})


def _test(place: int, values: Any, views: Sequence[ViewSpec]) -> ViewTest:
    where = f"[[test]] number {place}"
    check_names(values, TEST, where)
    name, view = (as_text(values.get(each), f"{where}: {each}") for each in ("name", "view"))
    known = [each.name for each in views]
    if view not in known:
        raise InvalidInputError(f"{where}: {view!r} is not a view of this file.{did_you_mean(view, known)}")
    given = as_mapping(values.get("given", {}), f"{where}: given")
    rows = {table: as_tables(each, f"{where}: given.{table}") for table, each in given.items()}
    return ViewTest(name, view, rows, as_tables(values.get("expect"), f"{where}: expect"))


def _source(place: int, values: Any) -> Source:
    where = f"[[source]] number {place}"
    kinds = [kind for kind in KINDS if kind in values]
    if kinds:
        check_names(values, ("name", "into", *kinds[:1]), where)
        name, into = (as_text(values.get(each), f"{where}: {each}") for each in ("name", "into"))
        return Source(name, "", into, live=KINDS[kinds[0]](where, values[kinds[0]], into))
    format = as_text(values.get("format", "rows"), f"{where}: format")
    with naming_section(where):
        check_format(format, {})
    check_names(values, (*SOURCE, *FORMATS[format], *KINDS), where)
    options = {name: value for name, value in values.items() if name in FORMATS[format]}
    with naming_section(where):
        check_format(format, options)
    path, into = (as_text(values.get(name), f"{where}: {name}") for name in ("path", "into"))
    return Source(as_text(values.get("name"), f"{where}: name"), path, into, format, options)


def _table(name: str, values: Any, schema: pa.Schema | None = None) -> TableSpec:
    where = f'[table."{name}"]'
    check_names(as_mapping(values, where), TABLE, where)
    properties = {key: as_text(values[key], f"{where} {key}") for key in ("lateness", "contract") if key in values}
    kind = values.get("stored_as_scd_type", 1)
    if kind not in (1, 2) or isinstance(kind, bool):
        raise InvalidInputError(f"{where}: stored_as_scd_type is 1 or 2, not {kind!r}.")
    if kind == 2:
        properties["history"] = "scd2"
    for column, each in as_mapping(values.get("columns", {}), f"{where} columns").items():
        properties[f"{DERIVED}{column}"] = _derived(f"{where} columns.{column}", each)
    keys, sequence = (as_texts(values.get(each, []), f"{where} {each}") for each in ("keys", "sequence_by"))
    indices = tuple(_index(where, each) for each in as_tables(values.get("index", []), f"{where} index"))
    checks = _checks(where, values)
    if "schema" in values:
        with naming_section(where):
            schema = parse_schema(as_text(values["schema"], "schema")) if schema is None else schema
            define(schema, keys, sequence, (), properties)
    return TableSpec(name, schema, keys, sequence, properties, checks, indices)


def _checks(where: str, values: Mapping[str, object]) -> tuple[Check, ...]:
    found = []
    for kind, action in EXPECT.items():
        for name, sql in as_mapping(values.get(kind, {}), f"{where} {kind}").items():
            with naming_section(f"{where} {kind}.{name}"):
                parse_condition(as_text(sql, "SQL"))
            found.append(Check(name, sql, action))
    check_distinct([check.name for check in found], f"expectation of {where}")
    return tuple(found)


def _derived(where: str, values: Any) -> str:
    check_names(as_mapping(values, where), COLUMN, where)
    for name in ("function", "inputs", "type"):
        if name not in values:
            raise InvalidInputError(f"{where} needs {name!r}.")
    known = {
        "function": as_text(values["function"], f"{where} function"),
        "inputs": list(as_texts(values["inputs"], f"{where} inputs")),
        "type": as_text(values["type"], f"{where} type"),
        "version": str(values.get("version", "1")),
    }
    with naming_section(where):
        parse_type(as_text(values["type"], "type"))
    return json.dumps(known)


def _index(where: str, values: Any) -> WantedIndex:
    check_names(as_mapping(values, f"{where} index"), INDEX, f"{where} index")
    kind = as_text(values["type"], f"{where} index type") if "type" in values else None
    if kind is not None:
        with naming_section(f"{where} index"):
            kind = index_type(kind)
    return WantedIndex(as_text(values.get("column"), f"{where} index column"), kind)


def _view(name: str, values: Any) -> ViewSpec:
    where = f'[view."{name}"]'
    check_names(as_mapping(values, where), VIEW, where)
    keys = as_texts(values.get("keys", []), f"{where} keys")
    if not keys:
        raise InvalidInputError(
            f"{where} needs keys: the columns that tell its rows apart, such as those of its GROUP BY. Only rows that "
            "changed are written, and that is how they are known."
        )
    sql = as_text(values.get("sql"), f"{where} sql")
    with naming_section(where):
        parse_query(sql)
    return ViewSpec(name, sql, keys)


def in_order(views: Sequence[ViewSpec]) -> list[ViewSpec]:
    """Views after those they read; a circle is refused."""
    names = {view.name for view in views}
    waiting = {view.name: names_in(view.sql, names) - {view.name} for view in views}
    done: list[ViewSpec] = []
    while waiting:
        free = [view for view in views if view.name in waiting and not waiting[view.name] & set(waiting)]
        if not free:
            shown = ", ".join(f'[view."{name}"]' for name in sorted(waiting))
            raise InvalidInputError(f"{shown} read each other in a circle.")
        done += free
        for view in free:
            del waiting[view.name]
    return done
