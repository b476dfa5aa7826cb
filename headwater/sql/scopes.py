"""Names of columns in a SELECT: which table, field of a struct or result they mean, by the rules of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.sql.casts import Term
from headwater.sql.spark_parser import SqlError, UnsupportedSqlError
from headwater.sql.sql_types import SqlDatatype, quoted


@dataclass(frozen=True)
class ScopeColumn:
    """A column that a query may name, and the expression that reads it."""

    name: str
    kind: SqlDatatype
    text: str


@dataclass(frozen=True)
class Relation:
    """A table, subquery or WITH of a FROM. `names`: those that a column may be qualified with, as a whole."""

    names: tuple[str, ...]
    columns: tuple[ScopeColumn, ...]


@dataclass
class Scope:
    """The columns that expressions of one SELECT see."""

    relations: list[Relation] = field(default_factory=list)
    merged: dict[str, ScopeColumn] = field(default_factory=dict)
    """Columns of USING, by their lower names."""
    outer: Scope | None = None
    aliases: dict[str, Term] = field(default_factory=dict)
    """Results of the SELECT by their lower names, for GROUP BY, HAVING and ORDER BY."""
    results_first: bool = False
    laterals: frozenset[str] = frozenset()
    """Names of results that Spark lets the items of the same SELECT read."""

    def find(self, parts: Sequence[str]) -> Term:
        """Return the column, or the field of one, that a name means. SqlError: there is none, or several."""
        if self.results_first and len(parts) == 1 and parts[0].lower() in self.aliases:
            return self.aliases[parts[0].lower()]
        found = self.matches(parts)
        if not found and len(parts) == 1 and parts[0].lower() in self.aliases:
            return self.aliases[parts[0].lower()]
        if not found and self.outer is not None:
            return self.outer.find(parts)
        shown = ".".join(parts)
        if not found and parts[0].lower() in self.laterals:
            raise UnsupportedSqlError(f"`{parts[0]}`, a result that the same SELECT reads")
        if not found:
            raise SqlError(f"There is no column `{shown}` in the tables of the query.")
        if len(found) > 1:
            raise SqlError(f"`{shown}` is a column of several tables: write it with the name of one.")
        return found[0]

    def matches(self, parts: Sequence[str]) -> list[Term]:
        low = [part.lower() for part in parts]
        for size in range(len(parts) - 1, 0, -1):
            owners = [each for each in self.relations if low[:size] == list(each.names[-size:])]
            found = [field_of(term, parts[size + 1 :]) for each in owners for term in _named(each.columns, low[size])]
            if found:
                return found
        if low[0] in self.merged:
            column = self.merged[low[0]]
            return [field_of(Term(column.text, column.kind), parts[1:])]
        found = [term for each in self.relations for term in _named(each.columns, low[0])]
        return [field_of(term, parts[1:]) for term in found]


def _named(columns: Sequence[ScopeColumn], name: str) -> list[Term]:
    return [Term(each.text, each.kind) for each in columns if each.name.lower() == name]


def field_of(term: Term, path: Sequence[str]) -> Term:
    for name in path:
        found = [(each, kind) for each, kind in term.kind.parts if each.lower() == name.lower()]
        if term.kind.name != "struct" or len(found) != 1:
            raise SqlError(f"There is no field `{name}` in a {term.kind}.")
        term = Term(f"({term.text}).{quoted(found[0][0])}", found[0][1])
    return term
