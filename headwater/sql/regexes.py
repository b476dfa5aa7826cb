"""Regular expressions of Java as those of RE2, which DuckDB has: the part of them that matches the same texts. Pure.

Literals, classes, groups, alternatives and quantifiers are translated. Back references, look-around, flags, word
boundaries, POSIX and Unicode classes raise ValueError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TERMINATORS = r"\n\r\x{85}\x{2028}\x{2029}"
LINE_END, TEXT_END = rf"(?:\r\n|[{_TERMINATORS}])?\z", r"\z"
"""`$` of Java: the end, or the last line terminator before it. The second is the same in texts without terminators."""
TERMINATED = rf"[{_TERMINATORS}]\z"
_ESCAPES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r" \t\n\x{B}\f\r"}
_PLAIN = re.compile(r"[A-Za-z0-9 _\-!\"#%&',/:;<=>@`~]|[^\x00-\x7f]")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d{1,3})(,(\d{1,3})?)?\})\??")
_PUNCTUATION = frozenset("\\^$.|?*+()[]{}-/\"'#&%!,:;<=>@`~ ")


@dataclass(frozen=True)
class Re2Pattern:
    """A pattern of RE2. `shortest`: the length of the shortest match; `groups`: the number of its groups."""

    text: str
    shortest: int
    groups: int


def re2_pattern(java: str) -> Re2Pattern:
    """Translate a pattern of Java. ValueError: it has a part that RE2 lacks, or reads differently."""
    parser = _Parser(java)
    text, shortest = parser.alternatives()
    if parser.at < len(java):
        raise ValueError("an unbalanced parenthesis")
    return Re2Pattern(text, shortest, parser.groups)


def re2_replacement(java: str, groups: int) -> str:
    """Translate a replacement of Java, in which `$1` is a group. ValueError: it has another escape."""
    text, at = "", 0
    while at < len(java):
        char, after = java[at], java[at + 1 : at + 3]
        if char == "\\":
            raise ValueError("a backslash in a replacement")
        if char != "$":
            text, at = text + char, at + 1
        elif after[:1].isascii() and after[:1].isdecimal() and not after[1:].isdecimal() and int(after[0]) <= groups:
            text, at = f"{text}\\{after[0]}", at + 2
        else:
            raise ValueError("another group")
    return text


def plain_text(java: str) -> str:
    """Return the text that a pattern matches alone, such as `|` for `\\|`. ValueError: it matches others too."""
    if re.fullmatch(r"\\[^A-Za-z0-9]|\[[^\\\^\[\]&]\]", java):
        return java[1]
    if not java or set(java) & set("\\^$.|?*+()[]{}"):
        raise ValueError("a pattern")
    return java


class _Parser:
    def __init__(self, java: str) -> None:
        self._java = java
        self.at = 0
        self.groups = 0

    def _next(self) -> str:
        return self._java[self.at : self.at + 1]

    def _take(self) -> str:
        char = self._next()
        if not char:
            raise ValueError("it ends too early")
        self.at += 1
        return char

    def alternatives(self, depth: int = 0) -> tuple[str, int]:
        if depth > 20:
            raise ValueError("nested too deep")
        found = [self._sequence(depth)]
        while self._next() == "|":
            self.at += 1
            found.append(self._sequence(depth))
        return "|".join(text for text, _ in found), min(size for _, size in found)

    def _sequence(self, depth: int) -> tuple[str, int]:
        texts, length = [], 0
        while self._next() not in ("", "|", ")"):
            text, size = self._item(depth)
            quantifier = _QUANTIFIER.match(self._java, self.at)
            if quantifier is not None:
                if not size:
                    raise ValueError("a quantifier of something that may be empty")
                if "{" in text and "{" in quantifier[0]:
                    raise ValueError("counts of counts")
                self.at = quantifier.end()
                if self._next() in ("+", "*", "?", "{"):
                    raise ValueError("a quantifier of a quantifier")
                low, high = quantifier[1], quantifier[3]
                if high is not None and int(low) > int(high):
                    raise ValueError("an empty range")
                text += quantifier[0]
                size *= int(low) if low is not None else int(quantifier[0].startswith("+"))
            texts.append(text)
            length += size
        return "".join(texts), length

    def _item(self, depth: int) -> tuple[str, int]:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class(), 1
        if char == ".":
            return f"[^{_TERMINATORS}]", 1
        if char in "^$":
            return ("^", 0) if char == "^" else (LINE_END, 0)
        if char == "\\":
            escaped = self._take()
            if escaped.lower() in _ESCAPES:
                return f"[{'^' if escaped.isupper() else ''}{_ESCAPES[escaped.lower()]}]", 1
            if escaped not in _PUNCTUATION:
                raise ValueError(f"the escape {escaped}")
            return re.escape(escaped), 1
        if not _PLAIN.fullmatch(char):
            raise ValueError(f"the character {char!r}")
        return char, 1

    def _group(self, depth: int) -> tuple[str, int]:
        opening = "("
        if self._next() == "?":
            if self._java[self.at : self.at + 2] != "?:":
                raise ValueError("a group with a flag")
            self.at, opening = self.at + 2, "(?:"
        else:
            self.groups += 1
        text, size = self.alternatives(depth + 1)
        if self._take() != ")":
            raise ValueError("an unbalanced parenthesis")
        return f"{opening}{text})", size

    def _class(self) -> str:
        text = "["
        if self._next() == "^":
            text += self._take()
        members = 0
        while self._next() != "]" or not members:
            char = self._take()
            members += 1
            if char == "\\":
                escaped = self._take()
                if escaped in _ESCAPES:
                    text += _ESCAPES[escaped]
                    continue
                if escaped not in _PUNCTUATION:
                    raise ValueError(f"the escape {escaped}")
                text += "\\" + escaped
            elif char == "-" and self._is_range(text, members):
                text += "-"
            elif char == "-":
                text += "\\-"
            elif char in "[]&^":
                raise ValueError(f"the character {char!r} in a class")
            else:
                text += char if char.isalnum() or char == "_" or not char.isascii() else "\\" + char
        self.at += 1
        return text + "]"

    def _is_range(self, text: str, members: int) -> bool:
        """Return True for a minus between two letters or two digits; ValueError for one between other characters."""
        before, after = text[-1], self._next()
        if members == 1 or after == "]":
            return False
        for kind in (str.isdecimal, str.islower, str.isupper):
            if kind(before) and kind(after) and before.isascii() and after.isascii() and before <= after:
                if text[-2] == "-" and members > 2:
                    raise ValueError("a range of a range")
                return True
        raise ValueError("this range")
