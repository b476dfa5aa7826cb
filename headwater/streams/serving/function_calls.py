"""Functions of users, called batch by batch: a plain function, a class, or an iterator function.

A class is made once in a process and an iterator function begun once, so a model that one loads is loaded once, however
many batches and tasks the process is given. A call that fails is made again before it counts as failed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headwater.errors import InvalidInputError, LanceNamespaceError

ATTEMPTS = 3
_ALIVE: dict[tuple[int, str], Callable[..., Any]] = {}
"""What was made of classes and iterator functions in this process, by the function and its identity."""


class Iterating:
    """An iterator function: it takes a batch when it is asked for the next one, and yields one answer for each."""

    def __init__(self, call: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._waiting: list[Any] = []
        self._answers = iter(call(self._source()))

    def _source(self) -> Iterator[Any]:
        while self._waiting:
            yield self._waiting.pop()

    def __call__(self, *given: Any) -> Any:
        self._waiting = [given[0] if len(given) == 1 else given]
        try:
            return next(self._answers)
        except StopIteration:
            raise InvalidInputError("The function ended before its input did: yield one answer for each.") from None


def called(function: Callable[..., Any], identity: str, inputs: Sequence[Any], what: str) -> Any:
    """The answer to a batch of inputs; 13 names `what` failed, after several attempts."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _alive(function, identity)(*inputs)
        except LanceNamespaceError:
            _ALIVE.pop((id(function), identity), None)
            raise
        except Exception as error:
            _ALIVE.pop((id(function), identity), None)  # an iterator that failed has ended
            if attempt == ATTEMPTS:
                raise InvalidInputError(
                    f"{what} failed {ATTEMPTS} times for a batch of {len(inputs[0]) if inputs else 0} rows: "
                    f"{type(error).__name__}: {str(error)[:500]}"
                ) from error
    raise AssertionError("unreachable")


def _alive(function: Callable[..., Any], identity: str) -> Callable[..., Any]:
    """The function, or what a class or an iterator function has become in this process."""
    if not (inspect.isclass(function) or inspect.isgeneratorfunction(function)):
        return function
    key = id(function), identity
    if key not in _ALIVE:
        made: Any = function if inspect.isclass(function) else Iterating
        _ALIVE[key] = made() if inspect.isclass(function) else made(function)
    return _ALIVE[key]
