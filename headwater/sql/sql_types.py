"""Types of Spark SQL values: from Arrow, to DuckDB, and the type that two of them have in common under ANSI."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import InvalidInputError
from headwater.types import SparkType, spark_type

INTEGRAL = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""The integer types from narrow to wide, each with the precision of the decimal that holds it."""
MAX_PRECISION = 38
_DUCK = {
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
    "void": "NULL",
}
_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


@dataclass(frozen=True)
class SqlDatatype:
    """A type of Spark SQL. `parts`: the fields of a struct, the one element of an array, key and value of a map."""

    name: str
    precision: int = 0
    scale: int = 0
    parts: tuple[tuple[str, SqlDatatype], ...] = ()

    @property
    def is_integral(self) -> bool:
        return self.name in INTEGRAL

    @property
    def is_fractional(self) -> bool:
        return self.name in ("float", "double")

    @property
    def is_decimal(self) -> bool:
        return self.name == "decimal"

    @property
    def is_number(self) -> bool:
        return self.is_integral or self.is_fractional or self.is_decimal

    @property
    def is_moment(self) -> bool:
        return self.name in ("date", "timestamp", "timestamp_ntz")

    @property
    def is_opaque(self) -> bool:
        """True for a type that the embedded engine only passes on."""
        return self.name not in _DUCK and self.name not in ("decimal", "array", "struct", "map")

    @property
    def element(self) -> SqlDatatype:
        return self.parts[0][1]

    @property
    def duck(self) -> str:
        """The type of DuckDB that holds the same values."""
        if self.is_decimal:
            return f"DECIMAL({self.precision}, {self.scale})"
        if self.name == "array":
            return f"{self.element.duck}[]"
        if self.name == "map":
            return f"MAP({self.parts[0][1].duck}, {self.parts[1][1].duck})"
        if self.name == "struct":
            fields = ", ".join(f"{quoted(name)} {kind.duck}" for name, kind in self.parts)
            return f"STRUCT({fields})"
        return _DUCK[self.name]

    def __str__(self) -> str:
        if self.is_decimal:
            return f"DECIMAL({self.precision},{self.scale})"
        if self.name == "array":
            return f"ARRAY<{self.element}>"
        return self.name.upper()


BOOLEAN, STRING, BINARY, DATE = (
    SqlDatatype("boolean"),
    SqlDatatype("string"),
    SqlDatatype("binary"),
    SqlDatatype("date"),
)
TIMESTAMP, NTZ, VOID = SqlDatatype("timestamp"), SqlDatatype("timestamp_ntz"), SqlDatatype("void")
TINYINT, SMALLINT, INT, BIGINT = (SqlDatatype(name) for name in INTEGRAL)
FLOAT, DOUBLE = SqlDatatype("float"), SqlDatatype("double")


def decimal(precision: int, scale: int) -> SqlDatatype:
    return SqlDatatype("decimal", precision, scale)


def array(element: SqlDatatype) -> SqlDatatype:
    return SqlDatatype("array", parts=(("element", element),))


def struct(fields: Sequence[tuple[str, SqlDatatype]]) -> SqlDatatype:
    return SqlDatatype("struct", parts=tuple(fields))


def map_(parts: Sequence[tuple[str, SqlDatatype]]) -> SqlDatatype:
    return SqlDatatype("map", parts=tuple(parts))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def kind_of(arrow: object) -> SqlDatatype:
    """Return the type that Spark gives to values of an Arrow type; an opaque one where it has none."""
    try:
        return _kind(spark_type(arrow))
    except InvalidInputError:
        return SqlDatatype(str(arrow))


def _kind(spark: SparkType) -> SqlDatatype:
    if isinstance(spark, str):
        found = _DECIMAL.fullmatch(spark)
        return decimal(int(found[1]), int(found[2])) if found else SqlDatatype(_NAMES.get(spark, spark))
    if spark["type"] == "array":
        element = _kind(spark["elementType"])
        return SqlDatatype(f"array of {element}") if element.is_opaque else array(element)
    if spark["type"] == "struct":
        fields = [(each["name"], _kind(each["type"])) for each in spark["fields"]]
        return SqlDatatype("struct of special types") if any(kind.is_opaque for _, kind in fields) else struct(fields)
    if spark["type"] == "map":
        parts = tuple((name, _kind(spark[f"{name}Type"])) for name in ("key", "value"))
        return SqlDatatype("map of special types") if any(kind.is_opaque for _, kind in parts) else map_(parts)
    return SqlDatatype(spark["type"])


def as_decimal(kind: SqlDatatype) -> SqlDatatype:
    """Return the decimal that holds every value of an integer type."""
    return decimal(INTEGRAL[kind.name], 0) if kind.is_integral else kind


def common(a: SqlDatatype, b: SqlDatatype) -> SqlDatatype | None:
    """Return the type that Spark gives to both, under ANSI, of values that it converts without a CAST; else None."""
    if a == b or b == VOID:
        return a
    if a == VOID:
        return b
    if a.is_number and b.is_number:
        return _common_number(a, b)
    if a.is_moment and b.is_moment:
        return TIMESTAMP if TIMESTAMP in (a, b) else NTZ
    if a.name == b.name == "array":
        inner = common(a.element, b.element)
        return array(inner) if inner else None
    return None


def _common_number(a: SqlDatatype, b: SqlDatatype) -> SqlDatatype | None:
    if a.is_integral and b.is_integral:
        return max(a, b, key=lambda kind: INTEGRAL[kind.name])
    if a.is_fractional or b.is_fractional:
        return FLOAT if a == b == FLOAT else DOUBLE
    a, b = as_decimal(a), as_decimal(b)
    scale = max(a.scale, b.scale)
    precision = max(a.precision - a.scale, b.precision - b.scale) + scale
    return decimal(precision, scale) if precision <= MAX_PRECISION else None
