"""Overlays and variables of a pipeline file: `[env.NAME]` laid over it, `${NAME}` from the environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headwater.errors import InvalidInputError
from headwater.pipeline.file_values import as_mapping, as_tables, check_names, section_of
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
