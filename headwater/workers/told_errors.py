"""Errors between a worker and its caller, as JSON, both ways."""

from __future__ import annotations

from typing import Any

from headwater.errors import (
    CommitStateUnknownError,
    ErrorCode,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    error_for,
    place_of,
)

MIB = 1 << 20
MEMORY_WORDS = ("malloc of size", "realloc of size", "memory allocation of", "Cannot allocate memory", "out of memory")


class WorkerError(Exception):
    """The hosted object failed in a way that is no error of the table: its type, and the place of ours."""


def failure(error: BaseException) -> dict[str, Any]:
    """An error as JSON. What is no error of the table is told by its type and place only."""
    text = str(error)
    is_memory = isinstance(error, MemoryError) or any(word in text for word in MEMORY_WORDS)
    return {
        "kind": type(error).__name__,
        "code": int(error.code) if isinstance(error, LanceNamespaceError) else int(ErrorCode.INTERNAL),
        "message": text[:4000] if isinstance(error, LanceNamespaceError) else "",
        "ours": isinstance(error, LanceNamespaceError),
        "memory": is_memory,
        "place": place_of(error),
    }


def error_of(told: dict[str, Any], memory: int = 0) -> Exception:
    """The error that was told; `memory` is what a worker may take."""
    if told["memory"]:
        return InvalidInputError(
            f"The request needs more memory than a worker may take ({memory // MIB} MiB): ask for less at once."
        )
    if told["ours"]:
        known = {kind.__name__: kind for kind in (CommitStateUnknownError, InternalError)}
        kind = known.get(told["kind"])
        return kind(told["message"]) if kind is not None else error_for(told["code"], told["message"])
    return WorkerError(f"{told['kind']} at {told['place']}")
