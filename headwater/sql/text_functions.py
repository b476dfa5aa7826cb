"""Functions of texts in Spark SQL, as expressions of DuckDB; regular expressions of Java as those of RE2. Pure.

Literals, classes, groups, alternatives and quantifiers are translated. Back references, look-around, flags, word
boundaries, POSIX and Unicode classes raise ValueError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headwater.sql.casts import (
    Rule,
    Term,
    Terms,
    as_int,
    cast,
    literal,
    of,
    only,
    refuse,
    rule,
    text_literal,
    two,
    whole_number,
)
from headwater.sql.sql_types import BINARY, BOOLEAN, STRING, array

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


TEXTS: dict[str, Rule] = {}
"""Functions of texts, by their names."""
# Characters whose upper and lower case are one character each, the same to Java and to DuckDB.
_CASED = r"^[\x00-\x7F\x{A0}-\x{B4}\x{B6}-\x{DE}\x{E0}-\x{FE}\x{400}-\x{45F}\x{3000}-\x{9FFF}\x{AC00}-\x{D7A3}]*$"


def _cased(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        text = of(terms[0], STRING)
        odd = refuse(f"{name} of letters that Java changes by rules of its own")
        known = f"{text} IS NULL OR regexp_full_match({text}, {text_literal(_CASED)})"
        return Term(f"CASE WHEN {known} THEN {name}({text}) ELSE {odd} END", STRING)

    return rule


TEXTS |= dict.fromkeys(("upper", "ucase"), _cased("upper")) | dict.fromkeys(("lower", "lcase"), _cased("lower"))


@rule(TEXTS, "length", "char_length", "character_length", "len")
def _length(terms: Terms) -> Term:
    (term,) = terms
    return as_int(f"length({of(term, STRING)})" if term.kind != BINARY else f"octet_length({term.text})")


def _trimmed(name: str) -> Rule:
    return lambda terms: Term(f"{name}({of(only(terms), STRING)}, ' ')", STRING)


TEXTS |= {name: _trimmed(name) for name in ("trim", "ltrim", "rtrim")}


@rule(TEXTS, "substring", "substr")
def _substring(terms: Terms) -> Term:
    text, start = of(terms[0], STRING), whole_number(terms[1], -10_000)
    size = f", {whole_number(terms[2], 0, 2**31 - 1)}" if len(terms) > 2 else ""
    return Term(f"substring({text}, {start or 1}{size})", STRING)


TEXTS["left"] = lambda terms: Term(f"left({of(terms[0], STRING)}, {whole_number(terms[1])})", STRING)
TEXTS["right"] = lambda terms: Term(f"right({of(terms[0], STRING)}, {whole_number(terms[1])})", STRING)


@rule(TEXTS, "concat")
def _concat(terms: Terms) -> Term:
    if not terms or any(term.kind.parts or term.kind == BINARY for term in terms):
        raise ValueError("no texts")
    return Term("(" + " || ".join(cast(term, STRING).text for term in terms) + ")", STRING)


@rule(TEXTS, "concat_ws")
def _concat_ws(terms: Terms) -> Term:
    literal(terms[0])
    return Term(f"concat_ws({', '.join(of(term, STRING) for term in terms)})", STRING)


@rule(TEXTS, "replace")
def _replace(terms: Terms) -> Term:
    text, old, new = terms[0], terms[1], terms[2] if len(terms) > 2 else Term("''", STRING, "")
    if not literal(old):
        raise ValueError("nothing to replace")
    return Term(f"replace({of(text, STRING)}, {old.text}, {of(new, STRING)})", STRING)


def _found(text: Term, part: Term) -> Term:
    if not literal(part):
        raise ValueError("nothing to find")
    return as_int(f"strpos({of(text, STRING)}, {part.text})")


TEXTS["instr"] = lambda terms: _found(*two(terms))
TEXTS["locate"] = lambda terms: _found(*two(terms)[::-1])
TEXTS["position"] = TEXTS["locate"]
for _name, _duck in (("startswith", "starts_with"), ("endswith", "suffix"), ("contains", "contains")):
    TEXTS[_name] = lambda terms, duck=_duck: Term(  # type: ignore[misc]
        f"{duck}({of(terms[0], STRING)}, {of(terms[1], STRING)})", BOOLEAN
    )


def _padded(name: str) -> Rule:
    def rule(terms: Terms) -> Term:
        size, pad = whole_number(terms[1], 0, 1000), literal(terms[2]) if len(terms) > 2 else " "
        if not pad:
            raise ValueError("nothing to pad with")
        return Term(f"{name}({of(terms[0], STRING)}, {size}, {text_literal(pad)})", STRING)

    return rule


TEXTS |= {name: _padded(name) for name in ("lpad", "rpad")}


@rule(TEXTS, "split_part")
def _split_part(terms: Terms) -> Term:
    text, by, place = terms
    if not literal(by):
        raise ValueError("nothing to split by")
    return Term(f"split_part({of(text, STRING)}, {by.text}, {whole_number(place, 1)})", STRING)


@rule(TEXTS, "split")
def _split(terms: Terms) -> Term:
    text, by = two(terms)
    return Term(f"string_split({of(text, STRING)}, {text_literal(plain_text(literal(by)))})", array(STRING))


@rule(TEXTS, "regexp_like", "rlike", "regexp")
def matches(terms: Terms) -> Term:
    """Return a RLIKE b, with a literal pattern."""
    text, pattern = two(terms)
    found = re2_pattern(literal(pattern))
    return Term(f"regexp_matches({of(text, STRING)}, {text_literal(found.text)})", BOOLEAN)


def _terminated(text: str, found: Re2Pattern, rendered: str) -> str:
    """Refuse texts that end with a line terminator if the pattern has a `$`, which would match before it."""
    if LINE_END not in found.text:
        return rendered
    odd = refuse("a pattern with $ of a text that ends with a line terminator")
    known = f"{text} IS NULL OR NOT regexp_matches({text}, {text_literal(TERMINATED)})"
    return f"CASE WHEN {known} THEN {rendered} ELSE {odd} END"


@rule(TEXTS, "regexp_replace")
def _regexp_replace(terms: Terms) -> Term:
    text, found = of(terms[0], STRING), re2_pattern(literal(terms[1]))
    if not found.shortest:
        raise ValueError("a pattern that matches nothing")
    new = text_literal(re2_replacement(literal(terms[2]), found.groups))
    pattern = text_literal(found.text.replace(LINE_END, TEXT_END))
    return Term(_terminated(text, found, f"regexp_replace({text}, {pattern}, {new}, 'g')"), STRING)


@rule(TEXTS, "regexp_extract")
def _regexp_extract(terms: Terms) -> Term:
    text, found = of(terms[0], STRING), re2_pattern(literal(terms[1]))
    group = whole_number(terms[2], 0, min(found.groups, 9)) if len(terms) > 2 else 1
    if group > found.groups:
        raise ValueError("no such group")
    pattern = text_literal(found.text.replace(LINE_END, TEXT_END))
    return Term(_terminated(text, found, f"regexp_extract({text}, {pattern}, {group})"), STRING)


TEXTS["md5"] = lambda terms: Term(f"md5({of(only(terms), STRING)})", STRING)


@rule(TEXTS, "sha2")
def _sha2(terms: Terms) -> Term:
    if whole_number(terms[1]) not in (0, 256):
        raise ValueError("another size")
    return Term(f"sha256({of(terms[0], STRING)})", STRING)
