"""Expressions of a parsed query as expressions of DuckDB: node by node, with the types that Spark gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headwater.imports import exp
from headwater.sql import functions, operators
from headwater.sql.casts import (
    Relation,
    Scope,
    ScopeColumn,
    Term,
    call,
    cast,
    declared_kind,
    field_of,
    text_literal,
    to_common,
    try_cast,
)
from headwater.sql.functions import AGGREGATES, WINDOWS
from headwater.sql.operators import PARTS
from headwater.sql.spark_parser import SqlError, UnsupportedSqlError
from headwater.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    STRING,
    VOID,
    SqlDatatype,
    array,
    decimal,
    quoted,
)

COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM",
}  # fmt: skip
ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
BITWISE: dict[type[exp.Expr], str] = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^"}
SHOWN: dict[type[exp.Expr], str] = {
    exp.Lambda: "a lambda outside transform() and filter()",
    exp.Placeholder: "a parameter",
    exp.Lateral: "LATERAL VIEW",
}
_KNOWN = """this expression expressions is_string to table db catalog typed safe ifs default low high query negate
quoted partition_by order spec over"""
KNOWN = frozenset(_KNOWN.split())
"""The parts of nodes that are translated; a node with another one is refused."""
MAX_TEXT = 1_000_000
"""The longest translation, in characters: some expressions write what they are made of twice."""
_DECIMAL = re.compile(r"(\d*)\.(\d*)")


Subquery = Callable[["exp.Expr", Scope], tuple[str, tuple[ScopeColumn, ...]]]


class Expressions:
    """Translates the expressions of one SELECT. `subquery`: translates a query inside an expression.

    `lambdas`: the number of lambdas around an expression.
    """

    def __init__(self, scope: Scope, subquery: Subquery, lambdas: int = 0) -> None:
        self.scope = scope
        self._subquery = subquery
        self._lambdas = lambdas

    def condition(self, node: exp.Expr) -> str:
        term = self.term(node)
        if term.kind not in (BOOLEAN, VOID):
            raise SqlError(f"A condition is {term.kind}, not true or false.")
        return term.text

    def term(self, node: exp.Expr) -> Term:
        """Return the translation of one node; UnsupportedSqlError names a node, or a part of one, that has none."""
        for key, value in node.args.items():
            if value and key not in KNOWN:
                raise UnsupportedSqlError(f"{type(node).__name__.upper()} with {key.strip('_').upper()}")
        term = self._term(node)
        if len(term.text) > MAX_TEXT:
            raise UnsupportedSqlError("an expression that is nested this deep")
        return operators.logical("AND", [Term(f"(NOT {term.text})", BOOLEAN)]) if node.args.get("negate") else term

    def _term(self, node: exp.Expr) -> Term:
        if type(node) in COMPARISONS:
            return operators.compare(COMPARISONS[type(node)], self.term(node.this), self.term(node.expression))
        if type(node) in ARITHMETIC:
            return self._arithmetic(node)
        if type(node) in BITWISE:
            self._check_mixed(node, tuple(BITWISE))
            return operators.bitwise(BITWISE[type(node)], self.term(node.this), self.term(node.expression))
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise UnsupportedSqlError(SHOWN.get(type(node)) or type(node).__name__.upper())
        return handler(self, node)

    def terms(self, nodes: Sequence[exp.Expr]) -> list[Term]:
        return [self.term(node) for node in nodes]

    # Names and literals ---------------------------------------------------------------------------------------------

    def _column(self, node: exp.Column) -> Term:
        if isinstance(node.this, exp.Star):
            raise UnsupportedSqlError("* inside an expression")
        return self.scope.find([part.name for part in node.parts])

    def _dot(self, node: exp.Expr) -> Term:
        if isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Identifier):
            return self.scope.find([*(part.name for part in node.this.parts), node.expression.name])
        if not isinstance(node.expression, exp.Identifier):
            raise UnsupportedSqlError("a call after a dot")
        return field_of(self.term(node.this), [node.expression.name])

    def _literal(self, node: exp.Expr) -> Term:
        text = node.this
        if node.is_string:
            return Term(text_literal(text), STRING, text)
        if text.isdecimal():
            return operators.number(int(text))
        found = _DECIMAL.fullmatch(text)
        if found:
            whole, part = found[1].lstrip("0"), found[2]
            kind = decimal(max(len(whole) + len(part), 1), len(part))
            if kind.precision > 38:
                raise UnsupportedSqlError("a decimal of more than 38 digits")
            return Term(f"CAST({text_literal(text)} AS {kind.duck})", kind)
        return Term(f"CAST({text_literal(text)} AS DOUBLE)", DOUBLE)

    def _cast(self, node: exp.Cast) -> Term:
        kind = declared_kind(node.to)
        inner = node.this
        if isinstance(inner, exp.Literal) and inner.is_string and kind.is_moment and not node.args.get("safe"):
            return _moment_literal(inner.this, kind)
        term = self.term(inner)
        found = cast(term, kind) if not node.args.get("safe") else try_cast(term, kind)
        return Term(found.text, kind, term.value) if kind.is_integral and isinstance(term.value, int) else found

    # Operators ------------------------------------------------------------------------------------------------------

    def _arithmetic(self, node: exp.Expr) -> Term:
        self._check_mixed(node, (exp.DPipe,))
        sides = node.this, node.expression
        symbol = ARITHMETIC[type(node)]
        if isinstance(sides[1], exp.Interval) and symbol in "+-":
            return self._shifted(sides[0], sides[1], 1 if symbol == "+" else -1)
        if isinstance(sides[0], exp.Interval) and symbol == "+":
            return self._shifted(sides[1], sides[0], 1)
        left, right = self.terms(sides)
        if left.kind == DATE and right.kind.is_integral and symbol in "+-":
            return functions.FUNCTIONS["date_add" if symbol == "+" else "date_sub"]([left, right])
        return operators.arithmetic(symbol, left, right)

    def _negative(self, node: exp.Expr) -> Term:
        inner = node.this
        if isinstance(inner, exp.Literal) and not inner.is_string and inner.this.isdecimal():
            return operators.number(-int(inner.this))  # -2147483648 is an INT
        return operators.negative(self.term(inner))

    def _shifted(self, moment: exp.Expr, interval: exp.Expr, sign: int) -> Term:
        amount, unit = interval.this, interval.args.get("unit")
        if not (
            isinstance(amount, exp.Literal) and re.fullmatch(r"-?\d{1,6}", amount.this) and isinstance(unit, exp.Var)
        ):
            raise UnsupportedSqlError("an INTERVAL that is no whole number of one unit")
        return operators.add_interval(self.term(moment), sign * int(amount.this), unit.name.upper().rstrip("S"))

    def _check_mixed(self, node: exp.Expr, others: tuple[type, ...]) -> None:
        """Refuse operators side by side whose order differs between parsers."""
        for side in (node.this, node.expression):
            if isinstance(side, others) and type(side) is not type(node):
                raise UnsupportedSqlError("'||' or bitwise operators beside others without parentheses")

    def _pipes(self, node: exp.Expr) -> Term:
        self._check_mixed(node, tuple(ARITHMETIC))
        return call(functions.FUNCTIONS, "concat", self.terms([node.this, node.expression]))

    def _connected(self, node: exp.Expr) -> Term:
        symbol = "AND" if isinstance(node, exp.And) else "OR"
        return operators.logical(symbol, self.terms(list(node.flatten(unnest=False))))

    def _not(self, node: exp.Expr) -> Term:
        return Term(f"(NOT {operators.logical('NOT', [self.term(node.this)]).text})", BOOLEAN)

    def _is(self, node: exp.Expr) -> Term:
        term, what = self.term(node.this), node.expression
        if isinstance(what, exp.Null):
            return Term(f"({term.text} IS NULL)", BOOLEAN)
        if isinstance(what, exp.Boolean) and term.kind == BOOLEAN:
            return Term(f"({term.text} IS NOT DISTINCT FROM {'true' if what.this else 'false'})", BOOLEAN)
        raise UnsupportedSqlError("IS with something else than NULL, TRUE and FALSE")

    def _in(self, node: exp.Expr) -> Term:
        asked = self.term(node.this)
        query = node.args.get("query")
        if query is not None:
            text, columns = self._subquery(query.unnest() if isinstance(query, exp.Subquery) else query, self.scope)
            if len(columns) != 1:
                raise SqlError("A subquery of IN has one column.")
            pair, kind = to_common([asked, Term(f'i."{columns[0].text}"', columns[0].kind)], "IN")
            if kind.parts:
                raise UnsupportedSqlError(f"IN of {kind}")
            return Term(f"({pair[0].text} IN (SELECT {pair[1].text} FROM ({text}) AS i))", BOOLEAN)
        if not node.expressions or any(
            value for key, value in node.args.items() if key not in ("this", "expressions", "negate")
        ):
            raise UnsupportedSqlError("IN without a list of values")
        found, kind = to_common([asked, *self.terms(node.expressions)], "IN")
        if kind.parts:
            raise UnsupportedSqlError(f"IN of {kind}")
        return Term(f"({found[0].text} IN ({', '.join(each.text for each in found[1:])}))", BOOLEAN)

    def _between(self, node: exp.Expr) -> Term:
        if node.args.get("symmetric"):
            raise UnsupportedSqlError("BETWEEN SYMMETRIC")
        term, low, high = self.terms([node.this, node.args["low"], node.args["high"]])
        lower, upper = operators.compare(">=", term, low), operators.compare("<=", term, high)
        return operators.logical("AND", [lower, upper])

    def _like(self, node: exp.Expr) -> Term:
        return operators.like(self.term(node.this), self.term(node.expression))

    def _like_any_case(self, node: exp.Expr) -> Term:
        pattern = self.term(node.expression)
        if not isinstance(pattern.value, str) or not pattern.value.isascii():
            raise UnsupportedSqlError("ILIKE with a pattern that is no literal text in ASCII")
        low = pattern.value.lower()
        left = call(functions.FUNCTIONS, "lower", [self.term(node.this)])
        return operators.like(left, Term(text_literal(low), STRING, low))

    def _escaped(self, node: exp.Expr) -> Term:
        sign = node.expression
        if not isinstance(node.this, exp.Like) or not isinstance(sign, exp.Literal) or len(sign.this) != 1:
            raise UnsupportedSqlError("this ESCAPE")
        return operators.like(self.term(node.this.this), self.term(node.this.expression), sign.this)

    def _case(self, node: exp.Expr) -> Term:
        conditions: list[str] = []
        for each in node.args["ifs"]:
            if node.this is not None:
                conditions.append(operators.compare("=", self.term(node.this), self.term(each.this)).text)
            else:
                conditions.append(self.condition(each.this))
        default = node.args.get("default")
        results = self.terms([each.args["true"] for each in node.args["ifs"]])
        results.append(self.term(default) if default is not None else Term("NULL", VOID))
        found, kind = to_common(results, "CASE")
        whens = " ".join(f"WHEN {when} THEN {each.text}" for when, each in zip(conditions, found, strict=False))
        return Term(f"CASE {whens} ELSE {found[-1].text} END", kind)

    def _bracket(self, node: exp.Expr) -> Term:
        if len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Slice):
            raise UnsupportedSqlError("a slice")
        return operators.item(self.term(node.this), self.term(node.expressions[0]), 0)

    def _extract(self, node: exp.Expr) -> Term:
        name = node.this.name.lower()
        if name == "second" or name not in PARTS:
            raise UnsupportedSqlError(f"EXTRACT({name.upper()} FROM ...)")
        return call(PARTS, name, [self.term(node.expression)])

    # Calls ----------------------------------------------------------------------------------------------------------

    def _call(self, node: exp.Expr) -> Term:
        name = str(node.this).lower()
        if name in AGGREGATES:
            return self._aggregate(node, "", "")
        if name in ("transform", "filter"):
            return self._of_elements(node, name)
        if name not in functions.FUNCTIONS and name != "struct":
            raise UnsupportedSqlError(f"the function {name}()")
        if name == "struct":
            return functions.struct_of([self._struct_field(each) for each in node.expressions])
        if name == "position" and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.In):
            raise UnsupportedSqlError("POSITION(... IN ...) (write locate(a, b))")
        return call(functions.FUNCTIONS, name, self.terms(node.expressions))

    def _of_elements(self, node: exp.Expr, name: str) -> Term:
        """Return transform() or filter() of an array with a lambda of one element, which may read columns too."""
        made = node.expressions[-1] if node.expressions else None
        if len(node.expressions) != 2 or not isinstance(made, exp.Lambda) or len(made.expressions) != 1:
            raise UnsupportedSqlError(f"{name}() of something else than an array and a lambda of one element")
        held, word = self.term(node.expressions[0]), made.expressions[0].name
        if held.kind.name != "array":
            raise UnsupportedSqlError(f"{name}() of {held.kind}")
        element = ScopeColumn(word, held.kind.element, quoted(f"e{self._lambdas}"))
        scope = Scope([Relation((), (element,))], outer=self.scope)
        body = Expressions(scope, self._subquery, self._lambdas + 1).term(made.this)
        if name == "filter" and body.kind != BOOLEAN:
            raise SqlError(f"The lambda of filter() answers {body.kind}, not true or false.")
        duck = "list_filter" if name == "filter" else "list_transform"
        kind = held.kind if name == "filter" else array(body.kind)
        return Term(f"{duck}({held.text}, lambda {element.text}: {body.text})", kind)

    def _struct_field(self, node: object) -> tuple[str, Term]:
        if isinstance(node, (exp.Alias, exp.Column)):
            return node.alias_or_name, self.term(node.unalias())
        raise UnsupportedSqlError("struct() of a value without a name (write AS)")

    def _aggregate(self, node: exp.Expr, filtered: str, over: str) -> Term:
        """Return the call of an aggregate; `filtered` and `over` follow it."""
        name = str(node.this).lower()
        asked = list(node.expressions)
        distinct = len(asked) == 1 and isinstance(asked[0], exp.Distinct)
        asked = list(asked[0].expressions) if distinct else asked
        if name == "count" and (not asked or isinstance(asked[0], exp.Star) or len(asked) > 1):
            if distinct or len(asked) != 1:
                raise UnsupportedSqlError("count of several columns")
            return Term(f"CAST(count(*){filtered}{over} AS BIGINT)", BIGINT)
        terms = self.terms(asked)
        found = call(AGGREGATES, name, terms)
        text = found.text
        if distinct:
            if name not in ("count", "sum", "avg", "min", "max"):
                raise UnsupportedSqlError(f"{name}(DISTINCT ...)")
            text = text.replace("(", "(DISTINCT ", 1)
        if name in ("collect_list", "collect_set", "array_agg"):
            if filtered or over:
                raise UnsupportedSqlError(f"{name}() with FILTER or OVER")
            kept = f"{text} FILTER (WHERE {terms[0].text} IS NOT NULL)"
            return Term(f"coalesce({kept}, CAST([] AS {found.kind.duck}))", found.kind)
        text = f"{text}{filtered}{over}"
        return Term(text if found.kind.is_opaque else f"CAST({text} AS {found.kind.duck})", found.kind)

    def _filter(self, node: exp.Expr) -> Term:
        if not isinstance(node.this, exp.Anonymous) or str(node.this.this).lower() not in AGGREGATES:
            raise UnsupportedSqlError("FILTER of something else than an aggregate")
        return self._aggregate(node.this, f" FILTER (WHERE {self.condition(node.expression.this)})", "")

    def _window(self, node: exp.Expr) -> Term:
        filtered, called = "", node.this
        if isinstance(called, exp.Filter):
            filtered, called = f" FILTER (WHERE {self.condition(called.expression.this)})", called.this
        if not isinstance(called, exp.Anonymous):
            raise UnsupportedSqlError("IGNORE NULLS or another form of a window function")
        over = f" OVER ({self._window_text(node)})"
        name = str(called.this).lower()
        if name in AGGREGATES:
            return self._aggregate(called, filtered, over)
        if name not in WINDOWS or filtered:
            raise UnsupportedSqlError(f"the window function {name}()")
        found = call(WINDOWS, name, self.terms(called.expressions))
        return Term(f"CAST({found.text}{over} AS {found.kind.duck})", found.kind)

    def _window_text(self, node: exp.Expr) -> str:
        for key, value in node.args.items():
            if value and key not in ("this", "partition_by", "order", "spec", "over"):
                raise UnsupportedSqlError("a named window")
        parts = []
        if node.args.get("partition_by"):
            parts.append("PARTITION BY " + ", ".join(term.text for term in self.terms(node.args["partition_by"])))
        order = node.args.get("order")
        if order is not None:
            parts.append(
                "ORDER BY " + ", ".join(self.ordered(each, self.term(each.this)) for each in order.expressions)
            )
        spec = node.args.get("spec")
        if spec is not None:
            if str(spec.args.get("kind")).upper() != "ROWS" or spec.args.get("exclude"):
                raise UnsupportedSqlError("a window of RANGE")
            start, end = (_bound(spec.args, side) for side in ("start", "end"))
            parts.append(f"ROWS BETWEEN {start} AND {end}")
        return " ".join(parts)

    def ordered(self, node: exp.Expr, term: Term) -> str:
        """Return one item of ORDER BY: NULL is the smallest value in Spark."""
        if term.kind.parts or term.kind.is_opaque:
            raise UnsupportedSqlError(f"ORDER BY of {term.kind}")
        desc = bool(node.args.get("desc"))
        first = node.args.get("nulls_first")
        first = not desc if first is None else first
        return f"{term.text} {'DESC' if desc else 'ASC'} NULLS {'FIRST' if first else 'LAST'}"

    def _scalar(self, node: exp.Expr) -> Term:
        if node.args.get("alias"):
            raise UnsupportedSqlError("a subquery with a name inside an expression")
        text, columns = self._subquery(node.unnest(), self.scope)
        if len(columns) != 1:
            raise SqlError("A subquery that is a value has one column.")
        return Term(f"({text})", columns[0].kind)

    def _exists(self, node: exp.Expr) -> Term:
        inner = node.this.unnest() if isinstance(node.this, exp.Subquery) else node.this
        return Term(f"EXISTS ({self._subquery(inner, self.scope)[0]})", BOOLEAN)


def _moment_literal(text: str, kind: SqlDatatype) -> Term:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?", text) or text.startswith("0000"):
        return cast(Term(text_literal(text), STRING), kind)
    if kind == DATE and len(text) > 10:
        return cast(Term(text_literal(text), STRING), kind)
    return Term(f"CAST({text_literal(text)} AS {kind.duck})", kind)


def _bound(args: Mapping[str, object], side: str) -> str:
    value, way = args.get(side), str(args.get(f"{side}_side") or "").upper()
    value = value.upper() if isinstance(value, str) else value
    if value in ("CURRENT ROW", None):
        return "CURRENT ROW"
    if value == "UNBOUNDED":
        return f"UNBOUNDED {way}"
    if isinstance(value, exp.Literal) and value.this.isdecimal():
        return f"{value.this} {way}"
    raise UnsupportedSqlError("this frame of a window")


_HANDLERS: dict[type, Callable[[Expressions, Any], Term]] = {
    exp.Column: Expressions._column,
    exp.Identifier: lambda self, node: self.scope.find([node.name]),
    exp.Dot: Expressions._dot,
    exp.Literal: Expressions._literal,
    exp.RawString: lambda self, node: Term(text_literal(node.this), STRING, node.this),
    exp.Boolean: lambda self, node: Term("true" if node.this else "false", BOOLEAN),
    exp.Null: lambda self, node: Term("NULL", VOID),
    exp.Paren: lambda self, node: self.term(node.this),
    exp.Cast: Expressions._cast,
    exp.TryCast: Expressions._cast,
    exp.Div: lambda self, node: operators.divide(self.term(node.this), self.term(node.expression)),
    exp.IntDiv: lambda self, node: operators.whole_division(self.term(node.this), self.term(node.expression)),
    exp.Mod: lambda self, node: operators.remainder(self.term(node.this), self.term(node.expression)),
    exp.Neg: lambda self, node: self._negative(node),
    exp.DPipe: Expressions._pipes,
    exp.And: Expressions._connected,
    exp.Or: Expressions._connected,
    exp.Not: Expressions._not,
    exp.Is: Expressions._is,
    exp.In: Expressions._in,
    exp.Between: Expressions._between,
    exp.Like: Expressions._like,
    exp.ILike: Expressions._like_any_case,
    exp.RegexpLike: lambda self, node: call(functions.FUNCTIONS, "rlike", self.terms([node.this, node.expression])),
    exp.Escape: Expressions._escaped,
    exp.Case: Expressions._case,
    exp.Bracket: Expressions._bracket,
    exp.Extract: Expressions._extract,
    exp.Anonymous: Expressions._call,
    exp.Filter: Expressions._filter,
    exp.Window: Expressions._window,
    exp.Subquery: Expressions._scalar,
    exp.Select: lambda self, node: self._scalar(exp.Subquery(this=node)),
    exp.Exists: Expressions._exists,
    exp.CurrentDate: lambda self, node: functions.FUNCTIONS["current_date"]([]),
    exp.CurrentTimestamp: lambda self, node: functions.FUNCTIONS["now"]([]),
}
"""The nodes of a tree that have a translation; all others are refused by name."""
