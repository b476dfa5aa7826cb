"""The functions that SQL of a request may call.

A list of what is allowed, since one that is not may make a gigabyte of a word: `repeat`, `lpad`, `array_repeat`,
`generate_series` and what a next release adds. Here is whatever gives about as much as it is given.
"""

from __future__ import annotations

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
flatten get_field list_append list_concat list_contains list_distinct list_element list_extract list_has
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
_WORDS = """
all and any array as between by case else end escape filter from ilike in interval is like not or similar some then
to when xor
"""

GROWING = frozenset(("array_join", "array_to_string", "list_to_string", "regexp_replace", "replace"))
"""Functions that make a text longer by what they are told to put in: allowed few at a time, with short texts."""
MAX_GROWING = 2
MAX_GROWING_CHARS = 32

ALLOWED = GROWING | frozenset(" ".join((_MATH, _CHOICE, _TEXT, _TIME, _NESTED, _JSON, _TYPES, _WORDS)).split())
"""Everything that may stand before an opening bracket: functions, types, and words of the language."""


def is_allowed(name: str) -> bool:
    """Whether a request may call this. A quoted name is no way around the list."""
    return name.strip('"`').lower() in ALLOWED
