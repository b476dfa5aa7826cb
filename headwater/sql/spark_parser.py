"""Spark SQL as a tree: the parser for views, checks and queries, the tables that a tree reads, and the columns that
each of its columns is computed from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.imports import exp, sqlglot, when_used
from headwater.names import format_name

if TYPE_CHECKING:
    from sqlglot import lineage as trees
    from sqlglot import optimizer as optimizer
    from sqlglot.optimizer import qualify as qualify
else:
    trees = when_used("sqlglot.lineage")
    optimizer = when_used("sqlglot.optimizer")
    qualify = when_used("sqlglot.optimizer.qualify")
MAX_SQL_CHARS, MAX_CONDITION_CHARS = 200_000, 20_000
SPARK, DUCKDB = "spark", "duckdb"
"""The dialects of a query."""
Inputs = dict[str, frozenset[tuple[str, str]]]
"""For each column of a query, the columns of tables that it is computed from."""


class SqlError(InvalidInputError):
    """Error 13: the text is no SQL, or its engine cannot run it; with the place where that is known."""


class UnsupportedSqlError(UnsupportedOperationError):
    """Error 0: SQL that the embedded engine does not compute with the meaning that it has in Spark.

    A caller adds the remedy, which differs: a view can run on Spark, a check runs in the embedded engine everywhere.
    """

    def __init__(self, construct: str) -> None:
        super().__init__(f"The embedded engine does not compute {construct} as Spark does")


@lru_cache(maxsize=1)
def _dialect() -> type[sqlglot.Dialect]:
    """Return the dialect of Spark that keeps every call under the name it has in Spark.

    sqlglot gives one name to functions that differ in detail, such as `nvl` and `coalesce`.
    """
    try:
        Spark = sqlglot.dialects.Spark
    except ModuleNotFoundError:
        raise UnsupportedOperationError("SQL needs sqlglot: pip install 'headwater[sql]'.") from None
    base: Any = Spark.Parser if hasattr(Spark, "Parser") else Spark().parser_class
    kept = {name: base.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")}
    unusual = {name: each for name, each in base.NO_PAREN_FUNCTION_PARSERS.items() if name == "CASE"}
    parser = type("Parser", (base,), {"FUNCTIONS": {}, "FUNCTION_PARSERS": kept, "NO_PAREN_FUNCTION_PARSERS": unusual})
    return type("HeadwaterSpark", (Spark,), {"Parser": parser})


@lru_cache(maxsize=256)
def parse_query(sql: str, dialect: str = SPARK) -> exp.Query:
    """Return the tree of one SELECT. SqlError names the place of a mistake."""
    trees = _parsed(sql, dialect)
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise SqlError("A query is one SELECT: other statements, and several at once, are refused.")
    return trees[0]


@lru_cache(maxsize=256)
def parse_condition(sql: str) -> exp.Expr:
    """Return the tree of one expression, such as a check."""
    if not sql.strip():
        raise SqlError("It is empty: give a SQL expression.")
    if len(sql) > MAX_CONDITION_CHARS:
        raise SqlError(f"It is longer than {MAX_CONDITION_CHARS} characters.")
    tree = parse_query(f"SELECT\n{sql}\n")
    parts: list[exp.Expr] = tree.expressions
    if len(parts) != 1 or any(value for key, value in tree.args.items() if key != "expressions"):
        raise SqlError(f"It is not one SQL expression: {sql[:200]}")
    if isinstance(parts[0], (exp.Alias, exp.Star)) or parts[0].find(exp.Query) is not None:
        raise SqlError(f"It is not one SQL expression over the columns of a row: {sql[:200]}")
    return parts[0]


def _parsed(sql: str, dialect: str) -> list[exp.Expr]:
    if len(sql) > MAX_SQL_CHARS:
        raise SqlError(f"It is longer than {MAX_SQL_CHARS} characters.")
    known = _dialect()
    try:
        return [tree for tree in sqlglot.parse(sql, dialect=known if dialect == SPARK else dialect) if tree]
    except sqlglot.errors.ParseError as error:
        place = error.errors[0] if error.errors else {}
        told = str(place.get("description") or error).splitlines()[0]
        raise SqlError(f"syntax error: {told}{_place(place)}{_quotes(sql, dialect)}") from None
    except sqlglot.errors.TokenError as error:
        raise SqlError(f"syntax error: {str(error).splitlines()[0][:200]}") from None
    except RecursionError:
        raise SqlError("Its expressions are nested too deep: break it up.") from None


def _place(found: Mapping[str, object]) -> str:
    if not found.get("line"):
        return ""
    column = int(str(found["col"])) - len(str(found.get("highlight") or " ")) + 1
    return f" (line {found['line']}, column {max(column, 1)})"


def _quotes(sql: str, dialect: str) -> str:
    is_quoted = dialect == SPARK and '"' in sql
    return ". In Spark SQL double quotes are round texts: write `name` for a name" if is_quoted else ""


@lru_cache(maxsize=256)
def double_quoted(sql: str) -> tuple[str, ...]:
    """Return the texts that stand in double quotes."""
    tokens = sqlglot.tokenize(sql, dialect=_dialect())
    return tuple(token.text for token in tokens if sql[token.start : token.start + 1] == '"')


def check_quotes(sql: str, columns: Iterable[str]) -> None:
    """Raise SqlError for a column's name in double quotes, which is a text in Spark SQL."""
    known = {name.lower(): name for name in columns}
    for text in double_quoted(sql):
        if text.lower() in known:
            raise SqlError(
                f"\"{text}\" is a text in Spark SQL: write `{text}` for the column, or '{text}' for the text."
            )


def tables_in(tree: exp.Expr) -> dict[tuple[str, ...], list[exp.Table]]:
    """Return the tables that a tree reads, by the parts of their names, each with its nodes."""
    found: dict[tuple[str, ...], list[exp.Table]] = {}
    for node in tree.find_all(exp.Table):
        if not all(isinstance(part, exp.Identifier) for part in node.parts):
            continue  # a function, which only SQL of DuckDB has in a FROM
        names = tuple(part.name for part in node.parts)
        if not (len(names) == 1 and _is_local(node, names[0])):
            found.setdefault(names, []).append(node)
    return found


def _is_local(table: exp.Table, name: str) -> bool:
    """Return True for a name that a WITH around the table defines."""
    node: exp.Expr | None = table
    while node is not None:
        held = node.args.get("with_") if isinstance(node, exp.Query) else None
        if held is not None and any(each.alias.lower() == name.lower() for each in held.expressions):
            return True
        node = node.parent
    return False


def columns_of(tree: exp.Expr) -> set[str]:
    """Return every name of a condition that may be a column, in lower case."""
    return {part.name.lower() for column in tree.find_all(exp.Column) for part in column.parts}


def table_names(sql: str) -> set[str]:
    """Return the names of the tables that a query reads, as the catalog formats them."""
    return {format_name(names) for names in tables_in(parse_query(sql))}


def names_in(sql: str, known: Iterable[str]) -> set[str]:
    """Return those of the known tables that a query reads, without regard to case."""
    wanted = {name.lower(): name for name in known}
    return {wanted[name.lower()] for name in table_names(sql) if name.lower() in wanted}


def query_text(query: str | exp.Expr) -> str:
    """Return the text of a query in Spark SQL that is a text or a tree."""
    return query if isinstance(query, str) else str(query.sql(dialect=_dialect()))


def with_tables(sql: str, names: Mapping[str, str]) -> str:
    """Return the text of a query with other names for its tables; everything else stays as it is written.

    `names`: for each table, as the catalog formats it, the name that takes its place.
    """
    tree = parse_query(sql)
    wanted = {name.lower(): new for name, new in names.items()}
    edits: list[tuple[int, int, str]] = []
    for parts, nodes in tables_in(tree).items():
        new = wanted.get(format_name(parts).lower())
        for node in nodes if new else ():
            alias = "" if node.alias else f" AS `{parts[-1]}`"
            edits.append((node.parts[0].meta["start"], node.parts[-1].meta["end"] + 1, f"`{new}`{alias}"))
    for column in tree.find_all(exp.Column):
        words = [part for part in column.parts if isinstance(part, exp.Identifier)]
        for end in range(len(words) - 1, 1, -1):  # raw.orders.id: the table is called orders now
            if format_name([word.name for word in words[:end]]).lower() in wanted:
                edits.append((words[0].meta["start"], words[end - 1].meta["start"], ""))
                break
    for start, stop, new in sorted(edits, reverse=True):
        sql = sql[:start] + new + sql[stop:]
    return sql


def column_inputs(sql: str, tables: Mapping[str, Sequence[str]]) -> Inputs:
    """Return, for each column of a query in lower case, the columns of tables that it is computed from.

    `tables`: the columns of each table that the query may read. A query that is not understood has no columns here.
    """
    return _column_inputs(sql, tuple((name, tuple(columns)) for name, columns in sorted(tables.items())))


@lru_cache(maxsize=256)
def _column_inputs(sql: str, tables: tuple[tuple[str, tuple[str, ...]], ...]) -> Inputs:
    known = dict(tables)
    try:
        read = sorted(names_in(sql, known))
        places = {f"t{number}": name for number, name in enumerate(read)}
        schema: dict[str, object] = {place: dict.fromkeys(known[name], "string") for place, name in places.items()}
        text = with_tables(sql, {name: place for place, name in places.items()})
        tree = qualify.qualify(
            sqlglot.parse_one(text, dialect=SPARK), dialect=SPARK, schema=schema, validate_qualify_columns=False
        )
        if not isinstance(tree, exp.Query):
            return {}
        scope = optimizer.build_scope(tree)
        return {
            name: _leaves(trees.lineage(name, tree, schema, dialect=SPARK, scope=scope), places, known)
            for name in tree.named_selects
        }
    except (InvalidInputError, UnsupportedOperationError, RecursionError, ValueError):
        return {}
    except sqlglot.errors.SqlglotError:
        return {}


def _leaves(
    node: trees.Node, places: Mapping[str, str], known: Mapping[str, Sequence[str]]
) -> frozenset[tuple[str, str]]:
    """Return the columns at the ends of a lineage of sqlglot, under the names that the catalog has for them."""
    found = set()
    for leaf in node.walk():
        if leaf.downstream or not isinstance(leaf.expression, exp.Table):
            continue
        table = places.get(leaf.expression.name)
        name = sqlglot.parse_one(leaf.name).name.lower()
        found |= {(table, column) for column in known.get(table or "", ()) if table and column.lower() == name}
    return frozenset(found)
