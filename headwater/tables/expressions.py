"""SQL expressions in Lance's dialect: literals of Python values, and limits on untrusted predicates.

Functions are allowed by a list: `repeat`, `lpad`, `generate_series` and others could return gigabytes from one word.

Lance's planner walks an expression by recursion and a chain of operators ("a = b = c ...") nests one level deeper with
each, so about a thousand of them overflow its stack and end the process. No client may be able to do that, so the
length of a chain is limited here. Lance walks chains of AND and OR and lists of values by a loop: they may be long.
Other forms are planned by copying their operand ("x BETWEEN a AND b" is two comparisons of x), so each one around
another doubles the work: forty of them never end. Their nesting is limited too.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from headwater.errors import InvalidInputError

_MATH = """
abs acos acosh asin asinh atan atan2 atanh cbrt ceil cos cosh cot degrees exp floor gcd isnan iszero lcm ln log
log10 log2 nanvl pi pow power radians random round signum sin sinh sqrt tan tanh trunc
"""
_CHOICE = "coalesce greatest ifnull least nullif nvl nvl2"
_TEXT = """
ascii bit_length btrim char_length character_length chr concat concat_ws contains contains_tokens decode digest
encode ends_with find_in_set initcap instr left length levenshtein lower ltrim md5 octet_length position
regexp_count regexp_instr regexp_like regexp_match reverse right rtrim sha224 sha256 sha384 sha512 split_part
starts_with strpos substr substr_index substring substring_index to_hex translate trim upper uuid
"""
_TIME = """
current_date current_time current_timestamp date_bin date_format date_part date_trunc datepart datetrunc extract
from_unixtime make_date now to_char to_date to_local_time to_timestamp to_timestamp_micros to_timestamp_millis
to_timestamp_nanos to_timestamp_seconds to_unixtime today
"""
_NESTED = """
array_any_value array_append array_concat array_contains array_dims array_distance array_distinct array_element
array_empty array_except array_extract array_has array_has_all array_has_any array_intersect array_length array_max
array_min array_ndims array_pop_back array_pop_front array_position array_positions array_prepend array_remove
array_remove_all array_reverse array_slice array_sort array_union arrays_overlap cardinality element_at empty
flatten list_append list_concat list_contains list_distinct list_element list_extract list_has
list_has_all list_has_any list_length list_max list_min list_position list_reverse list_slice list_sort make_array
make_list map map_entries map_extract map_keys map_values named_struct row string_to_array struct
"""
_JSON = """
json_array_contains json_array_length json_exists json_extract json_get json_get_bool json_get_float json_get_int
json_get_string
"""
_TYPES = """
arrow_cast arrow_typeof bigint binary cast char character date dec decimal double fixed float int integer numeric
real smallint string text time timestamp tinyint try_cast varbinary varchar varying
"""
TYPED = frozenset(_TYPES.split()) - {"arrow_cast", "cast", "try_cast"}
"""Types that may stand before a text. Before a number Lance's planner has an internal error."""
_WORDS = """
all and any array as between by case else end escape filter from ilike in interval is like not or similar some then
to when xor
"""

GROWING = frozenset(("array_join", "array_to_string", "list_to_string", "regexp_replace", "replace"))
"""Functions that lengthen a text by their arguments: allowed a few times, with short texts."""
MAX_GROWING = 2
MAX_GROWING_CHARS = 32

ALLOWED = GROWING | frozenset(" ".join((_MATH, _CHOICE, _TEXT, _TIME, _NESTED, _JSON, _TYPES, _WORDS)).split())
"""Everything that may stand before an opening bracket: functions, types, and words of the language."""


def is_allowed(name: str) -> bool:
    """Return True for a function that a request may call. Quotes around the name are ignored."""
    return name.strip('"`').lower() in ALLOWED


MAX_SQL_CHARS = 200_000
MAX_DEPTH = 100
"""The deepest nesting of brackets; Lance's parser itself fails at about fifty."""
MAX_CHAIN = 200
"""The most words and operators between one AND, OR or comma and the next, at one level of brackets."""

MAX_PATH = 300
"""The most words and operators on the path from the whole expression to a word in its innermost brackets."""

MAX_DOUBLING = 10
"""The deepest nesting of forms whose operand is copied by the planner."""

MAX_WORDS = 100_000
"""The most words, operators and literals of an expression."""

MAX_VECTOR = 8_192
"""The largest dimension of a vector in a cast."""

OPENING, CLOSING = frozenset((*"([{", "CASE")), frozenset((*")]}", "END"))
NOT_FUNCTIONS = frozenset(
    ("AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "IS", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END", "ANY", "ALL")
)
GROWERS = " or ".join(sorted(GROWING))
QUOTES = frozenset("'\"`")
_VECTOR = re.compile(r"'FixedSizeList\((\d{1,4}), Float(?:16|32|64)\)'")

# Nothing here is tried twice: a repeat keeps what it took ("*+"), and a quote or comment without its end is the last.
_TOKEN = re.compile(
    r"""\s++ | --[^\n]*+ | /\*(?:[^*]|\*(?!/))*+\*/          # not counted
      | (?P<open> /\* )
      | (?P<word> '(?:[^']|'')*+' | "(?:[^"]|"")*+" | `(?:[^`]|``)*+` | [\w.]++ | . )""",
    re.VERBOSE | re.DOTALL,
)


def check_sql(field: str, text: str | None) -> str | None:
    """Return the SQL of a request in brackets; InvalidInput (13) when it is empty or too much for a planner.

    The brackets are needed because Lance's parser ignores what follows a complete expression ("id = 1; ..." or
    "id = 1 LIMIT 2"), and a request must not be carried out in part.
    """
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(f"{field} is empty: leave it out, or give a SQL expression.")
    if len(text) > MAX_SQL_CHARS:
        raise InvalidInputError(f"{field} is longer than {MAX_SQL_CHARS} characters.")
    found = extent(text)
    if found.problem:
        raise InvalidInputError(f"{field} {found.problem}.")
    if found.depth > MAX_DEPTH:
        raise InvalidInputError(f"{field} has brackets nested deeper than {MAX_DEPTH}.")
    if found.chain > MAX_CHAIN:
        raise InvalidInputError(f"{field} has a chain of more than {MAX_CHAIN} words and operators: break it up.")
    if found.path > MAX_PATH:
        raise InvalidInputError(f"{field} has chains in brackets of more than {MAX_PATH} words in all: break it up.")
    if found.doubling > MAX_DOUBLING:
        raise InvalidInputError(f"{field} nests more than {MAX_DOUBLING} calls, BETWEENs and CASEs: break it up.")
    return f"({text}\n)"


@dataclass(frozen=True)
class Nesting:
    """The measures of an expression: depth of brackets, longest chain, longest path through nested chains, nesting of
    forms that double the work. `problem`: the reason to refuse it."""

    depth: int = 0
    chain: int = 0
    path: int = 0
    doubling: int = 0
    problem: str = ""


def extent(text: str) -> Nesting:
    """Measure a text in one pass of its tokens, and stop at the first reason to refuse it."""
    levels = [_Level()]
    depth = chain = 0
    calls = _Calls()
    for count, word in enumerate(words(text)):
        if count > MAX_WORDS:
            return Nesting(problem=f"has more than {MAX_WORDS} words and operators: break it up")
        problem = calls.take(word)
        if problem:
            return Nesting(problem=problem)
        upper = word.upper() if word[:1] not in QUOTES else word
        if upper in CLOSING and len(levels) > 1:
            inner = levels.pop()
            levels[-1].close(inner)
        else:
            chain = max(chain, levels[-1].take(upper))
        if upper in OPENING:
            levels.append(_Level(is_call=upper == "CASE" or _is_name(calls.before)))
            depth = max(depth, len(levels) - 1)
            if depth > MAX_DEPTH:
                break
    while len(levels) > 1:
        inner = levels.pop()
        levels[-1].close(inner)
    return Nesting(depth, chain, levels[0].height, levels[0].peak)


def words(text: str) -> Iterator[str]:
    """Yield the tokens of a text, without spaces and comments. A comment that does not end is yielded as `/*`."""
    for match in _TOKEN.finditer(text):
        word = match["word"] or match["open"]
        if word:
            yield word


class _Calls:
    """A checker of function calls: only functions with an output about as large as their input are allowed."""

    def __init__(self) -> None:
        self.before = ""
        self._last = ""
        self._growing = 0
        self._longest = 0
        self._casts = self._sized = False

    def take(self, word: str) -> str:
        """Read one word, and return the reason to refuse the expression; an empty text if there is none."""
        self.before, self._last = self._last, word
        first = word[:1]
        if word == "/*" or (first in QUOTES and len(word) == 1):
            return "has a quote or a comment that does not end"
        if first == "'":
            self._longest = max(self._longest, len(word) - 2)
            self._sized = self._sized or ("fixedsize" in word.lower() and not _is_vector(word))
            if _is_word(self.before) and len(self.before) == 1 and self.before.lower() != "x":
                return "has a text with a prefix: write it as a plain text"
        elif word == "(":
            return self._call(self.before)
        elif word == "$":
            return "has a $, which is not taken here"
        elif self.before.lower() in TYPED and (first.isdecimal() or word.lower() in ("true", "false", "null")):
            return f"has {self.before} before {word[:20]}: write cast({word[:20]} AS {self.before}), or a text after it"
        return self._excess()

    def _call(self, name: str) -> str:
        if not (_is_word(name) or name[:1] in ('"', "`")):
            return ""
        if not is_allowed(name):
            return f"calls {name[:80]}, which is not run here"
        self._growing += name.lower() in GROWING
        self._casts = self._casts or name.lower() == "arrow_cast"
        return self._excess()

    def _excess(self) -> str:
        if self._growing > MAX_GROWING or (self._growing and self._longest > MAX_GROWING_CHARS):
            return f"calls {GROWERS} more than {MAX_GROWING} times, or with texts over {MAX_GROWING_CHARS} characters"
        if self._casts and self._sized:
            return f"casts to a type of fixed size that is no vector of at most {MAX_VECTOR} numbers"
        return ""


def _is_vector(word: str) -> bool:
    found = _VECTOR.fullmatch(word)
    return found is not None and int(found[1]) <= MAX_VECTOR


def _is_word(text: str) -> bool:
    return text[:1].isalpha() or text[:1] == "_"


def _is_name(word: str) -> bool:
    return _is_word(word) and word.upper() not in NOT_FUNCTIONS


class _Level:
    """One level of brackets: its running chain, the longest way down from it, and the deepest doubling met in it."""

    def __init__(self, is_call: bool = False) -> None:
        self.peak = 0
        self._highest = self._inner = 0
        self._is_call = is_call
        self._length = self._between = self._doubling = 0

    def take(self, word: str) -> int:
        """Count a word; an AND that belongs to a BETWEEN does not end the chain."""
        if word == "BETWEEN":
            self._double(self._doubling + 1)
            self._between += 1
        if word == "AND" and self._between:
            self._between -= 1
        elif word in ("AND", "OR", ","):
            self._highest = self.height
            self._length = self._between = self._doubling = self._inner = 0
            return 0
        self._length += 1
        return self._length

    def close(self, inner: _Level) -> None:
        """Count a bracket that ended inside this level: what it doubles is doubled again by what follows it here."""
        self._inner = max(self._inner, inner.height)
        self._double(max(self._doubling, inner.peak + inner._is_call))

    @property
    def height(self) -> int:
        """The words on the longest way down: those of a chain stand around whatever is in brackets in it."""
        return max(self._highest, self._length + self._inner)

    def _double(self, count: int) -> None:
        self._doubling = count
        self.peak = max(self.peak, count)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(value: object) -> str | None:
    """Return a value as a literal for comparisons; None if Lance's SQL cannot write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"arrow_cast('{value!r}', 'Float64')"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, dt.datetime):
        return _timestamp(value)
    return f"date '{value.isoformat()}'" if isinstance(value, dt.date) else None


def assigned(value: object) -> str | None:
    """Return a value as a literal for assignments: also NULL, times, lists, structs and NumPy values."""
    if isinstance(value, (np.generic, np.ndarray)):
        return assigned(value.tolist())
    if value is None:
        return "NULL"
    if isinstance(value, dt.time):
        return quoted(value.isoformat())
    if isinstance(value, Mapping):
        pairs = ((quoted(str(name)), assigned(item)) for name, item in value.items())
        return _call("named_struct", [part for pair in pairs for part in pair])
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return _call("make_array", [assigned(item) for item in value])
    return literal(value)


def _call(function: str, texts: Sequence[str | None]) -> str | None:
    said = [text for text in texts if text is not None]
    return f"{function}({', '.join(said)})" if len(said) == len(texts) else None


def _decimal(value: Decimal) -> str | None:
    _sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):  # NaN and infinity
        return None
    scale = max(0, -exponent)
    return f"CAST('{value:f}' AS DECIMAL({max(len(digits) + max(0, exponent), scale, 1)},{scale}))"


def _timestamp(value: dt.datetime) -> str:
    zone = "Z" if value.tzinfo is not None else ""
    moment = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return f"timestamp '{moment.isoformat(timespec='microseconds')}{zone}'"
