"""The columns of tables that each column of a query is computed from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.imports import exp, sqlglot, when_used
from headwater.sql.spark_parser import SPARK, names_in, with_tables

if TYPE_CHECKING:
    from sqlglot import lineage as trees
    from sqlglot import optimizer as optimizer
    from sqlglot.optimizer import qualify as qualify
else:
    trees = when_used("sqlglot.lineage")
    optimizer = when_used("sqlglot.optimizer")
    qualify = when_used("sqlglot.optimizer.qualify")
Inputs = dict[str, frozenset[tuple[str, str]]]


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
