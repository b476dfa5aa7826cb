"""Decides by its SQL whether a view can be computed in slices. Pure.

A view is in slices when each of its rows comes from input rows that say its key: the key is an expression over columns
of one table, the *anchor*, and nothing looks across keys (a window, a LIMIT, a subquery). Then the rows of some keys
are what the SQL gives of those keys' rows of the anchor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from headwater.errors import UnsupportedOperationError
from headwater.imports import exp
from headwater.names import format_name
from headwater.sql.functions import AGGREGATES, FUNCTIONS, UNSTABLE
from headwater.sql.spark_parser import SqlError, parse_query

CLAUSES = {"expressions", "from_", "joins", "where", "group", "having", "distinct", "order"}
SHOWN = {"with_": "a WITH", "limit": "LIMIT", "offset": "OFFSET", "qualify": "QUALIFY", "laterals": "LATERAL VIEW"}
_STABLE = """exp ln log log2 log10 pow power cbrt sin cos tan bround pmod bit_count hex unhex reverse initcap repeat
translate ascii chr soundex levenshtein regexp_replace regexp_extract regexp_like split base64 unbase64 crc32 hash
xxhash64 sha1 months_between next_day from_unixtime to_char to_number map map_keys map_values array_distinct array_union
array_except array_intersect flatten slice get_json_object from_json to_json try_cast try_divide try_add"""
_AGGREGATES = """stddev stddev_samp stddev_pop variance var_samp var_pop percentile median corr kurtosis skewness
approx_count_distinct"""
STABLE, STABLE_AGGREGATES = frozenset(_STABLE.split()), frozenset(_AGGREGATES.split())
"""Functions that Spark alone knows, and that give the same every time."""


class NotInSlicesError(Exception):
    """The reason for which a view is computed as a whole."""


@dataclass(frozen=True)
class Equal:
    """Columns of two tables that a join compares. `both`: rows of either side that match none are in no result; else
    only those of the second."""

    first: tuple[str, str]
    second: tuple[str, str]
    both: bool


@dataclass(frozen=True)
class Slicing:
    """Slices of a view: how its rows depend on its tables, by their names in the catalog."""

    anchor: str
    keys: tuple[exp.Expr, ...]
    """The expressions of the view's keys, as trees with their names."""
    plain: tuple[str | None, ...]
    """Of each the column of the anchor that it is, if it is just that."""
    columns: Mapping[str, tuple[str, ...]]
    """Of each table those that the SQL names, in its order."""
    matched: Mapping[str, tuple[str, ...]]
    """Of each table those that keys and joins name."""
    equals: tuple[Equal, ...]
    sources: Mapping[str, exp.Table | exp.Join]
    """The tables of FROM as trees, in their order: the first, then the joins."""

    def keys_query(self, changed: str) -> exp.Query:
        """Return the query of the keys that rows of a table have to do with.

        Of the anchor they are its own, of another table those that it is joined to. Rows that WHERE leaves out count.
        """
        if changed == self.anchor:
            return self._select(self.keys, distinct=exp.Distinct())
        joins = [node.copy() for node in self.sources.values() if isinstance(node, exp.Join)]
        for join in joins:
            if join.this == _table(self.sources[changed]):
                join.set("side", None)
                join.set("kind", "INNER")
        first = next(iter(self.sources.values()))
        return exp.Select(
            expressions=[key.copy() for key in self.keys],
            from_=exp.From(this=first.copy()),
            joins=joins,
            distinct=exp.Distinct(),
        )

    def keyed_query(self, extra: str, wanted: str) -> exp.Query:
        """Return the query of one more column of the anchor, for its rows that have one of the wanted keys.

        `wanted`: the table of those keys, with their names.
        """
        more = exp.Column(this=exp.to_identifier(extra, quoted=True))
        names = [f"`{key.alias}`" for key in self.keys]
        on = " AND ".join(f"k.{name} <=> w.{name}" for name in names)
        text = f"SELECT k.`{extra}` FROM (SELECT 1) AS k LEFT SEMI JOIN `{wanted}` AS w ON {on}"
        query = parse_query(text).copy()
        for inner in query.find_all(exp.Subquery):
            inner.set("this", self._select((*self.keys, more)))
            break
        return query

    def _select(self, items: Sequence[exp.Expr], distinct: exp.Distinct | None = None) -> exp.Select:
        source = exp.From(this=_table(self.sources[self.anchor]).copy())
        return exp.Select(expressions=[item.copy() for item in items], from_=source, distinct=distinct)


def _table(source: exp.Table | exp.Join) -> exp.Expr:
    """Return the table of a FROM or of a join."""
    found: exp.Expr = source.this if isinstance(source, exp.Join) else source
    return found


def slicing_of(sql: str, keys: Sequence[str], schemas: Mapping[str, Sequence[str]]) -> Slicing:
    """Return how to slice a view with these keys over tables of these columns. NotInSlicesError: it cannot be."""
    found = _known(sql, tuple(keys), tuple((name, tuple(columns)) for name, columns in schemas.items()))
    if isinstance(found, str):
        raise NotInSlicesError(found)
    return found


@lru_cache(maxsize=64)
def _known(sql: str, keys: tuple[str, ...], schemas: tuple[tuple[str, tuple[str, ...]], ...]) -> Slicing | str:
    """Return the same, or the reason why not."""
    try:
        return _sliced(parse_query(sql), keys, dict(schemas))
    except (NotInSlicesError, SqlError, UnsupportedOperationError) as reason:
        return str(reason)


def _sliced(tree: object, keys: Sequence[str], schemas: Mapping[str, Sequence[str]]) -> Slicing:
    if not isinstance(tree, exp.Select) or tree.args.get("from_") is None:
        raise NotInSlicesError("its SQL is not one SELECT")
    _check(tree)
    tables = _Tables(tree, schemas)
    found = [_key(tree, name, tables) for name in keys]
    anchors = {table for _, table in found}
    if len(anchors) != 1:
        raise NotInSlicesError(f"its keys are of several tables, {', '.join(sorted(anchors))}")
    (anchor,) = anchors
    if anchor in tables.optional:
        raise NotInSlicesError(f"its keys are of {anchor}, which a LEFT JOIN may lack")
    expressions = tuple(
        exp.Alias(this=expression.copy(), alias=exp.to_identifier(name, quoted=True))
        for (expression, _), name in zip(found, keys, strict=True)
    )
    in_keys = [column for each in expressions for column in each.find_all(exp.Column)]
    joined = [column for each in tables.conditions for column in each.find_all(exp.Column)]
    return Slicing(
        anchor,
        expressions,
        tuple(tables.plain(each.this) for each in expressions),
        tables.named(tree.find_all(exp.Column), has_star=_has_star(tree)),
        tables.named([*in_keys, *joined]),
        tuple(tables.equals()),
        tables.sources,
    )


def _check(tree: exp.Expr) -> None:
    """Raise NotInSlicesError for SQL that looks across keys, or gives something else each time."""
    for clause, value in tree.args.items():
        if value and clause not in CLAUSES:
            raise NotInSlicesError(f"its SQL has {SHOWN.get(clause, clause.strip('_').upper())}")
    group = tree.args.get("group")
    if group is not None and any(value for key, value in group.args.items() if key not in ("expressions", "all")):
        raise NotInSlicesError("its SQL has grouping sets")
    if group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None:
        raise NotInSlicesError("its SQL has grouping sets")
    distinct = tree.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise NotInSlicesError("its SQL has DISTINCT ON")
    stable = (FUNCTIONS.keys() | AGGREGATES.keys() | STABLE | STABLE_AGGREGATES | {"struct"}) - UNSTABLE
    for node in tree.walk():
        if node is not tree and isinstance(node, (exp.Query, exp.Window, exp.Lambda, exp.Placeholder)):
            names: dict[type[exp.Expr], str] = {
                exp.Window: "a window function",
                exp.Lambda: "a lambda",
                exp.Placeholder: "a parameter",
            }
            raise NotInSlicesError(f"its SQL has {names.get(type(node), 'a subquery')}")
        name = str(node.this).lower() if isinstance(node, exp.Anonymous) else ""
        if (name and name not in stable) or isinstance(node, (exp.CurrentDate, exp.CurrentTimestamp)):
            raise NotInSlicesError(f"{name or 'the current time'} may give something else each time")


def _has_star(tree: exp.Expr) -> bool:
    """Return True if a star stands for columns; that of count(*) stands for none."""
    return any(not isinstance(star.parent, exp.Anonymous) for star in tree.find_all(exp.Star))


def _key(tree: exp.Expr, name: str, tables: _Tables) -> tuple[exp.Expr, str]:
    """Return the expression that a key is, and the one table that its columns are of."""
    items = [item for item in tree.expressions if item.alias_or_name.lower() == name.lower()]
    stars = [item for item in tree.expressions if item.is_star]
    if stars and not items and len(tables.names) == 1:
        items, stars = [exp.Column(this=exp.to_identifier(name, quoted=True))], []
    if len(items) != 1 or stars:  # a star may have a column of the name too
        raise NotInSlicesError(f"its key {name!r} is not told by one expression")
    item = items[0].unalias()
    for call in item.find_all(exp.Anonymous):
        if str(call.this).lower() in AGGREGATES.keys() | STABLE_AGGREGATES:
            raise NotInSlicesError(f"its key is an aggregate, {call.this}")
    used = {tables.column(node)[0] for node in item.find_all(exp.Column)}
    if len(used) != 1:
        raise NotInSlicesError(f"its key {name!r} is not of one table")
    return item, used.pop()


class _Join(NamedTuple):
    """A table that is joined to those before it."""

    before: list[str]
    right: str
    is_inner: bool
    condition: exp.Expr | None
    using: list[str]


class _Tables:
    """The tables of FROM, by the words that columns are qualified with."""

    def __init__(self, tree: exp.Expr, schemas: Mapping[str, Sequence[str]]) -> None:
        self.names: dict[str, str] = {}
        self.optional: set[str] = set()
        self.conditions: list[exp.Expr] = []
        self.sources: dict[str, exp.Table | exp.Join] = {}
        self._joins: list[_Join] = []
        self._known = {name.lower(): name for name in schemas}
        first = tree.args["from_"].this
        self.sources[self._base(first)] = first
        for join in tree.args.get("joins") or ():
            self._add(join)
        used = list(self.names.values())
        if len(set(used)) != len(used):
            raise NotInSlicesError("a table is in its SQL twice")
        self._columns = {name: {each.lower(): each for each in schemas[name]} for name in used}
        self._order = {name: list(schemas[name]) for name in used}

    def _add(self, join: exp.Join) -> None:
        side, kind = str(join.args.get("side") or ""), str(join.args.get("kind") or "")
        condition, using = join.args.get("on"), [each.name for each in join.args.get("using") or ()]
        is_plain = (side, kind) in (("", ""), ("", "INNER"), ("LEFT", ""), ("LEFT", "OUTER"))
        others = any(value for key, value in join.args.items() if key not in ("this", "side", "kind", "on", "using"))
        if not is_plain or others or (condition is None and not using):
            raise NotInSlicesError("it has a join that is not INNER or LEFT with a condition")
        before = list(self.names.values())
        right = self._base(join.this)
        self.sources[right] = join
        if side == "LEFT":
            self.optional.add(right)
        if condition is not None:
            self.conditions.append(condition)
        self._joins.append(_Join(before, right, side != "LEFT", condition, using))

    def _base(self, source: exp.Expr) -> str:
        if not isinstance(source, exp.Table) or not all(isinstance(part, exp.Identifier) for part in source.parts):
            raise NotInSlicesError("it reads something else than tables")
        alias = source.args.get("alias")
        if any(value for key, value in source.args.items() if key not in ("this", "db", "catalog", "alias")) or (
            alias is not None and alias.args.get("columns")
        ):
            raise NotInSlicesError("it reads a table with a sample, another moment or other names")
        name = format_name([part.name for part in source.parts])
        known = self._known.get(name.lower())
        if known is None:
            raise NotInSlicesError(f"it reads {name}, which is not a table of the catalog")
        word = (source.alias or source.parts[-1].name).lower()
        if word in self.names:
            raise NotInSlicesError(f"two of its tables are told by {word}")
        self.names[word] = known
        return known

    def column(self, node: exp.Column) -> tuple[str, str]:
        """Return the table and the column that a name means; a field of it may follow."""
        table, column, _ = self._resolved(node)
        return table, column

    def plain(self, node: object) -> str | None:
        """Return the column that an expression is, if it is just one."""
        if not isinstance(node, exp.Column):
            return None
        _, column, rest = self._resolved(node)
        return None if rest else column

    def _resolved(self, node: exp.Column) -> tuple[str, str, list[str]]:
        parts = [part.name.lower() for part in node.parts]
        if len(parts) > 1 and parts[0] in self.names:
            table = self.names[parts[0]]
            if parts[1] in self._columns[table]:
                return table, self._columns[table][parts[1]], parts[2:]
        owners = [table for table, columns in self._columns.items() if parts[0] in columns]
        if len(owners) != 1:
            raise NotInSlicesError(f"{'.'.join(parts)!r} is not told as a column of one table")
        return owners[0], self._columns[owners[0]][parts[0]], parts[1:]

    def named(self, nodes: Iterable[exp.Column], has_star: bool = False) -> dict[str, tuple[str, ...]]:
        """Return of each table the columns that some word may mean, or that USING joins; all where a star stands."""
        words = {part.name.lower() for node in nodes for part in node.parts}
        words |= {name.lower() for join in self._joins for name in join.using}
        return {
            table: tuple(each for each in order if has_star or each.lower() in words)
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
                    (one, column, rest), (other, right, more) = (self._resolved(each) for each in pair)
                except NotInSlicesError:
                    continue
                if rest or more:
                    continue  # a field of a column is compared, and nothing is known by it beforehand
                first, second = (one, column), (other, right)
                if first[0] == join.right:
                    first, second = second, first
                if second[0] == join.right and first[0] in join.before:
                    yield Equal(first, second, join.is_inner)


def _compared(condition: exp.Expr | None) -> Iterator[tuple[exp.Column, exp.Column]]:
    """Return the pairs of columns that must be equal for a condition to hold."""
    if condition is None:
        return
    inner = condition.unnest()
    for each in inner.flatten() if isinstance(inner, exp.And) else (inner,):
        is_pair = isinstance(each, exp.EQ) and isinstance(each.this, exp.Column)
        if is_pair and isinstance(each.expression, exp.Column):
            yield each.this, each.expression
