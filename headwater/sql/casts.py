"""Casts of Spark SQL under ANSI, as expressions of DuckDB that give the same value or fail where Spark does.

Also the names of columns in a SELECT: the table, struct field or result that each means, by the rules of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import SupportsIndex, overload

from headwater.imports import exp
from headwater.sql.spark_parser import SqlError, UnsupportedSqlError
from headwater.sql.sql_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    NTZ,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TINYINT,
    VOID,
    SqlDatatype,
    array,
    as_decimal,
    common,
    decimal,
    quoted,
)
from headwater.wording import did_you_mean

REFUSED = "headwater-embedded:"
"""The prefix of messages for values, not texts, that the engine refuses."""
_HOLE, _INVALID = "\0", re.compile(r"error\('\[CAST_INVALID_INPUT\][^']*'\)")
TRUE, FALSE = "('t', 'true', 'y', 'yes', '1')", "('f', 'false', 'n', 'no', '0')"
_INTEGER = "[+-]?[0-9]+"
_DECIMAL = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_DOUBLE = _DECIMAL + "([eE][+-]?[0-9]+)?"
_DATE = r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_TIME = _DATE + r"([ T][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(\.[0-9]{1,6})?)?"


@dataclass(frozen=True)
class Term:
    """An expression of DuckDB and the type that it has in Spark. `value`: of a literal, what it says."""

    text: str
    kind: SqlDatatype
    value: int | str | None = None


def text_literal(value: str) -> str:
    if "\0" in value:
        raise UnsupportedSqlError("a text with the character NUL")
    return "'" + value.replace("'", "''") + "'"


def fail(message: str) -> str:
    return f"error({text_literal(message)})"


def refuse(what: str) -> str:
    """Return the expression that refuses a value at run time, by name."""
    return fail(f"{REFUSED}{what}")


def to_common(terms: list[Term], what: str) -> tuple[list[Term], SqlDatatype]:
    """Return the terms in the type that they have in common. UnsupportedSqlError: Spark would convert one by a rule
    of its own, or refuses the expression."""
    kind = VOID
    for term in terms:
        if kind.is_opaque or term.kind.is_opaque:
            raise UnsupportedSqlError(f"{what} of {term.kind}")
        found = common(kind, term.kind)
        if found is None:
            found = _literal_kind(terms)
        if found is None:
            raise UnsupportedSqlError(f"{what} of {kind} and {term.kind} (write a CAST)")
        kind = found
    return [cast(term, kind, what) for term in terms], kind


def _literal_kind(terms: list[Term]) -> SqlDatatype | None:
    """Return the type of moments that literal texts beside them are read as."""
    others = {term.kind for term in terms if not (term.kind == STRING and isinstance(term.value, str))}
    return others.pop() if len(others) == 1 and next(iter(others)).is_moment else None


def cast(term: Term, kind: SqlDatatype, what: str = "") -> Term:
    """Return a term in another type, by the rules of ANSI."""
    if term.kind == kind:
        return term
    if term.kind == VOID or term.text == "NULL":
        return Term(f"CAST(NULL AS {kind.duck})" if kind != VOID else "NULL", kind)
    text = _cast(term.text, term.kind, kind)
    if text is None:
        raise UnsupportedSqlError(f"CAST from {term.kind} to {kind}" + (f" (for {what})" if what else ""))
    return Term(text, kind)


def try_cast(term: Term, kind: SqlDatatype) -> Term:
    """Return a term in another type, NULL where ANSI has an error. Values that are refused are refused here too."""
    form = cast(Term(_HOLE, term.kind), kind)
    text = _INVALID.sub("NULL", form.text.replace("CAST(", "TRY_CAST("))
    return term if term.kind == kind else Term(text.replace(_HOLE, term.text), kind)


def _cast(text: str, old: SqlDatatype, new: SqlDatatype) -> str | None:
    plain = f"CAST({text} AS {new.duck})" if not new.is_opaque else ""
    if old.is_opaque or new.is_opaque or new == VOID:
        return None
    if old.name == new.name == "array":
        inner = _cast("x", old.element, new.element)
        return plain if inner == f"CAST(x AS {new.element.duck})" else None
    if old.parts or new.parts:
        return None
    if old == STRING:
        return _from_string(text, new)
    if new == STRING:
        return _to_string(text, old)
    if old == BOOLEAN or new == BOOLEAN:
        is_known = (old.is_integral and new == BOOLEAN) or (old == BOOLEAN and new.is_integral)
        return plain if is_known else None
    if old.is_number and new.is_number:
        return _number(text, old, new, plain)
    if old.is_moment and new.is_moment:
        return plain
    if old == TIMESTAMP and new == BIGINT:
        return f"epoch_us(date_trunc('second', CAST({text} AS TIMESTAMP))) // 1000000"
    return None


def _number(text: str, old: SqlDatatype, new: SqlDatatype, plain: str) -> str | None:
    if old.is_integral:
        return plain
    if new.is_integral:
        if old.is_fractional and new == BIGINT:  # Spark gives the largest number for 2^63
            whole = f"CASE WHEN {text} = 9223372036854775808::DOUBLE THEN 9223372036854775807 ELSE "
            return f"{whole}CAST(trunc({text}) AS BIGINT) END"
        return f"CAST(trunc({text}) AS {new.duck})"
    if new.is_decimal:
        return plain if old.is_decimal else None
    if old.is_decimal:
        if new == DOUBLE:
            return plain if old.precision <= 15 else f"CAST(CAST({text} AS VARCHAR) AS DOUBLE)"
        return None
    return plain if new == DOUBLE else None


def _to_string(text: str, old: SqlDatatype) -> str | None:
    if old.is_integral or old == BOOLEAN:
        return f"CAST({text} AS VARCHAR)"
    if old.is_decimal and old.scale <= 6:
        return f"CAST({text} AS VARCHAR)"
    if old.is_moment:
        shown = f"CAST(CAST({text} AS TIMESTAMP) AS VARCHAR)" if old != DATE else f"CAST({text} AS VARCHAR)"
        return f"CASE WHEN {text} IS NULL OR {in_years(text)} THEN {shown} ELSE {refuse('a year beyond 9999')} END"
    return None


def in_years(text: str) -> str:
    return f"year({text}) BETWEEN 1 AND 9999"


def _from_string(text: str, new: SqlDatatype) -> str | None:
    """Return the cast of a text: only spellings that mean the same to both engines are read."""
    bare = f"trim({text}, ' ' || chr(9) || chr(10) || chr(13))"
    if new == BOOLEAN:
        wrong = fail("[CAST_INVALID_INPUT] the text is no BOOLEAN")
        return (
            f"CASE WHEN lower({bare}) IN {TRUE} THEN true WHEN lower({bare}) IN {FALSE} THEN false "
            f"WHEN {text} IS NULL THEN NULL ELSE {wrong} END"
        )
    shapes = {"double": _DOUBLE, "date": _DATE, "timestamp": _TIME, "timestamp_ntz": _TIME, "decimal": _DECIMAL}
    shape = _INTEGER if new.is_integral else shapes.get(new.name)
    if shape is None:
        return None
    wrong = refuse(f"CAST of this text to {new}")
    if new.is_integral:
        wrong = fail(f"[CAST_INVALID_INPUT] the text is no {new}")
    inner = f"CAST({bare} AS {new.duck})"
    if new.is_moment:
        inner = f"CASE WHEN {bare} LIKE '0000%' THEN {wrong} ELSE {inner} END"
    matches = f"regexp_full_match({bare}, {text_literal(shape)})"
    return f"CASE WHEN {text} IS NULL THEN NULL WHEN {matches} THEN {inner} ELSE {wrong} END"


TYPES = {
    "TINYINT": TINYINT, "SMALLINT": SMALLINT, "INT": INT, "BIGINT": BIGINT, "FLOAT": FLOAT, "DOUBLE": DOUBLE,
    "BOOLEAN": BOOLEAN, "TEXT": STRING, "BINARY": BINARY, "DATE": DATE, "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP, "TIMESTAMPNTZ": NTZ,
}  # fmt: skip


def declared_kind(node: exp.Expr) -> SqlDatatype:
    """Return the type that a CAST names."""
    name = node.this.name if hasattr(node.this, "name") else str(node.this)
    if name == "DECIMAL":
        sizes = [int(each.name) for each in node.expressions] or [10, 0]
        return decimal(sizes[0], sizes[1] if len(sizes) > 1 else 0)
    if name == "ARRAY" and len(node.expressions) == 1:
        return array(declared_kind(node.expressions[0]))
    if name not in TYPES or node.expressions:
        raise UnsupportedSqlError(f"the type {node.sql('spark')}")
    return TYPES[name]


def literal_decimal(term: Term) -> SqlDatatype:
    """Return the decimal type of an operand beside a decimal: an integer literal has just its digits."""
    if isinstance(term.value, int) and term.kind.is_integral:
        return decimal(max(len(str(abs(term.value))), 1), 0)
    return as_decimal(term.kind)


def as_int(text: str) -> Term:
    return Term(f"CAST({text} AS INTEGER)", INT)


# Arguments of functions ---------------------------------------------------------------------------------------------

Terms = Sequence[Term]
Rule = Callable[[Terms], Term]
"""Renders a call of a function by its arguments. ValueError: it is not known for these."""


def rule(table: dict[str, Rule], *names: str) -> Callable[[Rule], Rule]:
    def keep(rule: Rule) -> Rule:
        table.update(dict.fromkeys(names, rule))
        return rule

    return keep


class _NotedTerms(list[Term]):
    """Arguments that note which of them a rule has read: one that a rule passes over would be left out in silence."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.unread = set(range(len(terms)))

    @overload
    def __getitem__(self, place: SupportsIndex) -> Term: ...
    @overload
    def __getitem__(self, place: slice) -> list[Term]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Term | list[Term]:
        places = range(len(self))
        self.unread -= set(places[place]) if isinstance(place, slice) else {places[place]}
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Term]:
        self.unread.clear()
        return super().__iter__()


def call(table: dict[str, Rule], name: str, terms: Terms) -> Term:
    """Return a call of a known function. UnsupportedSqlError: it is not known for these arguments."""
    noted = _NotedTerms(terms)
    with suppress(ValueError, IndexError, KeyError):
        found = table[name](noted)
        if not noted.unread:
            return found
    kinds = ", ".join(str(term.kind) for term in terms)
    raise UnsupportedSqlError(f"{name}({kinds})")


def of(term: Term, *kinds: SqlDatatype) -> str:
    """Return the text of an argument of one of these types; a literal text is read as a moment."""
    if term.kind in kinds:
        return term.text
    if term.kind.name == "void" or (term.kind.is_moment and kinds[0].is_moment):
        return cast(term, kinds[0]).text
    raise ValueError(term.kind)


def int_text(term: Term) -> str:
    if not term.kind.is_integral or term.kind == BIGINT:
        raise ValueError(term.kind)
    return cast(term, INT).text


def literal(term: Term) -> str:
    if not isinstance(term.value, str):
        raise ValueError("no literal text")
    return term.value


def whole_number(term: Term, lowest: int = 0, highest: int = 10_000) -> int:
    if not isinstance(term.value, int) or not lowest <= term.value <= highest:
        raise ValueError("no literal number")
    return term.value


def only(terms: Terms) -> Term:
    """Return the one argument of a call."""
    (term,) = terms
    return term


def two(terms: Terms) -> tuple[Term, Term]:
    """Return the two arguments of a call."""
    left, right = terms
    return left, right


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
    """A scope of one SELECT: the columns that its expressions can name."""

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
            known = [column.name for each in self.relations for column in each.columns]
            raise SqlError(f"There is no column `{shown}` in the tables of the query.{did_you_mean(parts[-1], known)}")
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
