"""Names of properties that nearly are one of a stream table: they would silently make another table. Pure.

A table may have properties of its users by any name; only what was plainly meant for one of ours is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from headwater.errors import InvalidInputError
from headwater.streams.log.checks import EXPECT

ARGUMENTS = {
    "keys": "keys are told as such: keys=[...], or at creation TBLPROPERTIES ('keys' = 'a,b')",
    "sequence": "the sequence is told as such: sequence=[...], or at creation TBLPROPERTIES ('sequence' = 'a,b')",
    "partition_by": "partitions are told as such: partition_by=[...], or PARTITIONED BY (...)",
}
"""What a table is made with, and is no property of it."""
PROPERTIES = ("late", "lateness", "contract", "log_retention", "history")
FAMILIES = ("column", *EXPECT)
"""What stands before the dot, and a name of the user's behind it."""
MEANT = {"key": "keys", "primarykey": "keys", "primarykeys": "keys"}
FREE = frozenset(("contact", "retention"))
"""Words of their own, however near."""
CLOSE, SHORT = 0.85, 5
"""How alike two names are, and names so short that a letter makes another word."""


def check_property_names(names: Iterable[str]) -> None:
    """Error 13 for a name that nearly is one of ours, with the one that was meant."""
    for name in names:
        head, dot, rest = name.partition(".")
        if name in ARGUMENTS:
            raise InvalidInputError(f"{name!r} is no property of a stream table: {ARGUMENTS[name]}.")
        if name in PROPERTIES or (dot and head in FAMILIES):
            continue
        meant = _meant(head, FAMILIES) if dot else _meant(name, (*PROPERTIES, *ARGUMENTS))
        if meant is not None:
            right = f"{meant}{dot}{rest}"
            told = ARGUMENTS.get(right, f"write {right!r}")
            raise InvalidInputError(
                f"{name!r} is no property that a stream table knows, and nearly one: {told}. A property of your own "
                "needs another name."
            )


def _meant(name: str, known: Iterable[str]) -> str | None:
    plain = _plain(name)
    by_plain = {_plain(each): each for each in known}
    if plain in by_plain:
        return by_plain[plain]
    if plain in MEANT and MEANT[plain] in by_plain.values():
        return MEANT[plain]
    long = [each for each in by_plain if len(each) > SHORT]
    close = difflib.get_close_matches(plain, long, 1, CLOSE) if plain not in FREE else []
    return by_plain[close[0]] if close else None


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())
