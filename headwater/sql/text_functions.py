"""Functions of texts in Spark SQL, regular expressions among them, as expressions of DuckDB."""

from __future__ import annotations

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
    whole,
)
from headwater.sql.regexes import LINE_END, TERMINATED, TEXT_END, Re2Pattern, plain_text, re2_pattern, re2_replacement
from headwater.sql.sql_types import BINARY, BOOLEAN, STRING, array

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
    text, start = of(terms[0], STRING), whole(terms[1], -10_000)
    size = f", {whole(terms[2], 0, 2**31 - 1)}" if len(terms) > 2 else ""
    return Term(f"substring({text}, {start or 1}{size})", STRING)


TEXTS["left"] = lambda terms: Term(f"left({of(terms[0], STRING)}, {whole(terms[1])})", STRING)
TEXTS["right"] = lambda terms: Term(f"right({of(terms[0], STRING)}, {whole(terms[1])})", STRING)


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
        size, pad = whole(terms[1], 0, 1000), literal(terms[2]) if len(terms) > 2 else " "
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
    return Term(f"split_part({of(text, STRING)}, {by.text}, {whole(place, 1)})", STRING)


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
    group = whole(terms[2], 0, min(found.groups, 9)) if len(terms) > 2 else 1
    if group > found.groups:
        raise ValueError("no such group")
    pattern = text_literal(found.text.replace(LINE_END, TEXT_END))
    return Term(_terminated(text, found, f"regexp_extract({text}, {pattern}, {group})"), STRING)


TEXTS["md5"] = lambda terms: Term(f"md5({of(only(terms), STRING)})", STRING)


@rule(TEXTS, "sha2")
def _sha2(terms: Terms) -> Term:
    if whole(terms[1]) not in (0, 256):
        raise ValueError("another size")
    return Term(f"sha256({of(terms[0], STRING)})", STRING)
