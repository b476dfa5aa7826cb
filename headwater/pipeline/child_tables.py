"""Child tables of a pipeline file: `from` and `function` of a [table], as columns, keys and a property. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.pipeline.file_values import as_text, as_texts, naming_section
from headwater.schema_text import parse_schema
from headwater.streams.log.checks import Check
from headwater.streams.table_functions import CHILD_ID, OWN_COLUMNS, TableFunction
from headwater.wording import did_you_mean

CHILD = ("from", "function", "inputs", "version", "child_id")
"""Names of a [table] that only a child table has."""
NOT_OF_CHILDREN = ("sequence_by", "lateness", "contract")
"""Names that a child table cannot have: its rows have no order of their own, and no columns that the file lacks."""


def parents_first(tables: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the names of tables, each after its parent. InvalidInput (13) for an unknown parent, and for a circle."""
    waiting = {name: values.get("from") for name, values in tables.items()}
    for name, parent in waiting.items():
        if parent is not None and parent not in waiting:
            raise InvalidInputError(
                f'[table."{name}"]: from {parent!r} is no table of this file.{did_you_mean(str(parent), list(tables))}'
            )
    done: list[str] = []
    while waiting:
        free = [name for name, parent in waiting.items() if parent not in waiting]
        if not free:
            raise InvalidInputError(f"{', '.join(sorted(waiting))} are made of each other in a circle.")
        done += free
        waiting = {name: parent for name, parent in waiting.items() if name not in free}
    return done


def check_plain(where: str, values: Mapping[str, object]) -> None:
    """Raise InvalidInput (13) for a table without `from` that has names of a child table."""
    for name in CHILD:
        if name in values:
            raise InvalidInputError(f"{where}: {name} is of a table that a function makes: write from = too.")


def child_columns(where: str, values: Mapping[str, object], parent_keys: Sequence[str]) -> tuple[pa.Schema, list[str]]:
    """Return the columns and keys of a child table: those of the file, and `child_id` if the file names no keys."""
    for name in NOT_OF_CHILDREN:
        if name in values:
            raise InvalidInputError(f"{where} has {name!r}: rows of a table with `from` follow those of its parent.")
    if not parent_keys:
        raise InvalidInputError(f"{where}: {values['from']} has no keys, so its rows cannot be told apart.")
    with naming_section(where):
        schema = parse_schema(as_text(values.get("schema"), "schema"))
    lacks = [name for name in parent_keys if name not in schema.names]
    if lacks:
        raise InvalidInputError(f"{where}: its schema has no {lacks[0]!r}, which is a key of its parent.")
    if "keys" not in values:
        return pa.schema([*schema, *OWN_COLUMNS]), [*parent_keys, CHILD_ID]
    keys = as_texts(values["keys"], f"{where} keys")
    if not set(parent_keys) <= set(keys):
        raise InvalidInputError(f"{where}: its keys begin with those of its parent, {', '.join(parent_keys)}.")
    if "child_id" in values:
        raise InvalidInputError(f"{where} has keys and child_id: write one of them.")
    return schema, list(keys)


def child_function(
    name: str, values: Mapping[str, object], schema: pa.Schema, parent_keys: Sequence[str], checks: tuple[Check, ...]
) -> TableFunction:
    """Return the function of a child table."""
    where = f'[table."{name}"]'
    for needed in ("function", "inputs"):
        if needed not in values:
            raise InvalidInputError(f"{where} needs {needed!r}.")
    own = {*parent_keys, *(field.name for field in OWN_COLUMNS)} if "keys" not in values else set(parent_keys)
    given = [field for field in schema if field.name not in own]
    names = [field.name for field in given]
    id_of = as_texts(values.get("child_id", names), f"{where} child_id") if "keys" not in values else None
    for each in id_of or ():
        if each not in names:
            known = ", ".join(names)
            raise InvalidInputError(f"{where} child_id: {each!r} is no column that the function gives: {known}.")
    function = as_text(values["function"], f"{where} function")
    if not all(function.partition(":")[::2]):
        raise InvalidInputError(f"{where}: the function {function!r} is written 'module:function'.")
    inputs = as_texts(values["inputs"], f"{where} inputs")
    told = str(values.get("version", "1")), None, str(values["from"]), tuple(parent_keys), id_of, checks
    return TableFunction(name, function, inputs, pa.struct(given), *told)
