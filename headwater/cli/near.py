"""The name that was meant, where one was given that is not there."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from headwater.cli.lookups import names_of
from headwater.cli.target import Target
from headwater.errors import ErrorCode, LanceNamespaceError
from headwater.names import format_name
from headwater.wording import closest, closest_path

NAMES = (int(ErrorCode.NAMESPACE_NOT_FOUND), int(ErrorCode.TABLE_NOT_FOUND))
PARTS: dict[int, tuple[tuple[str, ...], Callable[[Any], Iterable[str]]]] = {
    int(ErrorCode.TABLE_COLUMN_NOT_FOUND): (("column", "words", "on"), lambda table: table.schema.names),
    int(ErrorCode.TABLE_TAG_NOT_FOUND): (("tag",), lambda table: table.tags),
    int(ErrorCode.TABLE_INDEX_NOT_FOUND): (("column",), lambda table: table.indices),
    int(ErrorCode.TABLE_BRANCH_NOT_FOUND): (("branch",), lambda table: table.branches),
}
"""Parts of a table: the arguments that name one, and the names that there are."""


def nearest(args: argparse.Namespace, error: LanceNamespaceError) -> str | None:
    """The full name of what is there and most like what was asked for; None if nothing is."""
    if not hasattr(args, "target"):
        return None
    named = [getattr(args, key, None) for key in ("table", "name", "namespace", "id", "tables")]
    asked = next((each for each in named if each), "")
    try:
        if int(error.code) in NAMES:
            names = [asked] if isinstance(asked, str) else asked
            return next(filter(None, (near_name(args.target, args.name_of(name)) for name in names if name)), None)
        return _near_part(args, *PARTS[int(error.code)]) if int(error.code) in PARTS else None
    except (LanceNamespaceError, AttributeError):
        return None


def near_name(target: Target, asked: tuple[str, ...]) -> str | None:
    """The full name of what is there and most like a name that is not."""
    found = names_of(target)
    near = closest_path(asked, lambda parent: [child.name for child in found.children(parent)])
    return None if near is None else format_name(near)


def _near_part(args: argparse.Namespace, arguments: Iterable[str], names: Callable[[Any], Iterable[str]]) -> str | None:
    table = args.target.catalog()[args.name_of(args.table)]
    known = list(names(table.serving))
    for argument in arguments:
        said = getattr(args, argument, None) or ()
        words: list[str] = [said] if isinstance(said, str) else list(said)
        for word in words:
            near = closest(word, known)
            if word not in known and near:
                return near
    return None
