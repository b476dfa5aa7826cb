"""Whether a view can be computed in slices, by its SQL, of which DuckDB makes a tree.

A view is in slices when each of its rows comes from input rows that say its key: the key is an expression over columns
of one table, the *anchor*, and nothing looks across keys (a window, a LIMIT, a subquery). Then the rows of some keys
are what the SQL gives of those keys' rows of the anchor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from headwater.duck import SqlError, installed, opened
from headwater.names import format_name

Json = dict[str, Any]
NODES = {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"}
NODES |= {"OPERATOR", "STAR", "TYPE"}
"""Kinds of expressions that look at one row, or aggregate those of a group."""
TOLD = {"WINDOW": "a window function", "SUBQUERY": "a subquery", "LAMBDA": "a lambda", "PARAMETER": "a parameter"}
MODIFIERS = {"ORDER_MODIFIER", "DISTINCT_MODIFIER"}
JOINS = ("INNER", "LEFT")
DISTINCT = {"type": "DISTINCT_MODIFIER", "distinct_on_targets": []}


class NotInSlicesError(Exception):
    """Why a view is computed as a whole."""


@dataclass(frozen=True)
class Equal:
    """Columns of two tables that a join compares. `both`: rows of either side that match none are in no result; else
    only those of the second."""

    first: tuple[str, str]
    second: tuple[str, str]
    both: bool


@dataclass(frozen=True)
class Slicing:
    """How a view's rows come from its tables, which are told by their names in the catalog."""

    anchor: str
    keys: tuple[Json, ...]
    """The expressions of the view's keys."""
    plain: tuple[str | None, ...]
    """Of each the column of the anchor that it is, if it is just that."""
    columns: Mapping[str, tuple[str, ...]]
    """Of each table those that the SQL names, in its order."""
    matched: Mapping[str, tuple[str, ...]]
    """Of each table those that keys and joins name."""
    equals: tuple[Equal, ...]
    functions: tuple[str, ...]
    key_functions: tuple[str, ...]
    """Those that the SQL has anywhere, and in its keys."""
    source: Json
    """FROM, as a tree."""

    def keys_query(self, changed: str) -> Json:
        """The keys that rows of a table have to do with: of the anchor its own, of another those that it is joined to.

        Rows that WHERE leaves out count: what it says of a row that is not there is not asked.
        """
        source = _table_of(self.source, self.anchor) if changed == self.anchor else _inner(self.source, changed)
        return _select(self.keys, source, [DISTINCT])

    def keyed_query(self, extra: str) -> Json:
        """Each row of the anchor by its keys and one more column."""
        more = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [extra]}
        return _select((*self.keys, more), _table_of(self.source, self.anchor), [])


def slicing_of(sql: str, keys: Sequence[str], schemas: Mapping[str, Sequence[str]]) -> Slicing:
    """How to slice a view with these keys over tables of these columns.

    NotInSlicesError: it cannot be, or there is no DuckDB to read its SQL.
    """
    if installed() is None:
        raise NotInSlicesError("DuckDB, which reads its SQL, is not installed")
    found = _known(sql, tuple(keys), tuple((name, tuple(columns)) for name, columns in schemas.items()))
    if isinstance(found, str):
        raise NotInSlicesError(found)
    return found


@lru_cache(maxsize=64)
def _known(sql: str, keys: tuple[str, ...], schemas: tuple[tuple[str, tuple[str, ...]], ...]) -> Slicing | str:
    """The same, or the reason why not: to open DuckDB and ask it takes longer than a small slice."""
    try:
        return _found(sql, keys, dict(schemas))
    except NotInSlicesError as reason:
        return str(reason)


def _found(sql: str, keys: Sequence[str], schemas: Mapping[str, Sequence[str]]) -> Slicing:
    try:
        with opened() as duck:
            found = sliced(duck.tree(sql), keys, schemas)
            unstable = duck.unstable(found.functions)
            aggregates = duck.aggregates(found.key_functions)
    except SqlError as error:
        raise NotInSlicesError(f"DuckDB, which reads its SQL, says: {error}") from None
    if unstable:
        raise NotInSlicesError(f"{unstable[0]} may give something else each time")
    if aggregates:
        raise NotInSlicesError(f"its key is an aggregate, {aggregates[0]}")
    return found


def sliced(tree: Json | None, keys: Sequence[str], schemas: Mapping[str, Sequence[str]]) -> Slicing:
    """The same of a tree, but for its functions. Pure."""
    if tree is None or tree.get("type") != "SELECT_NODE":
        raise NotInSlicesError("its SQL is not one SELECT")
    _check(tree)
    tables = _Tables(tree["from_table"], schemas)
    for node in _expressions(tree):
        if node["class"] not in NODES:
            raise NotInSlicesError(f"its SQL has {TOLD.get(node['class'], node['class'].lower())}")
    found = [_key(tree, name, tables) for name in keys]
    anchors = {table for _, table in found}
    if len(anchors) != 1:
        raise NotInSlicesError(f"its keys are of several tables, {', '.join(sorted(anchors))}")
    (anchor,) = anchors
    if anchor in tables.optional:
        raise NotInSlicesError(f"its keys are of {anchor}, which a LEFT JOIN may lack")
    expressions = tuple({**expression, "alias": name} for (expression, _), name in zip(found, keys, strict=True))
    everywhere, in_keys = list(_expressions(tree)), list(_below(list(expressions)))
    return Slicing(
        anchor,
        expressions,
        tuple(tables.column(each)[1] if each["class"] == "COLUMN_REF" else None for each in expressions),
        tables.named(everywhere),
        tables.named([*in_keys, *_below(tables.conditions)]),
        tuple(tables.equals()),
        _functions(everywhere),
        _functions(in_keys),
        tree["from_table"],
    )


def _functions(nodes: Sequence[Json]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node["function_name"].lower() for node in nodes if node["class"] == "FUNCTION"))


def _check(tree: Json) -> None:
    for modifier in tree.get("modifiers", ()):
        if modifier["type"] not in MODIFIERS or modifier.get("distinct_on_targets"):
            raise NotInSlicesError(f"its SQL has {modifier['type'].partition('_')[0]}")
    if tree.get("cte_map", {}).get("map"):
        raise NotInSlicesError("its SQL has a WITH")
    if tree.get("qualify") or tree.get("sample"):
        raise NotInSlicesError("its SQL has QUALIFY or a sample")
    if len(tree.get("group_sets", ())) > 1:
        raise NotInSlicesError("its SQL has grouping sets")


def _key(tree: Json, name: str, tables: _Tables) -> tuple[Json, str]:
    """The expression that a key is, and the one table that its columns are of."""
    items = [item for item in tree["select_list"] if _named(item).lower() == name.lower()]
    stars = [item for item in tree["select_list"] if item["class"] == "STAR"]
    if stars and not items and len(tables.names) == 1 and all(_is_whole_star(star) for star in stars):
        items, stars = [{"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}], []
    if len(items) != 1 or stars:  # a star may have a column of the name too
        raise NotInSlicesError(f"its key {name!r} is not told by one expression")
    nodes = list(_below(items))
    used = {tables.column(node)[0] for node in nodes if node["class"] == "COLUMN_REF"}
    if len(used) != 1 or any(node["class"] == "STAR" for node in nodes):
        raise NotInSlicesError(f"its key {name!r} is not of one table")
    return items[0], used.pop()


def _named(item: Json) -> str:
    """What a column of the result is called, if its expression says it."""
    alias = str(item.get("alias") or "")
    return alias or (str(item["column_names"][-1]) if item["class"] == "COLUMN_REF" else "")


def _is_whole_star(item: Json) -> bool:
    lists = ("exclude_list", "replace_list", "qualified_exclude_list", "rename_list")
    return bool(item["class"] == "STAR" and not item.get("columns") and not any(item.get(each) for each in lists))


class _Join(NamedTuple):
    """A table that is joined to those before it."""

    before: list[str]
    right: str
    is_inner: bool
    condition: Json | None
    using: list[str]


class _Tables:
    """The tables of FROM, by the words that columns are told with."""

    def __init__(self, source: Json, schemas: Mapping[str, Sequence[str]]) -> None:
        self.names: dict[str, str] = {}
        self.optional: set[str] = set()
        self.conditions: list[Json] = []
        self._joins: list[_Join] = []
        self._known = {name.lower(): name for name in schemas}
        self._add(source)
        used = list(self.names.values())
        if len(set(used)) != len(used):
            raise NotInSlicesError("a table is in its SQL twice")
        self._columns = {name: {each.lower(): each for each in schemas[name]} for name in used}
        self._order = {name: list(schemas[name]) for name in used}

    def _add(self, source: Json) -> None:
        if source["type"] == "BASE_TABLE":
            self._base(source)
            return
        if source["type"] != "JOIN":
            raise NotInSlicesError("it reads something else than tables")
        kind, using = source["join_type"], list(source.get("using_columns", ()))
        if source["ref_type"] != "REGULAR" or kind not in JOINS or not (source.get("condition") or using):
            raise NotInSlicesError("it has a join that is not INNER or LEFT with a condition")
        self._add(source["left"])
        before = list(self.names.values())
        if source["right"]["type"] != "BASE_TABLE":
            raise NotInSlicesError("it has a join in a join")
        right = self._base(source["right"])
        if kind == "LEFT":
            self.optional.add(right)
        if source.get("condition"):
            self.conditions.append(source["condition"])
        self._joins.append(_Join(before, right, kind == "INNER", source.get("condition"), using))

    def _base(self, source: Json) -> str:
        if source.get("sample") or source.get("at_clause") or source.get("column_name_alias"):
            raise NotInSlicesError("it reads a table with a sample, another moment or other names")
        name = _name_of(source)
        known = self._known.get(name.lower())
        if known is None:
            raise NotInSlicesError(f"it reads {name}, which is no table of the catalog")
        word = (source.get("alias") or source["table_name"]).lower()
        if word in self.names:
            raise NotInSlicesError(f"two of its tables are told by {word}")
        self.names[word] = known
        return known

    def column(self, node: Json) -> tuple[str, str]:
        """The table and the column that are meant."""
        parts = [str(part) for part in node["column_names"]]
        if len(parts) == 2 and parts[0].lower() in self.names:
            table = self.names[parts[0].lower()]
            if parts[1].lower() in self._columns[table]:
                return table, self._columns[table][parts[1].lower()]
        owners = [table for table, columns in self._columns.items() if parts[0].lower() in columns]
        if len(parts) != 1 or len(owners) != 1:
            raise NotInSlicesError(f"{'.'.join(parts)!r} is not told as a column of one table")
        return owners[0], self._columns[owners[0]][parts[0].lower()]

    def named(self, nodes: Sequence[Json]) -> dict[str, tuple[str, ...]]:
        """Of each table the columns that some word may mean, or that USING joins; all where a star stands, or the table
        itself is a value."""
        told = [[str(part).lower() for part in node["column_names"]] for node in nodes if node["class"] == "COLUMN_REF"]
        words = {part for parts in told for part in parts}
        words |= {name.lower() for join in self._joins for name in join.using}
        whole = {self.names[parts[-1]] for parts in told if parts[-1] in self.names}
        if any(node["class"] == "STAR" for node in nodes):
            whole = set(self._order)
        return {
            table: tuple(each for each in order if table in whole or each.lower() in words)
            for table, order in self._order.items()
        }

    def equals(self) -> Iterator[Equal]:
        for join in self._joins:
            for name in (each.lower() for each in join.using):
                owners = [table for table in join.before if name in self._columns[table]]
                if len(owners) == 1 and name in self._columns[join.right]:
                    (owner,) = owners
                    sides = (owner, self._columns[owner][name]), (join.right, self._columns[join.right][name])
                    yield Equal(*sides, join.is_inner)
            for pair in _compared(join.condition):
                try:
                    first, second = (self.column(each) for each in pair)
                except NotInSlicesError:
                    continue  # a part of a column, say: it is compared, and nothing is known by it beforehand
                if first[0] == join.right:
                    first, second = second, first
                if second[0] == join.right and first[0] in join.before:
                    yield Equal(first, second, join.is_inner)


def _compared(condition: Json | None) -> Iterator[tuple[Json, Json]]:
    """The pairs of columns that must be equal for a condition to hold."""
    if condition is None:
        return
    if condition["type"] == "CONJUNCTION_AND":
        for child in condition["children"]:
            yield from _compared(child)
    if (
        condition["type"] == "COMPARE_EQUAL"
        and condition["left"]["class"] == condition["right"]["class"] == "COLUMN_REF"
    ):
        yield condition["left"], condition["right"]


def _name_of(source: Json) -> str:
    parts = [source.get("catalog_name", ""), source.get("schema_name", ""), source["table_name"]]
    return format_name([part for part in parts if part])


def _expressions(tree: Json) -> Iterator[Json]:
    """Every expression of a query."""
    return _below([value for value in tree.values() if isinstance(value, (dict, list))])


def _below(value: Any) -> Iterator[Json]:
    if isinstance(value, list):
        for each in value:
            yield from _below(each)
    elif isinstance(value, dict):
        if "class" in value:
            yield value
        yield from _below([each for each in value.values() if isinstance(each, (dict, list))])


def _select(items: Sequence[Json], source: Json, modifiers: Sequence[Json]) -> Json:
    """A query as a tree."""
    return {
        "type": "SELECT_NODE",
        "modifiers": list(modifiers),
        "cte_map": {"map": []},
        "select_list": list(items),
        "from_table": source,
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": None,
    }


def _table_of(source: Json, name: str) -> Json:
    """The table of this name in FROM."""
    if source["type"] == "JOIN":
        is_right = _name_of(source["right"]).lower() == name.lower()
        return dict(source["right"]) if is_right else _table_of(source["left"], name)
    return source


def _inner(source: Json, name: str) -> Json:
    """FROM with nothing but what is joined to this table: where it is the optional one, it is not."""
    if source["type"] != "JOIN":
        return source
    is_right = _name_of(source["right"]).lower() == name.lower()
    return {**source, "left": _inner(source["left"], name), "join_type": "INNER" if is_right else source["join_type"]}
