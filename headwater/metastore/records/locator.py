"""Locators: the Canonical String of an object as a value (deltacat-storage-model.md, "... and Canonical Strings")."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import InvalidInputError
from headwater.metastore.records.layout import canonical


@dataclass(frozen=True, order=True, slots=True)
class Locator:
    """The parts from the root to an object; the root has none.

    Names up to a table, then: version; stream id and format; partition id and values; position.
    `format` joins them by `|`; a `|` or a backslash inside a part is escaped by a backslash.
    """

    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.parts, str) or not all(isinstance(part, str) for part in self.parts):
            raise InvalidInputError(f"A locator has parts of text, not {self.parts!r}.")
        object.__setattr__(self, "parts", tuple(self.parts))
        if self.parts == ("",):
            raise InvalidInputError("A locator of one empty part locates nothing: the root's has no part.")

    @classmethod
    def parse(cls, text: str) -> Locator:
        """From a Canonical String; InvalidInput (13) for a backslash that escapes nothing."""
        if not isinstance(text, str):
            raise InvalidInputError(f"A Canonical String is text, not {text!r}.")
        if not text:
            return cls()
        parts, part, rest = list[str](), "", iter(text)
        for char in rest:
            if char == "|":
                parts.append(part)
                part = ""
                continue
            if char == "\\":
                char = next(rest, "")
                if char not in ("|", "\\"):
                    raise InvalidInputError(f"The locator {text[:200]!r} has a backslash that escapes nothing.")
            part += char
        return cls((*parts, part))

    def format(self) -> str:
        """The Canonical String."""
        return canonical("", *self.parts) if self.parts else ""

    def child(self, *parts: str) -> Locator:
        """The locator of an object below, by its own parts."""
        return Locator((*self.parts, *parts))

    def __str__(self) -> str:
        return self.format()
