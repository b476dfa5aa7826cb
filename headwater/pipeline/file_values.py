"""Values of a pipeline file: overlays `[env.NAME]`, variables `${NAME}`, and errors that name the section. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headwater.errors import InvalidInputError, TableColumnNotFoundError
from headwater.wording import did_you_mean

ENV = "env"
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)


def overlaid(values: Mapping[str, object], env: str | None, sections: Sequence[str]) -> dict[str, Any]:
    """The file with an overlay of it, [env.NAME], laid over; sources are named in it: [env.NAME.source.orders]."""
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
    """The values with the variables of the environment that texts name, but for SQL and the rows of tests.

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
