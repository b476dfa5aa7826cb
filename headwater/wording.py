"""Counts and suggestions, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence

MEANT = "Did you mean"


def partition_text(values: Mapping[str, str | None]) -> str:
    """Return the values of a partition as SHOW PARTITIONS writes them: `region=eu/at_days=2026-01-31`."""
    return "/".join(f"{name}={'null' if value is None else value}" for name, value in values.items())


def many(count: int, noun: str) -> str:
    """Return `1 file` or `2,000 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def landing_message(verb: str, rows: int, table: str) -> str:
    """Return the message of a commit that brings rows, such as `upsert 3 rows into raw.orders`."""
    return f"{verb} {many(rows, 'row')} {'to' if verb == 'append' else 'into'} {table}"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like another one; None if none is."""
    found = difflib.get_close_matches(word, list(known), 1)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'name'?`, to follow a sentence; an empty text if no known word is like this one."""
    near = closest(word, known)
    return "" if near is None else f" {MEANT} {near!r}?"


def suggests(message: object) -> bool:
    """Return True if a message already ends with the name that was meant, as a server's answers do."""
    return f" {MEANT} " in str(message)


def closest_path(asked: Sequence[str], children: Callable[[tuple[str, ...]], Iterable[str]]) -> tuple[str, ...] | None:
    """Return a path of names with its first wrong one replaced by the closest; None if none is like it.

    `children` returns the names in a namespace that exists.
    """
    there: tuple[str, ...] = ()
    for name in asked:
        known = list(children(there))
        if name not in known:
            near = closest(name, known)
            return None if near is None else (*there, near, *asked[len(there) + 1 :])
        there = (*there, name)
    return None
