"""Queries of Spark SQL as queries of DuckDB: SELECT, joins, groups, WITH, set operations. Pure.

Every column is rendered with the table that it is of, so that no name is resolved twice by different rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.imports import exp
from headwater.names import format_name
from headwater.sql.casts import Relation, Scope, ScopeColumn, Term, to_common
from headwater.sql.expression_translation import MAX_TEXT, Expressions
from headwater.sql.functions import AGGREGATES
from headwater.sql.spark_parser import SqlError, UnsupportedSqlError
from headwater.sql.sql_types import BOOLEAN, kind_of, quoted

SELECT = {"expressions", "from_", "joins", "laterals", "where", "group", "having", "distinct", "order", "limit"}
SELECT |= {"offset", "with_"}
SET = {"this", "expression", "distinct", "order", "limit", "offset", "with_"}
JOINS = {
    ("", ""): "JOIN", ("", "INNER"): "JOIN", ("", "CROSS"): "CROSS JOIN", ("LEFT", ""): "LEFT JOIN",
    ("LEFT", "OUTER"): "LEFT JOIN", ("RIGHT", ""): "RIGHT JOIN", ("RIGHT", "OUTER"): "RIGHT JOIN",
    ("FULL", ""): "FULL JOIN", ("FULL", "OUTER"): "FULL JOIN", ("LEFT", "SEMI"): "SEMI JOIN",
    ("LEFT", "ANTI"): "ANTI JOIN", ("", "SEMI"): "SEMI JOIN", ("", "ANTI"): "ANTI JOIN",
}  # fmt: skip
SET_OPERATIONS: dict[type[exp.Expr], str] = {exp.Union: "UNION", exp.Intersect: "INTERSECT", exp.Except: "EXCEPT"}


@dataclass(frozen=True)
class SqlTable:
    """A table that a query may read: what DuckDB calls it, and its columns."""

    place: str
    schema: pa.Schema


Found = tuple[str, tuple[ScopeColumn, ...]]
"""The text of a query, and its columns: `name` as Spark calls it, `text` as the translation does."""


def translate(tree: exp.Expr, tables: Mapping[str, SqlTable]) -> str:
    """Return the query of DuckDB that gives what a tree gives in Spark, with the same names of columns.

    `tables`: by their names, as the catalog formats them. UnsupportedSqlError names what is not translated.
    """
    try:
        text, columns = Selects(tables).query(tree, None)
    except RecursionError:
        raise SqlError("Its expressions are nested too deep: break it up.") from None
    names = [column.name for column in columns]
    for name in names:
        if [each.lower() for each in names].count(name.lower()) > 1:
            raise UnsupportedSqlError(f"two columns called {name} (write AS)")
    shown = ", ".join(f"q.{quoted(column.text)} AS {quoted(column.name)}" for column in columns)
    return checked(f"SELECT {shown} FROM ({text}) AS q")


def translate_conditions(trees: Sequence[exp.Expr], source: SqlTable) -> str:
    """Return the query of DuckDB that answers conditions for each row of a table, as c0, c1 and so on."""
    selects = Selects({})
    scope = Scope([Relation(("t0",), selects.columns("t0", source.schema))])
    shown = []
    for place, tree in enumerate(trees):
        try:
            term = Expressions(scope, selects.query).term(tree)
        except RecursionError:
            raise SqlError("Its expressions are nested too deep: break it up.") from None
        if term.kind != BOOLEAN and term.text != "NULL":
            raise SqlError(f"It answers {term.kind}, not true or false.")
        shown.append(f"CAST({term.text} AS BOOLEAN) AS c{place}")
    return checked(f"SELECT {', '.join(shown)} FROM {source.place} AS t0")


def checked(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise UnsupportedSqlError("an expression that is nested this deep")
    return text


class Selects:
    """Translates one query with those inside it."""

    def __init__(self, tables: Mapping[str, SqlTable]) -> None:
        self._tables = {name.lower(): source for name, source in tables.items()}
        self._numbers = 0
        self._withs: list[dict[str, tuple[str, tuple[ScopeColumn, ...]]]] = []

    def query(self, node: exp.Expr, outer: Scope | None) -> Found:
        """Return a query with columns called c0, c1 and so on."""
        if isinstance(node, exp.Subquery) and not node.args.get("alias"):
            return self.query(node.this, outer)
        held = node.args.get("with_")
        names: dict[str, tuple[str, tuple[ScopeColumn, ...]]] = {}
        self._withs.append(names)
        try:
            parts = [self._with(each, names) for each in held.expressions] if held is not None else []
            if held is not None and held.args.get("recursive"):
                raise UnsupportedSqlError("WITH RECURSIVE")
            if isinstance(node, exp.Select):
                text, columns = self._select(node, outer)
            elif type(node) in SET_OPERATIONS:
                text, columns = self._set(node, outer)
            else:
                raise UnsupportedSqlError(type(node).__name__.upper())
        finally:
            self._withs.pop()
        return checked(f"WITH {', '.join(parts)} {text}" if parts else text), columns

    def _with(self, node: exp.Expr, names: dict[str, tuple[str, tuple[ScopeColumn, ...]]]) -> str:
        if node.args["alias"].args.get("columns"):
            raise UnsupportedSqlError("WITH and names for its columns")
        text, columns = self.query(node.this, None)
        place = self._name()
        names[node.alias.lower()] = (place, columns)
        return f"{place} AS ({text})"

    def _name(self) -> str:
        self._numbers += 1
        return f"t{self._numbers}"

    # FROM -----------------------------------------------------------------------------------------------------------

    def columns(self, place: str, schema: pa.Schema) -> tuple[ScopeColumn, ...]:
        """Return the columns of a table under the name that the translation gives it."""
        return tuple(_column(place, field) for field in schema)

    def _relation(self, node: exp.Expr) -> tuple[str, Relation]:
        """Return a member of FROM as text, and its columns."""
        place = self._name()
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise UnsupportedSqlError("other names for the columns of a table")
        if isinstance(node, exp.Subquery):
            _refuse(node, {"this", "alias"})
            text, inner = self.query(node.this, None)
            names: tuple[str, ...] = (node.alias.lower(),) if node.alias else ()
            return f"({text}) AS {place}", Relation(names, _through(place, inner))
        if not isinstance(node, exp.Table) or not all(isinstance(part, exp.Identifier) for part in node.parts):
            raise UnsupportedSqlError("a FROM of something else than tables and subqueries")
        _refuse(node, {"this", "db", "catalog", "alias"})
        parts = [part.name for part in node.parts]
        names = (node.alias.lower(),) if node.alias else tuple(part.lower() for part in parts)
        known = next((held[parts[0].lower()] for held in reversed(self._withs) if parts[0].lower() in held), None)
        if len(parts) == 1 and known is not None:
            return f"{known[0]} AS {place}", Relation(names, _through(place, known[1]))
        source = self._tables.get(format_name(parts).lower())
        if source is None:
            raise SqlError(f"There is no table {format_name(parts)}.")
        return f"{source.place} AS {place}", Relation(names, self.columns(place, source.schema))

    def _from(self, node: exp.Expr, scope: Scope) -> tuple[str, list[ScopeColumn]]:
        """Return FROM as text, and the columns that * stands for; the scope gets its tables."""
        source = node.args.get("from_")
        if source is None:
            return "", []
        text, relation = self._relation(source.this)
        scope.relations.append(relation)
        stars = list(relation.columns)
        for join in node.args.get("joins") or ():
            more, stars = self._join(join, scope, stars)
            text += more
        for lateral in node.args.get("laterals") or ():
            more, relation = self._lateral(lateral, scope)
            scope.relations.append(relation)
            text, stars = text + more, [*stars, *relation.columns]
        return f" FROM {text}", stars

    def _lateral(self, node: exp.Expr, scope: Scope) -> tuple[str, Relation]:
        """Return LATERAL VIEW explode(array) as a join of each row with the elements of its array."""
        _refuse(node, {"this", "view", "outer", "alias"})
        alias = node.args.get("alias")
        names = [each.name for each in alias.args.get("columns") or ()] if alias is not None else []
        if not _is_explode(node.this) or len(names) > 1:
            raise UnsupportedSqlError("LATERAL VIEW of something else than explode() of an array")
        term, place = _exploded(node.this, Expressions(scope, self.query)), self._name()
        verb, on = ("LEFT JOIN", " ON true") if node.args.get("outer") else ("CROSS JOIN", "")
        column = ScopeColumn(names[0] if names else "col", term.kind, f"{place}.c0")
        word = alias.this.name.lower() if alias is not None and alias.this is not None else ""
        return f" {verb} LATERAL (SELECT {term.text} AS c0) AS {place}{on}", Relation((word,), (column,))

    def _join(self, join: exp.Expr, scope: Scope, stars: list[ScopeColumn]) -> tuple[str, list[ScopeColumn]]:
        _refuse(join, {"this", "side", "kind", "on", "using"})
        kind = (str(join.args.get("side") or ""), str(join.args.get("kind") or ""))
        if kind not in JOINS:
            raise UnsupportedSqlError(f"a {' '.join(kind).strip()} JOIN")
        verb = JOINS[kind]
        text, right = self._relation(join.this)
        left = list(scope.relations)
        merged: list[ScopeColumn] = []
        if join.args.get("using"):
            conditions = []
            for each in join.args["using"]:
                condition, column = self._using(each.name, left, scope, right, verb)
                conditions.append(condition)
                merged.append(column)
            on = " ON " + " AND ".join(conditions)
        elif join.args.get("on") is not None:
            inner = Scope([*left, right], dict(scope.merged), scope.outer)
            on = f" ON {Expressions(inner, self.query).condition(join.args['on'])}"
        else:
            verb, on = ("CROSS JOIN" if verb == "JOIN" else verb), ""
            if verb != "CROSS JOIN":
                raise UnsupportedSqlError(f"a {verb} without a condition")
        if verb in ("SEMI JOIN", "ANTI JOIN"):
            return f" {verb} {text}{on}", stars
        scope.relations.append(right)
        scope.merged.update({column.name.lower(): column for column in merged})
        names = {column.name.lower() for column in merged}
        rest = [each for each in (*stars, *right.columns) if each.name.lower() not in names]
        return f" {verb} {text}{on}", [*merged, *rest]

    def _using(
        self, name: str, left: list[Relation], scope: Scope, right: Relation, verb: str
    ) -> tuple[str, ScopeColumn]:
        first = Scope(left, dict(scope.merged)).find([name])
        second = Scope([right]).find([name])
        (left_term, right_term), kind = to_common([first, second], "USING")
        both = Term(f"coalesce({left_term.text}, {right_term.text})", kind)
        shown = {"RIGHT JOIN": second, "FULL JOIN": both}.get(verb, first)
        return f"({left_term.text} = {right_term.text})", ScopeColumn(name, shown.kind, shown.text)

    # SELECT ---------------------------------------------------------------------------------------------------------

    def _select(self, node: exp.Expr, outer: Scope | None) -> Found:
        _refuse(node, SELECT)
        scope = Scope(outer=outer, laterals=frozenset(each.alias.lower() for each in node.expressions if each.alias))
        source, stars = self._from(node, scope)
        plain = Expressions(scope, self.query)
        _check_explode(node)
        items = [item for each in node.expressions for item in self._item(each, plain, stars)]
        distinct = node.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise UnsupportedSqlError("DISTINCT ON")
        text = "SELECT DISTINCT " if distinct is not None else "SELECT "
        text += ", ".join(f"{term.text} AS c{place}" for place, (_, term) in enumerate(items)) + source
        where = node.args.get("where")
        if where is not None:
            text += f" WHERE {plain.condition(where.this)}"
        results = {name.lower(): term for name, term in items}
        late = Expressions(Scope(scope.relations, scope.merged, outer, results), self.query)
        aggregates = [item.find(exp.Window) is not None or _aggregates(item) for item in node.expressions]
        simple = [not each for each in aggregates] if len(aggregates) == len(items) else [True] * len(items)
        text += self._group(node.args.get("group"), late, items, simple)
        having, conditions = node.args.get("having"), []
        if having is not None:
            self._check_clear(having, scope, results)
            conditions.append(late.condition(having.this))
        if node.args.get("group") is not None and node.args["group"].find(exp.Rollup, exp.Cube) is not None:
            conditions.insert(0, "count(*) > 0")  # of no rows Spark has no total
        text += f" HAVING {' AND '.join(conditions)}" if conditions else ""
        results_first = Scope(scope.relations, scope.merged, outer, results, results_first=True)
        text += self._tail(node, items, Expressions(results_first, self.query))
        return text, tuple(ScopeColumn(name, term.kind, f"c{place}") for place, (name, term) in enumerate(items))

    def _item(self, node: exp.Expr, plain: Expressions, stars: list[ScopeColumn]) -> list[tuple[str, Term]]:
        """Return the columns of the result that an item of the SELECT stands for."""
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            star = node if isinstance(node, exp.Star) else node.this
            _refuse(star, {"except_"})
            columns = stars
            if isinstance(node, exp.Column):
                named = [part.name.lower() for part in node.parts[:-1]]
                owners = [each for each in plain.scope.relations if list(each.names[-len(named) :]) == named]
                if len(owners) != 1:
                    raise SqlError(f"There is no table {'.'.join(named)} in the FROM.")
                columns = list(owners[0].columns)
            columns = _without(columns, [each.name for each in star.args.get("except_") or ()])
            return [(column.name, Term(column.text, column.kind)) for column in columns]
        inner = node.unalias()
        if _is_explode(inner):
            return [(node.alias or "col", _exploded(inner, plain))]
        name = node.alias or (inner.name if isinstance(inner, (exp.Column, exp.Dot)) else _shown(inner))
        return [(name, plain.term(inner))]

    def _group(
        self, node: exp.Expr | None, late: Expressions, items: list[tuple[str, Term]], plain: Sequence[bool]
    ) -> str:
        """Return GROUP BY. `plain`: the items of the SELECT that aggregate nothing, which GROUP BY ALL means."""
        if node is None:
            return ""
        _refuse(node, {"expressions", "all"})
        texts = [
            term.text for (_, term), is_plain in zip(items, plain, strict=True) if is_plain and node.args.get("all")
        ]
        for each in node.expressions:
            if isinstance(each, exp.Literal) and not each.is_string and each.this.isdecimal():
                texts.append(_at(items, int(each.this)).text)
            else:
                texts.append(self._grouped(each, late))
        return " GROUP BY " + ", ".join(texts)

    def _grouped(self, node: exp.Expr, late: Expressions) -> str:
        if not isinstance(node, (exp.Rollup, exp.Cube)):
            return late.term(node).text
        return f"{type(node).__name__.upper()} ({', '.join(term.text for term in late.terms(node.expressions))})"

    def _check_clear(self, having: exp.Expr, scope: Scope, results: Mapping[str, Term]) -> None:
        """Refuse a name in HAVING that is both a column and another result of the SELECT."""
        for column in having.find_all(exp.Column):
            name = column.name.lower()
            if len(column.parts) == 1 and name in results:
                found = scope.matches([name])
                if found and found[0].text != results[name].text:
                    raise UnsupportedSqlError(f"HAVING with {name}, which is a column and a result")

    def _tail(self, node: exp.Expr, items: list[tuple[str, Term]], late: Expressions) -> str:
        """Return ORDER BY, LIMIT and OFFSET."""
        text = ""
        order = node.args.get("order")
        if order is not None:
            parts = []
            for each in order.expressions:
                is_place = isinstance(each.this, exp.Literal) and each.this.this.isdecimal() and not each.this.is_string
                term = _at(items, int(each.this.this)) if is_place else late.term(each.this)
                places = [f"c{place}" for place, (_, item) in enumerate(items) if item.text == term.text]
                parts.append(late.ordered(each, Term(places[0], term.kind) if places else term))
            text += " ORDER BY " + ", ".join(parts)
        for key, word in (("limit", "LIMIT"), ("offset", "OFFSET")):
            value = node.args.get(key)
            if value is not None:
                inner = value.args.get("expression")
                if not isinstance(inner, exp.Literal) or not inner.this.isdecimal():
                    raise UnsupportedSqlError(f"{word} of something else than a number")
                text += f" {word} {inner.this}"
        return text

    # Set operations -------------------------------------------------------------------------------------------------

    def _set(self, node: exp.Expr, outer: Scope | None) -> Found:
        _refuse(node, SET)
        for side in (node.this, node.expression):
            if type(side) in SET_OPERATIONS and type(side) is not type(node):
                raise UnsupportedSqlError("UNION, INTERSECT and EXCEPT side by side without parentheses")
        (left, first), (right, second) = self.query(node.this, outer), self.query(node.expression, outer)
        if len(first) != len(second):
            raise SqlError(
                f"The two sides of a {SET_OPERATIONS[type(node)]} have {len(first)} and {len(second)} columns."
            )
        word = SET_OPERATIONS[type(node)] + ("" if node.args.get("distinct") else " ALL")
        sides: list[list[str]] = [[], []]
        columns = []
        for place, (a, b) in enumerate(zip(first, second, strict=True)):
            pair, kind = to_common([Term(f"a.{a.text}", a.kind), Term(f"b.{b.text}", b.kind)], word)
            for side, term in zip(sides, pair, strict=True):
                side.append(f"{term.text} AS c{place}")
            columns.append(ScopeColumn(a.name, kind, f"c{place}"))
        text = (
            f"SELECT {', '.join(sides[0])} FROM ({left}) AS a {word} SELECT {', '.join(sides[1])} FROM ({right}) AS b"
        )
        place_ = self._name()
        items = [(each.name, Term(f"{place_}.{each.text}", each.kind)) for each in columns]
        scope = Scope(aliases={name.lower(): term for name, term in items}, results_first=True)
        tail = self._tail(node, items, Expressions(scope, self.query))
        if tail:
            shown = ", ".join(f"{term.text} AS c{place}" for place, (_, term) in enumerate(items))
            text = f"SELECT {shown} FROM ({text}) AS {place_}{tail}"
        return text, tuple(columns)


def _column(place: str, field: pa.Field[pa.DataType]) -> ScopeColumn:
    """Return a column of a table, in the type of DuckDB that is Spark's."""
    kind, text = kind_of(field.type), f"{place}.{quoted(field.name)}"
    return ScopeColumn(
        field.name, kind, text if kind.is_opaque or _is_same(field.type) else f"CAST({text} AS {kind.duck})"
    )


def _is_same(arrow: pa.DataType) -> bool:
    """Return True for an Arrow type that DuckDB reads as the type which Spark has for it."""
    types = pa.types
    if types.is_list(arrow) or types.is_large_list(arrow):
        return _is_same(arrow.value_type)
    if types.is_struct(arrow):
        return all(_is_same(arrow.field(place).type) for place in range(arrow.num_fields))
    is_plain = types.is_signed_integer(arrow) or types.is_boolean(arrow) or types.is_date32(arrow)
    is_plain = is_plain or arrow in (pa.float32(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
    return bool(
        is_plain or types.is_decimal128(arrow) or types.is_string(arrow) or types.is_large_string(arrow)
        or types.is_binary(arrow) or types.is_large_binary(arrow)
    )  # fmt: skip


def _is_explode(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).lower() == "explode" and len(node.expressions) == 1


def _exploded(node: exp.Expr, plain: Expressions) -> Term:
    held = plain.term(node.expressions[0])
    if held.kind.name != "array":
        raise UnsupportedSqlError(f"explode() of {held.kind}")
    return Term(f"unnest({held.text})", held.kind.element)


def _check_explode(node: exp.Expr) -> None:
    """Refuse explode() in a SELECT that does more with its rows than choosing, ordering and limiting them."""
    count = sum(_is_explode(each.unalias()) for each in node.expressions)
    more = any(node.args.get(key) for key in ("group", "having", "distinct"))
    if count > 1 or (count and (more or any(_aggregates(each) or each.find(exp.Window) for each in node.expressions))):
        raise UnsupportedSqlError("explode() twice, or with GROUP BY, DISTINCT, an aggregate or a window")


def _without(columns: list[ScopeColumn], names: Sequence[str]) -> list[ScopeColumn]:
    """Return the columns of * EXCEPT (...)."""
    for name in names:
        found = [each for each in columns if each.name.lower() == name.lower()]
        if len(found) != 1:
            raise SqlError(f"There is no one column `{name}` to leave out of *.")
        columns = [each for each in columns if each is not found[0]]
    return columns


def _through(place: str, columns: Sequence[ScopeColumn]) -> tuple[ScopeColumn, ...]:
    return tuple(ScopeColumn(each.name, each.kind, f"{place}.{each.text}") for each in columns)


def _at(items: list[tuple[str, Term]], place: int) -> Term:
    if not 1 <= place <= len(items):
        raise SqlError(f"There is no column {place} in the SELECT.")
    return items[place - 1][1]


def _shown(node: exp.Expr) -> str:
    """Return the name that Spark gives to an expression without one, where that is plain."""
    if isinstance(node, exp.Anonymous):
        inside = ", ".join("1" if isinstance(each, exp.Star) else _shown(each) for each in node.expressions)
        return f"{str(node.this).lower()}({inside})"
    return str(node.sql("spark"))


def _aggregates(node: exp.Expr) -> bool:
    return any(str(call.this).lower() in AGGREGATES for call in node.find_all(exp.Anonymous))


def _refuse(node: exp.Expr, known: set[str]) -> None:
    for key, value in node.args.items():
        if value and key not in known:
            raise UnsupportedSqlError(f"{key.strip('_').replace('_', ' ').upper()} of a {type(node).__name__.upper()}")
