"""Names and identifiers (lance-objects.md, "Object Name" and "Object Identifier").

An object's identifier is the list of names from (not including) the root to the object itself; joined by a
delimiter it becomes the string style. This is the only module that knows the delimiter and what a name may be.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from headwater.errors import InvalidInputError

DELIMITER = "$"
DOT, QUOTE = ".", '"'
"""The separator and quote of qualified names: `prod."a.b"`."""
MAX_NAME_BYTES = 255
REMEMBERED = 16_384
"""The size of the cache of checked names."""
MAX_DEPTH = 64
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,255}")
INVISIBLE = ("Cf", "Zl", "Zp")
"""Categories of Unicode: formats, such as controls of direction, and separators of lines and paragraphs."""
_JOINERS = "\u200c\u200d"
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180e\u2800\u3164\uffa0"
"""Characters that show nothing although Unicode counts them as letters, marks or symbols."""
_SPECIAL = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, order=True, slots=True)
class ObjectId:
    """The identifier of a namespace or table: the names from the root to it. The root has no names."""

    names: tuple[str, ...] = ()

    def __hash__(self) -> int:  # every look-up takes some: without a tuple around the names it costs half
        return hash(self.names)

    @property
    def is_root(self) -> bool:
        return not self.names

    @property
    def level(self) -> int:
        """The object's level; the root is at level 0 (lance-objects.md, "Object Level")."""
        return len(self.names)

    @property
    def name(self) -> str:
        """The object's own name; the root's is the empty string."""
        return self.names[-1] if self.names else ""

    @property
    def parent(self) -> ObjectId:
        if not self.names:
            raise InvalidInputError("The root namespace has no parent.")
        return ObjectId(self.names[:-1])

    @property
    def ancestors(self) -> tuple[ObjectId, ...]:
        """Yield every namespace above this object without the root, outermost first."""
        return tuple(ObjectId(self.names[:end]) for end in range(1, len(self.names)))

    def child(self, name: str) -> ObjectId:
        return ObjectId((*self.names, name))

    def is_below(self, other: ObjectId) -> bool:
        return len(self.names) > len(other.names) and self.names[: len(other.names)] == other.names

    def format(self, delimiter: str = DELIMITER) -> str:
        """Return the string style. The root is the empty string (see `format_route` for URLs)."""
        return delimiter.join(self.names)

    def format_route(self, delimiter: str = DELIMITER) -> str:
        """Return the string style for a URL, where the root is the delimiter itself."""
        return self.format(delimiter) or delimiter

    def __str__(self) -> str:
        """Return the name as people write it: `prod.users`, `prod."a.b"`."""
        return format_name(self.names) or "the root namespace"


ROOT = ObjectId()


def parse(text: str, delimiter: str = DELIMITER) -> ObjectId:
    """Parse the string style of an identifier; the root is the empty string or the delimiter itself."""
    check_delimiter(delimiter)
    if text in ("", delimiter):
        return ROOT
    return object_id(text.split(delimiter), delimiter)


def object_id(names: Iterable[str] | ObjectId | None, delimiter: str = DELIMITER) -> ObjectId:
    """Return the identifier of a list of names, after a check of each; None and the empty list are the root.

    An identifier is returned as it is: its maker has checked its names.
    """
    if isinstance(names, ObjectId):
        return names
    try:
        result = ObjectId(tuple(names or ()))
    except (TypeError, ValueError):  # an array has no truth
        raise InvalidInputError(f"A name is a text or a list of texts, not {ascii(names)[:80]}.") from None
    if result.level > MAX_DEPTH:
        raise InvalidInputError(f"An identifier has at most {MAX_DEPTH} levels, this one has {result.level}.")
    for name in result.names:
        check_name(name, delimiter)
    return result


def check_name(name: object, delimiter: str = DELIMITER) -> None:
    """Raise InvalidInput (13) unless `name` may name an object in any kind of catalog."""
    problem = _problem(name, delimiter)
    if problem:
        shown = repr(name if not isinstance(name, str) else name[:80])
        raise InvalidInputError(f"The name {shown} cannot be used: {problem}.")


def check_new_name(name: str) -> None:
    """Raise InvalidInput (13) unless an object may be given this name.

    Invisible characters and those that reverse the direction of text make one name look like another. An object that
    has such a name from before can be read, renamed and dropped. A joiner between letters that need it is allowed.
    """
    check_name(name)
    for place, char in enumerate(name):
        if char in _JOINERS and 0 < place < len(name) - 1 and not (name[place - 1] + name[place + 1]).isascii():
            continue
        if unicodedata.category(char) in INVISIBLE or char in _FILLERS:
            raise InvalidInputError(
                f"The name {name[:80]!a} cannot be used: U+{ord(char):04X} is invisible, or changes the direction "
                "of the text around it. Leave it out."
            )


def is_name(name: str, delimiter: str = DELIMITER, flat: bool = False) -> bool:
    """Return True for a valid name. Lists leave out objects with other names.

    `flat`: a catalog without namespaces, whose table folders may have a `$` in their names.
    """
    if _PLAIN.fullmatch(name) and delimiter[0] not in name:
        return True
    return _problem(name.replace(DELIMITER, "_") if flat else name, delimiter) is None


def folder_id(names: Iterable[str] | ObjectId | None, delimiter: str = DELIMITER) -> ObjectId:
    """Return the identifier of a table in a catalog without namespaces: its one name may have a `$` in it."""
    match names:
        case [str() as name] if DELIMITER in name and is_name(name, delimiter, flat=True):
            return ObjectId((name,))
    return object_id(names, delimiter)


def nameable(names: Sequence[str], delimiter: str = DELIMITER, flat: bool = False) -> list[str]:
    """Return the valid names. Mostly all are, which one test of the joined names shows."""
    text = "".join(names)
    if not _SPECIAL.search(text) and delimiter[0] not in text and all(names) and max(map(len, names), default=0) <= 255:
        return list(names)
    return [name for name in names if is_name(name, delimiter, flat)]


def check_delimiter(delimiter: str) -> None:
    if not delimiter or len(delimiter.encode()) > 16 or any(_is_control(c) or c in "/\\" for c in delimiter):
        raise InvalidInputError(
            f"The delimiter {delimiter[:80]!r} cannot be used: give 1 to 16 bytes without '/', '\\' or control "
            "characters."
        )


def _problem(name: object, delimiter: str) -> str | None:
    if not isinstance(name, str):
        return "a name is a string"
    if len(name) > MAX_NAME_BYTES:
        return f"a name has at most {MAX_NAME_BYTES} bytes in UTF-8"
    return _problem_of(name, delimiter)


@lru_cache(REMEMBERED)
def _problem_of(name: str, delimiter: str) -> str | None:
    if not name:
        return "a name is not empty"
    if DELIMITER in name or delimiter in name:
        return f"a name does not contain the delimiter ({delimiter!r}) or {DELIMITER!r}"
    if (name + delimiter).index(delimiter) != len(name):
        return f"a name does not end as the delimiter ({delimiter!r}) begins: joined names would be cut elsewhere"
    if "/" in name or "\\" in name:
        return "a name does not contain '/' or '\\'"
    if name in (".", ".."):
        return "'.' and '..' are not names"
    if any(_is_control(char) for char in name):
        return "a name does not contain control characters or unpaired surrogates"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"a name has at most {MAX_NAME_BYTES} bytes in UTF-8"
    return None


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs")


def parse_name(text: str, delimiter: str | None = None) -> tuple[str, ...]:
    """Parse `prod.users` or `prod."a.b"`. With an own delimiter, nothing is quoted."""
    if delimiter is not None:
        return parse(text, delimiter).names
    if text in ("", DOT):
        return ()
    names, at = list[str](), 0
    while True:
        name, at = _quoted(text, at) if text.startswith(QUOTE, at) else _plain(text, at)
        names.append(name)
        if at == len(text):
            return object_id(names).names
        at += 1


def _plain(text: str, at: int) -> tuple[str, int]:
    end = text.find(DOT, at)
    end = len(text) if end < 0 else end
    return text[at:end], end


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return a quoted name, in which a quote is written twice, and where it ends."""
    name, at = "", at + 1
    while True:
        end = text.find(QUOTE, at)
        if end < 0:
            raise InvalidInputError(f"In {text[:200]!r} a quote is not closed.")
        name += text[at:end]
        at = end + 1
        if not text.startswith(QUOTE, at):
            break
        name, at = name + QUOTE, at + 1
    if at < len(text) and text[at] != DOT:
        raise InvalidInputError(f"In {text[:200]!r} a dot must follow the quoted name.")
    return name, at


def format_name(names: Sequence[str]) -> str:
    """Format names for `parse_name`."""
    return DOT.join(_quote(name) if DOT in name or name.startswith(QUOTE) else name for name in names)


def _quote(name: str) -> str:
    return QUOTE + name.replace(QUOTE, QUOTE * 2) + QUOTE
