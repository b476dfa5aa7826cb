"""Methods that parts of an object call without keeping it alive: an object in a cycle with its parts is not freed when
its last user drops it, but only when Python next looks for cycles, and holds its memory and files until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def weak(method: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Return a function that calls a bound method as long as its object lives; a ReferenceError afterwards."""
    found = WeakMethod(method)

    def call(*args: Given.args, **options: Given.kwargs) -> Answer:
        living = found()
        if living is None:
            raise ReferenceError(f"{method_name}: its object is gone.")
        return living(*args, **options)

    method_name = getattr(method, "__qualname__", "method")
    return call
