"""Partitions as a layout of data files that every Lance client can read and write.

A partitioned column carries its transforms in its field's metadata, so they stay with it when it is renamed and go
when it is dropped. A data file written from Spark holds rows of one partition only, and its name says which:
`<random>.<field id><transform>-<value>[...].lance`. The name is fixed when the file is written and is part of the
fragment in the manifest, so it is committed, retried, travelled to and cleaned up with it. A fragment tells its
partition only while the named file is still the one that holds the field; any other is of unknown partition and
is always read. Values are escaped into letters, digits, `-` and `_`; a long one is known by its digest alone.
"""

from __future__ import annotations

import decimal
import functools
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headwater.clock import unique_hex
from headwater.errors import InvalidInputError, TableColumnNotFoundError
from headwater.imports import lance, pc
from headwater.tables.handle import TableHandle
from headwater.types import BLOB, is_blob

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

Key = tuple[str, ...]
"""A partition as the parts of a file name, one for each partition field."""
METADATA = "headwater.partition"
MAX_FIELDS = 5
MAX_WIDTH = 1_000_000
MAX_TEXT = 32
MAX_GROUPS = 64
"""The most partitions that are read by tasks of their own: more would make many small tasks."""
DAY_MICROS = 86_400_000_000
HOUR_MICROS = 3_600_000_000
CODES = {"identity": "i", "years": "y", "months": "m", "days": "d", "hours": "h", "bucket": "b", "truncate": "t"}
TRANSFORMS = {code: name for name, code in CODES.items()}
WITH_WIDTH = ("bucket", "truncate")
_PART = re.compile(r"(\d{1,5})([iymdhbt])(\d{0,7})-([nbidsh])([A-Za-z0-9_-]*)")
_UNSAFE = re.compile(rb"[^A-Za-z0-9-]")


@dataclass(frozen=True)
class PartitionField:
    """One entry of PARTITIONED BY: a transform of a column; `width` of a bucket or truncation."""

    column: str
    transform: str
    width: int = 0

    @property
    def name(self) -> str:
        """The name in SHOW PARTITIONS: `region`, `ts_days`, `id_bucket`."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"

    def to_json(self) -> dict[str, object]:
        return {"column": self.column, "transform": self.transform, "width": self.width, "name": self.name}


@dataclass(frozen=True)
class NamedValue:
    """The partition value of one field in a file name: a value, NULL, or only the digest of a long text."""

    field: int
    transform: str
    width: int
    value: Any
    digest: str | None = None


# PARTITIONED BY ------------------------------------------------------------------------------------------------------


def allows(transform: str, kind: pa.DataType) -> bool:
    """Return True if the transform fits the type: values of the type must compare in Spark as they do here."""
    whole, text = pa.types.is_signed_integer(kind), pa.types.is_string(kind) or pa.types.is_large_string(kind)
    date, moment = kind == pa.date32(), pa.types.is_timestamp(kind) and kind.unit == "us"
    allowed = {
        "identity": whole or text or date or moment or pa.types.is_boolean(kind) or pa.types.is_decimal128(kind),
        "bucket": whole or text or date or moment,
        "truncate": whole or text,
        "hours": moment,
    }
    return bool(allowed.get(transform, date or moment))


def partitioned(schema: pa.Schema, asked: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Return the schema of a table PARTITIONED BY `asked`; InvalidInput names a field that cannot be used."""
    if len(asked) > MAX_FIELDS:
        raise InvalidInputError(f"PARTITIONED BY takes at most {MAX_FIELDS} fields, not {len(asked)}.")
    for position, entry in enumerate(asked):
        field = PartitionField(entry["column"], entry["transform"], int(entry.get("width") or 0))
        _check(schema, field)
        index = schema.get_field_index(field.column)
        metadata: dict[Any, Any] = dict(schema.field(index).metadata or {})
        known = [text for text in metadata.get(METADATA.encode(), b"").decode().split(",") if text]
        metadata[METADATA.encode()] = ",".join([*known, f"{position}:{field.transform}:{field.width}"]).encode()
        schema = schema.set(index, schema.field(index).with_metadata(metadata))
    return schema


def _check(schema: pa.Schema, field: PartitionField) -> None:
    if schema.get_field_index(field.column) < 0:
        raise TableColumnNotFoundError(f"PARTITIONED BY names no top-level column: {field.column!r}.")
    if field.transform not in CODES:
        raise InvalidInputError(f"PARTITIONED BY knows {', '.join(CODES)}, not {field.transform!r}.")
    if field.transform in WITH_WIDTH and not 1 <= field.width <= MAX_WIDTH:
        raise InvalidInputError(f"{field.transform} of {field.column!r} takes a number from 1 to {MAX_WIDTH}.")
    kind = schema.field(field.column).type
    if not allows(field.transform, kind):
        raise InvalidInputError(f"A table cannot be partitioned by {field.transform} of {field.column!r} ({kind}).")
    if has_blobs(schema):
        raise InvalidInputError("A table with blob columns cannot be partitioned.")


def has_blobs(schema: pa.Schema) -> bool:
    """Return True for a schema with blobs, whose own files only Lance's writer makes."""
    return any(is_blob(field.type) or BLOB in (field.metadata or {}) for field in schema)


def partitioning(schema: pa.Schema) -> tuple[PartitionField, ...]:
    """Return the partition fields of a table, in order. Transforms that do not fit a changed type are left out."""
    found: list[tuple[int, PartitionField]] = []
    for field in schema:
        for text in (field.metadata or {}).get(METADATA.encode(), b"").decode().split(","):
            position, _, rest = text.partition(":")
            transform, _, width = rest.partition(":")
            if position.isdigit() and width.isdigit() and transform in CODES and allows(transform, field.type):
                found.append((int(position), PartitionField(field.name, transform, int(width))))
    return tuple(field for _, field in sorted(found, key=lambda each: each[0])[:MAX_FIELDS])


def field_ids(dataset: lance.LanceDataset) -> dict[str, int]:
    return {field.name(): field.id() for field in dataset.lance_schema.fields()}


# Transforms ----------------------------------------------------------------------------------------------------------


def transformed(array: Any, transform: str, width: int) -> Any:
    """Return the partition values of an array: NULL for NULL, texts as bytes, times as integers."""
    if transform == "truncate" and not pa.types.is_integer(array.type):
        array = pc.utf8_slice_codeunits(array, 0, width)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return _text_buckets(array, width) if transform == "bucket" else array.cast(pa.large_binary())
    if pa.types.is_boolean(array.type) or pa.types.is_decimal(array.type):
        return array
    whole = array.cast(pa.int32()).cast(pa.int64()) if array.type == pa.date32() else array.cast(pa.int64())
    values = _whole(np.asarray(whole.fill_null(0)), transform, width, dates=array.type == pa.date32())
    return pa.array(values, mask=np.asarray(whole.is_null()))


def _whole(values: Any, transform: str, width: int, *, dates: bool) -> Any:
    if transform == "bucket":
        mixed = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed >> np.uint64(33)) % np.uint64(width)).astype(np.int64)
    if transform == "truncate":
        return values // width
    if transform == "hours":
        return values // HOUR_MICROS
    if transform == "identity":
        return values
    days = values if dates else values // DAY_MICROS
    unit = {"days": "D", "months": "M", "years": "Y"}[transform]
    return days.astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)


def _text_buckets(array: Any, width: int) -> Any:
    encoded = array.cast(pa.large_binary()).dictionary_encode()
    buckets = pa.array([zlib.crc32(text) % width for text in encoded.dictionary.to_pylist()], pa.int64())
    return buckets.take(encoded.indices)


@functools.lru_cache(maxsize=1 << 16)
def first_of(value: int, transform: str, width: int, *, dates: bool) -> int:
    """Return the smallest column value (days or microseconds) of a partition value."""
    if transform == "truncate":
        return value * width
    if transform == "hours":
        return value * HOUR_MICROS
    unit = {"days": "D", "months": "M", "years": "Y"}[transform]
    day = int(np.array(value).astype(f"datetime64[{unit}]").astype("datetime64[D]").astype(np.int64))
    return day if dates else day * DAY_MICROS


# Names of data files -------------------------------------------------------------------------------------------------


def format_part(field: int, transform: str, width: int, value: object) -> str:
    """Return the part of a file name for one field. `value`: a result of `transformed`."""
    return f"{field}{CODES[transform]}{width or ''}-{format_value(value)}"


def format_value(value: Any) -> str:
    if value is None:
        return "n"
    if isinstance(value, bool):
        return f"b{int(value)}"
    if isinstance(value, int):
        return f"i{value}"
    text = str(value).encode() if isinstance(value, decimal.Decimal) else value
    kind = "d" if isinstance(value, decimal.Decimal) else "s"
    escaped = _UNSAFE.sub(lambda found: f"_{found.group()[0]:02x}".encode(), text).decode()
    return kind + escaped if len(escaped) <= MAX_TEXT else digest(text)


def digest(text: bytes) -> str:
    return "h" + hashlib.sha256(text).hexdigest()[:MAX_TEXT]


def file_name(parts: Sequence[str]) -> str:
    return ".".join([unique_hex(32), *parts, "lance"])


def parse_name(name: str) -> list[NamedValue]:
    """Return the partition values in a file name; an empty list for a name that is not ours."""
    texts = name.split(".")[1:-1]
    found = [part for text in texts if (part := _parse_part(text)) is not None]
    return found if len(found) == len(texts) else []


@functools.lru_cache(maxsize=1 << 16)
def _parse_part(text: str) -> NamedValue | None:
    match = _PART.fullmatch(text)
    if match is None:
        return None
    field, code, width, kind, rest = match.groups()
    part = (int(field), TRANSFORMS[code], int(width or 0))
    try:
        if kind == "h":
            return NamedValue(*part, None, digest=kind + rest)
        return NamedValue(*part, _parse_value(kind, rest))
    except (ValueError, decimal.InvalidOperation):
        return None


def _parse_value(kind: str, rest: str) -> object:
    if kind == "n":
        return None
    if kind == "b":
        return rest == "1"
    if kind == "i":
        return int(rest)
    text = re.sub(r"_([0-9a-f]{2})", lambda found: chr(int(found.group(1), 16)), rest).encode("latin-1").decode()
    return decimal.Decimal(text) if kind == "d" else text


def parts_of(fragment: FragmentMetadata) -> list[NamedValue]:
    """Return the partition values that hold for every row of a fragment. Files that lost the field are ignored."""
    if fragment.overlays:
        return []
    return [
        part
        for file in fragment.files
        for part in (parse_name(file._path) if "-" in file._path else ())
        if part.field in file.fields
    ]


def key_of(fragment: FragmentMetadata, wanted: Sequence[tuple[int, PartitionField]]) -> tuple[str, ...] | None:
    """Return the partition key of a fragment; None if its file names lack a field."""
    known = {(part.field, part.transform, part.width): part for part in parts_of(fragment)}
    key = []
    for id, field in wanted:
        part = known.get((id, field.transform, field.width))
        if part is None:
            return None
        value = part.value.encode() if isinstance(part.value, str) else part.value
        key.append(f"{id}{CODES[field.transform]}{field.width or ''}-{part.digest or format_value(value)}")
    return tuple(key)


def partitions_of(
    dataset: lance.LanceDataset, fragments: Sequence[FragmentMetadata]
) -> dict[tuple[int | str | None, ...], set[int]] | None:
    """Return the fragments of each partition; None without partitions, with too many, or with an unknown one.

    Keys are integers and texts, which are equal in Spark.
    """
    ids, fields = field_ids(dataset), partitioning(dataset.schema)
    wanted = [(ids[field.column], field.transform, field.width) for field in fields]
    found: dict[tuple[int | str | None, ...], set[int]] = {}
    for fragment in fragments:
        known = {(part.field, part.transform, part.width): part for part in parts_of(fragment) if part.digest is None}
        values = tuple(known[each].value for each in wanted if each in known)
        if len(values) < len(wanted) or any(isinstance(value, bool | decimal.Decimal) for value in values):
            return None
        found.setdefault(values, set()).add(fragment.id)
    return found if wanted and len(found) <= MAX_GROUPS else None


def parted(rows: pa.Table, wanted: Sequence[tuple[int, PartitionField]]) -> list[tuple[Key, pa.Table]]:
    """Split rows by partition key, in their order. Sorted rows are sliced, not copied. Pure."""
    if not rows.num_rows:
        return []
    values = [transformed(rows.column(f.column).combine_chunks(), f.transform, f.width) for _, f in wanted]
    codes = np.zeros(rows.num_rows, np.int64)
    for array in values:
        encoded = array.dictionary_encode()
        count = len(encoded.dictionary)
        joined = codes * (count + 1) + np.asarray(encoded.indices.fill_null(count), np.int64)
        codes = np.unique(joined, return_inverse=True)[1]
    known = len(np.unique(codes))
    if np.count_nonzero(np.diff(codes)) + 1 > known:
        order: Any = np.argsort(codes, kind="stable")
        rows, codes = rows.combine_chunks().take(order), codes[order]
        values = [array.take(order) for array in values]
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), rows.num_rows]
    found: list[tuple[Key, pa.Table]] = []
    for start, end in pairwise(starts):
        parts = zip(wanted, values, strict=True)
        key = tuple(format_part(id, f.transform, f.width, array[start].as_py()) for (id, f), array in parts)
        found.append((key, rows.slice(start, end - start)))
    return found


UNITS = {"years": "Y", "months": "M", "days": "D", "hours": "h"}
Wanted = Sequence[tuple[int, PartitionField]]
Values = tuple[str | None, ...]


def list_partitions(table: TableHandle) -> list[list[str | None]]:
    """Return the values of each partition that has rows (SHOW PARTITIONS), sorted, NULL first.

    File names hold the values. Only fragments of unknown partition, or with digests, are read."""
    dataset = table.open()
    ids = field_ids(dataset)
    wanted = [(ids[field.column], field) for field in partitioning(dataset.schema)]
    found: set[Values] = set()
    for fragment in dataset.get_fragments():
        if fragment.metadata.num_rows:
            found.update(_of_fragment(dataset, fragment, wanted))
    return [
        list(values) for values in sorted(found, key=lambda each: [(value is not None, value or "") for value in each])
    ]


def _of_fragment(dataset: lance.LanceDataset, fragment: lance.LanceFragment, wanted: Wanted) -> Iterator[Values]:
    kinds = [dataset.schema.field(field.column).type for _, field in wanted]
    known = {(part.field, part.transform, part.width): part for part in parts_of(fragment.metadata)}
    parts = [known.get((id, field.transform, field.width)) for id, field in wanted]
    told = [part.value for part in parts if part is not None and part.digest is None]
    if len(told) == len(wanted):
        yield _texts(told, wanted, kinds)
        return
    rows = fragment.to_table(columns=list({field.column for _, field in wanted}))
    for _, group in parted(rows, wanted):
        first = [group.column(field.column).slice(0, 1).combine_chunks() for _, field in wanted]
        columns = zip(first, wanted, strict=True)
        read = [transformed(array, field.transform, field.width)[0].as_py() for array, (_, field) in columns]
        yield _texts(read, wanted, kinds)


def _texts(values: Sequence[object], wanted: Wanted, kinds: Sequence[object]) -> Values:
    return tuple(value_text(value, field, kind) for value, (_, field), kind in zip(values, wanted, kinds, strict=True))


def value_text(value: Any, field: PartitionField, kind: Any) -> str | None:
    """Return a partition value as text: 2020-01 for a month, 2020-01-31 for a day."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool):
        return str(value).lower()
    unit = UNITS.get(field.transform)
    if field.transform == "identity":
        unit = "D" if kind == pa.date32() else "us" if pa.types.is_timestamp(kind) else None
    if unit is not None:
        return str(np.array(value).astype(f"datetime64[{unit}]"))
    return str(value * field.width if field.transform == "truncate" else value)
