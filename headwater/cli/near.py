"""The name that was meant, where one was given that is not there."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable

from headwater.cli.lookups import names_of
from headwater.cli.target import format_name
from headwater.errors import ErrorCode, LanceNamespaceError

NAMES = (int(ErrorCode.NAMESPACE_NOT_FOUND), int(ErrorCode.TABLE_NOT_FOUND))


def nearest(given: argparse.Namespace, error: LanceNamespaceError) -> str | None:
    """The full name of what is there and most like what was asked for; None if nothing is."""
    if int(error.code) not in NAMES or not hasattr(given, "target"):
        return None
    asked = next((getattr(given, key) for key in ("table", "name", "namespace", "id") if getattr(given, key, None)), "")
    try:
        return _near(given, given.name_of(asked)) if asked else None
    except LanceNamespaceError:
        return None


def _near(given: argparse.Namespace, asked: tuple[str, ...]) -> str | None:
    found = names_of(given.target)
    there: tuple[str, ...] = ()
    for name in asked:
        children = [child.name for child in found.children(there)]
        if name not in children:
            return _closest(name, children, (*there,), asked[len(there) + 1 :])
        there = (*there, name)
    return None


def _closest(name: str, known: Iterable[str], above: tuple[str, ...], below: tuple[str, ...]) -> str | None:
    close = difflib.get_close_matches(name, list(known), 1)
    return format_name((*above, close[0], *below)) if close else None
