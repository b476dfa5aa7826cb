"""Table functions: a child table whose rows a function makes of the rows of another table, its parent. Pure.

The table keeps its function in the property `table_function`, and in `table_function.made_of` the state of the parent
that its rows were made of. Both change in the commit of the rows. Each child has the key of its parent row, so the two
can be joined. A child is known by its content (`child_id`) or by a key that the function gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import DERIVED, Definition, Derived
from headwater.streams.log.checks import Check

TABLE_FUNCTION = "table_function"
MADE_OF = "table_function.made_of"
CHILD_ID, CHILD_NUMBER = "child_id", "child_number"
OWN_COLUMNS = (pa.field(CHILD_ID, pa.string(), nullable=False), pa.field(CHILD_NUMBER, pa.int32(), nullable=False))
"""The columns that a child has beside those of the function: its key among its siblings, and its place."""
SOURCE = "function"
"""The source that the changes of a child table come from."""


@dataclass(frozen=True)
class TableFunction(Derived):
    """The function of a child table. `type` is a struct of the columns that the function gives.

    `parent`: the name of the table whose rows it takes.
    `keys`: the key of the parent, which each child has too.
    `id_of`: the columns that tell a child from its siblings, by their content; None: the function gives the keys.
    `checks`: the expectations of the child table.
    """

    parent: str = ""
    keys: tuple[str, ...] = ()
    id_of: tuple[str, ...] | None = None
    checks: tuple[Check, ...] = ()

    @property
    def of(self) -> str:
        return f"the table {self.name}"

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns that the function gives."""
        return tuple(self.type)

    def to_text(self) -> str:
        """Return the function as the property `table_function`."""
        known = {
            "from": self.parent,
            "function": self.function,
            "inputs": list(self.inputs),
            "version": self.version,
            "keys": list(self.keys),
            "child_id": None if self.id_of is None else list(self.id_of),
            "checks": [[each.name, each.sql, each.action] for each in self.checks],
            "folder": self.folder,
        }
        return json.dumps({name: value for name, value in known.items() if name != "folder" or value is not None})

    def identity(self, of_code: str) -> list[object]:
        """Return what the children are made by. `of_code`: the identity of the function's text."""
        return [of_code, self.parent, list(self.keys), None if self.id_of is None else list(self.id_of)]


def names_function(property: str) -> bool:
    """Return True for a property that names a function of a user."""
    return property.startswith(DERIVED) or property == TABLE_FUNCTION


def table_function_of(name: str, schema: pa.Schema, properties: Mapping[str, str]) -> TableFunction | None:
    """Return the function of a table by its columns and properties, or None if its rows come from sources."""
    text = properties.get(TABLE_FUNCTION)
    if text is None:
        return None
    try:
        known = json.loads(text)
        keys, id_of = tuple(known["keys"]), known["child_id"]
        own = keys if id_of is None else (*keys, CHILD_ID, CHILD_NUMBER)
        given = pa.struct([field for field in schema if field.name not in own])
        return TableFunction(
            name,
            known["function"],
            tuple(known["inputs"]),
            given,
            known["version"],
            known.get("folder"),
            known["from"],
            keys,
            None if id_of is None else tuple(id_of),
            tuple(Check(*each) for each in known["checks"]),
        )
    except (ValueError, KeyError, TypeError):
        raise InvalidInputError(f"{TABLE_FUNCTION} = {text[:200]!r} of {name} is not understood.") from None


def function_of(name: str, definition: Definition) -> TableFunction | None:
    """Return the function of a stream table, or None if its rows come from sources."""
    return table_function_of(name, definition.schema, definition.properties)


@dataclass(frozen=True)
class MadeOf:
    """The state that the rows of a child table were made of.

    `function`: what made them. `parent`: the home and the position of the parent. `position`: of the child itself.
    """

    function: list[object]
    parent: tuple[str, int]
    position: int

    def to_text(self) -> str:
        return json.dumps([self.function, list(self.parent), self.position])


def made_of(properties: Mapping[str, str]) -> MadeOf | None:
    """Return the state that the rows of a child table were made of; None: no commit made them."""
    text = properties.get(MADE_OF)
    if text is None:
        return None
    function, (home, position), own = json.loads(text)
    return MadeOf(function, (home, position), own)


def why_anew(known: MadeOf | None, function: list[object], home: str, position: int) -> str:
    """Return why all children have to be made again, or an empty text if they can follow the changes of the parent.

    `home` identifies the parent as it is now, `position` is the child's own.
    """
    if known is None:
        return "it was never made"
    if known.function != function:
        return "its function changed"
    if known.parent[0] != home:
        return "its parent became another table"
    return "" if known.position == position else "its rows were changed by others"
