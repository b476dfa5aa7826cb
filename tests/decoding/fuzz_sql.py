"""SQL conditions for the fuzzer: words in any order, and expressions of every function that requests may call."""

from __future__ import annotations

import random
from collections.abc import Callable

from headwater.tables.expressions import _CHOICE, _JSON, _MATH, _NESTED, _TEXT, _TIME, GROWING

WORDS = (
    "a", "b", "s", "id", "1", "2.5", "'x'", "NULL", "true", "(", ")", ",", "+", "-", "*", "/", "%", "=", "<", ">=",
    "<>", "AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "AS",
    "bigint", "lower", "regexp_like", "array_has", "tags", "v", "date_trunc", "'day'", "[", "]", "||", "::", ".",
    '"s"', "`s`", "--", "$1", "9223372036854775807", "1e308", "interval", "'\\'", "coalesce", "left", "struct",
    "x'00'",
)  # fmt: skip
FRAMES = ("id = {}", "s LIKE {}", "({}) AND id > 1", "coalesce(id, {}) = 1", "id IN ({})")
FUNCTIONS = sorted({*" ".join((_CHOICE, _JSON, _MATH, _NESTED, _TEXT, _TIME)).split(), *GROWING})
OPERATORS = ("+", "-", "*", "/", "%", "=", "<>", "<", ">=", "AND", "OR", "||", "&", "|", "^", "<<", ">>", "LIKE", "~")
TYPES = ("bigint", "int", "smallint", "double", "float", "text", "boolean", "date", "timestamp", "decimal(38, 10)",
         "decimal(3, 2)", "bytea", "time", "interval")  # fmt: skip
PARTS = ("'year'", "'month'", "'week'", "'day'", "'hour'", "'microsecond'", "'nanosecond'", "'epoch'", "'no'")
LEAVES = (
    "id", "id", "s", "s", "v", "tags", "NULL", "true", "0", "1", "-1", "7", "63", "64", "65536", "2147483647",
    "-2147483648", "9223372036854775807", "-9223372036854775808", "0.0", "-0.0", "2.5", "1e308", "1e-308",
    "'NaN'::double", "'inf'::double", "''", "'a'", "'é€😀'", "'%_\\\\'", "'2024-02-29'", "'9999-12-31T23:59:59Z'",
    "'{}'",
    "'[1,2,{\"a\":null}]'", "'$.a'", "'(a|b)*+'", "'(('", "date '2024-02-29'", "timestamp '1677-09-21 00:12:44'",
    "timestamp '2262-04-11 23:47:16.854775807'", "interval '1 month'", "interval '-999999 years'", "[]", "[1, 2]",
    "['x', NULL]", "[[1], []]", "x'00ff'", "'UTC'", "'%Y-%m-%d'", "'sha256'", "'hex'", "'base64'",
)  # fmt: skip


def sql(chance: random.Random) -> str:
    """Return words of SQL in a random order, in which some sequence may be an expression."""
    made = " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, 14)))
    if chance.random() < 0.5:
        made = chance.choice(FRAMES).format(made)
    if chance.random() < 0.05:
        depth = chance.randrange(1, 400)
        made = "(" * depth + made + ")" * depth
    return made


def accepted(chance: random.Random) -> str:
    """Return a condition that is well formed, of values at the ends of their types; its types may not fit."""
    made = _value(chance, chance.randrange(1, 5))
    tests = (
        "{} IS NULL",
        "{} IS NOT NULL",
        "{} = {}",
        "{} IS DISTINCT FROM {}",
        "({}) IN ({}, NULL)",
        "{}::text = 'a'",
    )
    test = chance.choice(tests)
    return test.format(*(made for _ in range(test.count("{}"))))


def _value(chance: random.Random, depth: int) -> str:
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(LEAVES)
    return chance.choice(FORMS)(chance, depth - 1)


def _call(chance: random.Random, depth: int) -> str:
    name, count = chance.choice(FUNCTIONS), chance.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
    values = [_value(chance, depth) for _ in range(count)]
    if values and name in ("date_part", "date_trunc", "date_bin", "datepart", "datetrunc"):
        values[0] = chance.choice(PARTS)
    return f"{name}({', '.join(values)})"


def _operator(chance: random.Random, depth: int) -> str:
    return f"({_value(chance, depth)} {chance.choice(OPERATORS)} {_value(chance, depth)})"


def _cast(chance: random.Random, depth: int) -> str:
    word = chance.choice(("CAST", "try_cast"))
    return f"{word}({_value(chance, depth)} AS {chance.choice(TYPES)})"


def _case(chance: random.Random, depth: int) -> str:
    tested, found, other = (_value(chance, depth) for _ in range(3))
    return f"CASE WHEN {tested} IS NULL THEN {found} ELSE {other} END"


def _element(chance: random.Random, depth: int) -> str:
    return f"({_value(chance, depth)})[{_value(chance, depth)}]"


def _between(chance: random.Random, depth: int) -> str:
    return f"({' '.join((_value(chance, depth), 'BETWEEN', _value(chance, depth), 'AND', _value(chance, depth)))})"


Form = Callable[[random.Random, int], str]
FORMS: tuple[Form, ...] = (_call, _call, _call, _call, _operator, _operator, _cast, _case, _element, _between)
