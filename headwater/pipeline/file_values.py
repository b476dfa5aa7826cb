"""Values of a pipeline file: what each must be, and errors that name the section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headwater.errors import InvalidInputError, TableColumnNotFoundError
from headwater.wording import did_you_mean


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
