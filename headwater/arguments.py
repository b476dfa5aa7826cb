"""Arguments of the public classes, checked by their annotations: a wrong type is InvalidInput (13), with the name.

Python itself refuses unknown and missing arguments. An annotation that says nothing (`Any`) is not checked here, and
neither is the name of an object, which `names` checks.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from numbers import Real
from typing import Any, TypeVar

import pyarrow as pa

from headwater.errors import InvalidInputError, LanceNamespaceError, NamespaceNotFoundError, TableNotFoundError
from headwater.wording import MEANT, closest, suggests

Kind = TypeVar("Kind", bound=type)
Near = Callable[[Any, Any], str | None]
NAME = "Name"
"""The annotation of an argument that names a table or namespace."""
Test = Callable[[Any], bool]
SHOWN = 80
PLAIN = (datetime, timedelta, pa.Schema, pa.DataType)
ITERABLE = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection, list, tuple)


def check_options(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise InvalidInput (13) for an option that is not known, with the one that was meant or all that there are."""
    names = sorted(known)
    for name in sorted(set(given) - set(names)):
        near = closest(name, names)
        hint = f"did you mean {near!r}?" if near else f"it takes {', '.join(names)}."
        raise InvalidInputError(f"{what} has no option {name[:80]!r}: {hint}")


def checked(kind: Kind) -> Kind:
    """Class decorator: let the public methods that a class itself defines check their arguments."""
    for name, found in list(vars(kind).items()):
        if inspect.isfunction(found) and not name.startswith("_"):
            setattr(kind, name, _checking(found))
    return kind


def suggesting(near: Near) -> Callable[[Kind], Kind]:
    """Class decorator: let a not-found error of a method that takes a `Name` end with the name that was meant.

    `near(self, name)` returns it, or None. It is called only when the text of the error is read, because a program
    that looks for many names catches the errors and reads none.
    """

    def decorate(kind: Kind) -> Kind:
        for name, found in list(vars(kind).items()):
            if inspect.isfunction(found) and NAME in found.__annotations__.values():
                setattr(kind, name, _suggesting(found, near))
        return kind

    return decorate


def _suggesting(function: Callable[..., object], near: Near) -> Callable[..., object]:
    names = _parameters(function)
    asked = next(name for name, text in function.__annotations__.items() if text == NAME)

    @functools.wraps(function)
    def call(self: object, *args: object, **options: object) -> Any:
        try:
            return function(self, *args, **options)
        except (TableNotFoundError, NamespaceNotFoundError) as error:
            given = {**dict(zip(names, args, strict=False)), **options}
            if asked in given and not hasattr(error, "meant"):
                error.__class__ = _with_hint(type(error))  # type: ignore[arg-type]
                error.meant = functools.partial(near, self, given[asked])  # type: ignore[union-attr]
            raise

    return call


@functools.cache
def _with_hint(kind: type[LanceNamespaceError]) -> Any:
    """Return a subclass of an error whose text ends with the name that was meant. It is pickled as the error itself."""

    def text(self: Any) -> str:
        plain = kind.__str__(self)
        if suggests(plain):
            return plain
        try:
            near = self.meant()
        except LanceNamespaceError:
            near = None
        return plain if near is None else f"{plain} {MEANT} {near}?"

    members = {"__str__": text, "__reduce__": lambda self: (kind, self.args), "__module__": kind.__module__}
    return type(kind.__name__, (kind,), {**members, "__qualname__": kind.__qualname__})


def _checking(function: Callable[..., object]) -> Callable[..., object]:
    names = _parameters(function)
    tests: dict[str, tuple[Test, str]] | None = None  # made by the first call, when all names of a module are there

    @functools.wraps(function)
    def call(self: object, *args: object, **options: object) -> Any:
        nonlocal tests
        if tests is None:
            tests = _tests(function, names)
        for name, value in (*zip(names, args, strict=False), *options.items()):
            test = tests.get(name)
            if test is not None and not test[0](value):
                raise InvalidInputError(f"{function.__name__}: {name} must be {test[1]}, not {_shown(value)}.")
        return function(self, *args, **options)

    return call


def _parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of the parameters after the first, as `inspect.signature` has them, in a tenth of its time."""
    code = inspect.unwrap(function).__code__
    names, by_place, by_name = code.co_varnames, code.co_argcount, code.co_kwonlyargcount
    more = names[by_place + by_name :]
    rest, options = code.co_flags & inspect.CO_VARARGS, code.co_flags & inspect.CO_VARKEYWORDS
    found = [*names[1:by_place], *more[: bool(rest)], *names[by_place : by_place + by_name]]
    return [*found, *more[bool(rest) : bool(rest) + bool(options)]]


def _tests(function: Callable[..., object], names: list[str]) -> dict[str, tuple[Test, str]]:
    found: dict[str, tuple[Test, str]] = {}
    for name, text in function.__annotations__.items():
        if name not in names or text == NAME:
            continue
        try:
            kind = eval(text, function.__globals__) if isinstance(text, str) else text
        except (NameError, TypeError):  # for type checkers alone
            continue
        test = _test(kind)
        if test is not None:
            found[name] = (
                test,
                str(text).replace("Any", "any").replace("object", "any").replace(" | None", " or None"),
            )
    return found


def _test(kind: object) -> Test | None:
    """Return the test of an annotation; None if it says nothing that is checked here."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        tests = [_test(each) for each in typing.get_args(kind)]
        return _either([each for each in tests if each is not None]) if None not in tests else None
    if kind is type(None) or kind is None:
        return lambda value: value is None
    if kind in SIMPLE:
        return SIMPLE[kind]
    if kind in PLAIN:
        return lambda value: isinstance(value, kind)
    if (origin or kind) in (collections.abc.Mapping, dict):
        return lambda value: isinstance(value, Mapping) and all(_is_text(name) for name in value)
    if origin is collections.abc.Callable:
        return callable
    if origin in ITERABLE:
        within = _test(typing.get_args(kind)[0]) if float not in typing.get_args(kind) else None  # vectors are long
        return lambda value: _holds(value, within)
    if dataclasses.is_dataclass(kind):
        return lambda value: isinstance(value, typing.cast(type, kind))
    return None


def _either(tests: list[Test]) -> Test:
    def test(value: object) -> bool:
        for each in tests:  # noqa: SIM110  # a generator costs more than the tests
            if each(value):
                return True
        return False

    return test


def _holds(value: object, within: Test | None) -> bool:
    """Return True for what can be iterated and holds such values; an iterator is not looked into."""
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, collections.abc.Iterable):
        return False
    if within is None or isinstance(value, collections.abc.Iterator):
        return True
    return all(within(each) for each in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value))


def _is_whole(value: Any) -> bool:
    if type(value) is int:
        return True
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except TypeError:
        return False


SIMPLE: dict[object, Test] = {
    str: _is_text,
    int: _is_whole,
    float: lambda value: isinstance(value, Real) and not isinstance(value, bool),
    bool: lambda value: True,  # whatever is true or not
}


def _shown(value: object) -> str:
    """Return a value for a message, in plain characters and not too long."""
    return f"{type(value).__name__} ({ascii(value)[:SHOWN]})"
