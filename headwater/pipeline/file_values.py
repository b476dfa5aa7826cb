"""Values of a pipeline file: overlays `[env.NAME]`, variables `${NAME}`, and errors that name the section. Pure.

Child tables of a pipeline file: `from` and `function` of a [table], as columns, keys and a property.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError, TableColumnNotFoundError
from headwater.schema_text import parse_schema
from headwater.streams.log.checks import Check
from headwater.streams.table_functions import CHILD_ID, OWN_COLUMNS, TableFunction
from headwater.wording import did_you_mean

ENV = "env"
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)


def overlaid(values: Mapping[str, object], env: str | None, sections: Sequence[str]) -> dict[str, Any]:
    """Return the file with its overlay [env.NAME] laid over, which names sources: [env.NAME.source.orders]."""
    overlays = section_of(values, ENV)
    found = {name: value for name, value in values.items() if name != ENV}
    for name, each in overlays.items():
        check_names(as_mapping(each, f"[env.{name}]"), sections, f"[env.{name}]")
    if env is None:
        return found
    if env not in overlays:
        known = ", ".join(overlays) or "none"
        raise InvalidInputError(f"There is no [env.{env}].{did_you_mean(env, list(overlays))} The file has: {known}.")
    over = dict(overlays[env])
    sources = [dict(each) for each in as_tables(found.get("source", []), "[[source]]")]
    for name, each in as_mapping(over.pop("source", {}), f"[env.{env}.source]").items():
        mine = [source for source in sources if source.get("name") == name]
        if not mine:
            raise InvalidInputError(f"[env.{env}.source.{name}]: the file has no source of that name.")
        mine[0].update(as_mapping(each, f"[env.{env}.source.{name}]"))
    return {**merged(found, over), **({"source": sources} if sources else {})}


def merged(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay values over others, table by table."""
    found = dict(below)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if both else value
    return found


def filled_in(
    values: Mapping[str, object], environment: Mapping[str, str], sql: Mapping[str, Sequence[str]]
) -> dict[str, object]:
    """Return the values with the variables of the environment that texts name, but for SQL and the rows of tests.

    `sql`: the names of each section whose texts are SQL.
    """

    def filled(value: object, kept: Sequence[str]) -> Any:
        if isinstance(value, Mapping):
            return {name: each if name in kept else filled(each, kept) for name, each in value.items()}
        if isinstance(value, list):
            return [filled(each, kept) for each in value]
        return _VARIABLE.sub(lambda found: _variable(found[1], environment), value) if isinstance(value, str) else value

    return {name: each if name == "test" else filled(each, sql.get(name, ())) for name, each in values.items()}


def _variable(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise InvalidInputError(f"${{{name}}} is not set: export {name}, or write the value.")
    return environment[name]


@contextmanager
def naming_section(where: str) -> Iterator[None]:
    """Add the file or section to the message of an error that is raised in the block."""
    try:
        yield
    except (InvalidInputError, TableColumnNotFoundError) as error:
        raise InvalidInputError(f"{where}: {error.args[0]}") from None


def check_names(values: Mapping[str, object], names: Sequence[str], where: str) -> None:
    for name in values:
        if name not in names:
            raise InvalidInputError(f"{where} has no {name!r}.{did_you_mean(name, names)} It has: {', '.join(names)}.")


def section_of(values: Mapping[str, object], name: str) -> Mapping[str, Any]:
    return as_mapping(values.get(name, {}), f"[{name}]")


def as_mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{where} is a table of names and values, not {value!r}.")
    return value


def as_tables(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise InvalidInputError(f"{where} is a list of tables.")
    return value


def as_text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInputError(f"{where} is a text, and must be there.")
    return value


def as_texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidInputError(f"{where} is a list of texts.")
    return tuple(value)


def check_distinct(names: Sequence[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"Two of the {what}s are named {name!r}.")


CHILD = ("from", "function", "inputs", "version", "child_id")
"""Names of a [table] that only a child table has."""
NOT_OF_CHILDREN = ("sequence_by", "lateness", "contract")
"""Names that a child table cannot have: its rows have no order of their own, and no columns that the file lacks."""


def parents_first(tables: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the names of tables, each after its parent. InvalidInput (13) for an unknown parent, and for a circle."""
    waiting = {name: values.get("from") for name, values in tables.items()}
    for name, parent in waiting.items():
        if parent is not None and parent not in waiting:
            near = did_you_mean(str(parent), list(tables))
            raise InvalidInputError(f'[table."{name}"]: from {parent!r} is not a table of this file.{near}')
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
            raise InvalidInputError(f"{where} child_id: {each!r} is not a column that the function gives: {known}.")
    function = as_text(values["function"], f"{where} function")
    if not all(function.partition(":")[::2]):
        raise InvalidInputError(f"{where}: the function {function!r} is written 'module:function'.")
    inputs = as_texts(values["inputs"], f"{where} inputs")
    told = str(values.get("version", "1")), None, str(values["from"]), tuple(parent_keys), id_of, checks
    return TableFunction(name, function, inputs, pa.struct(given), *told)
