"""A reader of Lance manifests: commit time, files, fragments and base paths of a version. Pure but for local links."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from headwater.protobuf import Value, as_bytes, as_number, pair, parse, pick
from headwater.wording import many

FOOTER = struct.Struct("<QHH4s")
LENGTH = struct.Struct("<I")
MAGIC = b"LANC"

SCHEMA, FRAGMENT, VERSION, SCHEMA_METADATA, INDEX_SECTION, TIMESTAMP = 1, 2, 3, 5, 6, 7
READER_FLAGS, WRITER_FLAGS, MAX_FRAGMENT, TRANSACTION_FILE, WRITER = 9, 10, 11, 12, 13
TABLE_METADATA, TRANSACTION_SECTION = 19, 23

BASE = 7
"""Of a data file and of a deletion file: the base path it lies under, if that is not the table's folder."""
INDEX_NAME, INDEX_BASE, INDEX_FILE = 3, 9, 10
"""Of an index: its name, the same, and a file in its folder."""
MEM_WAL_INDEX, MEM_WAL = "__lance_mem_wal", "_mem_wal"
"""The index of a table with a write-ahead log (Lance's MemWAL), which has no folder, and the folder of that log."""
DATA_SIZE, INDEX_SIZE = 6, 2
"""Of a data file and of a file of an index: its bytes."""

MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: what a manifest says is not trusted to be a time."""
DELETION_SUFFIXES = ("arrow", "bin")
COMMENT = "comment"
"""The key of a column's metadata, and of a table's properties, whose value is for people."""
_COLUMN_NAME, _COLUMN_METADATA = 2, 10


_APPEND, _DELETE, _OVERWRITE, _INDEX, _UPDATE, _COLUMNS = 100, 101, 102, 103, 108, (105, 109)
_COUNTED = (_DELETE, _UPDATE, *_COLUMNS)
"""Operations whose rows or columns are counted against the version before."""
_OTHERS = {
    104: "compact",
    106: "restore an earlier version of",
    107: "reserve fragments of",
    110: "configure",
    111: "replace data files of",
    112: "move the write-ahead log of",
}
"""Operations of Lance's transactions by their field, before the name of a table."""
_PHYSICAL_ROWS, _PREDICATE = 4, 3
_DATA_FILE, _DELETION_FILE, _DELETED_ROWS = 2, 3, 4
CHANGE = "headwater.change"
"""The metadata of a version in an answer that says the change that made it, beside the metadata of its client."""
MAX_TOLD, MAX_NAMED = 80, 3
"""Characters of a client's text, and names of indices or columns, in the words for a change."""


@dataclass(frozen=True)
class Contents:
    """One version: its commit time, and the keys of its files and folders, relative to the table's location."""

    committed_ms: int | None
    files: frozenset[str]
    folders: frozenset[str]
    elsewhere: frozenset[str] = frozenset()
    """Those of the files that lie under another base path (of a shallow clone), and not in the table's folder."""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The bytes of the files of which the manifest tells them."""


def manifest_digest(data: bytes) -> str:
    """Return the digest of a manifest file, as the record of its version holds it."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def manifest_message(data: bytes) -> bytes:
    """Return the manifest proper, of the bytes of a manifest file. ValueError: there is none."""
    return section(data, footer(data)[0])


def section(data: bytes, position: int) -> bytes:
    """Return the section of a manifest file that begins at a position, without its length."""
    (length,) = LENGTH.unpack_from(data, min(position, len(data) - LENGTH.size))
    begin = position + LENGTH.size
    if begin + length > len(data) - FOOTER.size:
        raise ValueError("the manifest file is cut")
    return data[begin : begin + length]


def footer(data: bytes) -> tuple[int, int]:
    """Return the offset of the manifest message, and the minor version of the format."""
    if len(data) < FOOTER.size:
        raise ValueError("the manifest file is too short")
    position, _, minor, magic = FOOTER.unpack(data[-FOOTER.size :])
    if magic != MAGIC:
        raise ValueError("the manifest file does not end as one does")
    return position, minor


def committed_ms(data: bytes) -> int | None:
    """Return the commit time of a manifest in milliseconds; None if it has none."""
    try:
        times = pick(manifest_message(data), TIMESTAMP)
        return _milliseconds(as_bytes(times[-1])) if times else None
    except ValueError:
        return None


def needs_before(data: bytes) -> bool:
    """Return True if the words for a change say more with the manifest of the version before."""
    try:
        return _operation(data)[0] in _COUNTED
    except ValueError:
        return False


def change_made(data: bytes, table: str, before: bytes | None = None) -> tuple[str | None, str | None]:
    """Return the change that made a version in words, such as `append 3 rows`, and with the name of its table.


    In the first is no name and no predicate: whoever may list versions may read it.
    None if the manifest does not hold its transaction, or one of an unknown kind.
    `before`: the manifest of the version before, if it is known. It tells how many rows were deleted and which columns
    were added.
    """
    try:
        kind, message = _operation(data)
        return _operation_words(kind, message, "", data, before), _operation_words(kind, message, table, data, before)
    except ValueError:
        return None, None


def _operation(data: bytes) -> tuple[int, bytes]:
    """Return the kind and the message of the operation that made a version; zero if the manifest does not hold it."""
    found = pick(manifest_message(data), TRANSACTION_SECTION)
    fields = parse(section(data, as_number(found[-1]))) if found else ()
    return next(((kind, as_bytes(value)) for kind, value, _ in fields if kind >= _APPEND), (0, b""))


def _operation_words(kind: int, message: bytes, table: str, data: bytes, before: bytes | None) -> str | None:
    of, to, from_ = (f" {word} {table}" if table else "" for word in ("of", "to", "from"))
    if kind == _APPEND:
        return f"append {_rows(message, 1)}{to}"
    if kind == _OVERWRITE:
        verb = "create" if [as_number(each) for each in pick(manifest_message(data), VERSION)] == [1] else "overwrite"
        return f"{verb}{f' {table}' if table else ''} with {_rows(message, 1)}"
    if kind == _UPDATE:
        more = 0 if before is None else _live(data) - _live(before)
        told = f" ({many(abs(more), 'row')} {'more' if more > 0 else 'fewer'})" if more else ""
        return f"change {_rows(message, 3)}{of}{told}"
    if kind == _DELETE:
        rows = "rows" if before is None else many(_live(before) - _live(data), "row")
        predicate = next((as_bytes(value).decode() for value in pick(message, _PREDICATE)), "")
        return f"delete {rows}{from_}{f' where {_short(predicate)}' if table and predicate else ''}"
    if kind in _COLUMNS:
        return _column_words(data, before, to, from_, of)
    if kind == _INDEX:
        made, gone = ({_text(as_bytes(value), INDEX_NAME) for value in pick(message, field)} for field in (1, 2))
        verb = "create" if made - gone else "update" if made else "drop"
        return f"{verb} index {_named(made - gone or made or gone)}{of}"
    if kind in _OTHERS:
        return f"{_OTHERS[kind]} {table}" if table else _OTHERS[kind].removesuffix(" of")
    return None


def _column_words(data: bytes, before: bytes | None, to: str, from_: str, of: str) -> str:
    old, new = ({} if each is None else columns_of(each) for each in (before, data))
    added, dropped = new.keys() - old.keys(), old.keys() - new.keys()
    if before is None or bool(added) == bool(dropped):
        return f"change columns{of}"
    noun = "column" if len(added or dropped) == 1 else "columns"
    return f"add {noun} {_named(added)}{to}" if added else f"drop {noun} {_named(dropped)}{from_}"


def _named(names: Iterable[str]) -> str:
    return ", ".join(_short(name) for name in sorted(names)[:MAX_NAMED])


def _live(data: bytes) -> int:
    """Return the number of rows of a version that are not deleted."""
    return sum(each.rows - each.deleted for each in fragments_of(data))


def _rows(message: bytes, fragments: int) -> str:
    """Count the rows of the fragments in a field of an operation."""
    counts = (pick(as_bytes(each), _PHYSICAL_ROWS) for each in pick(message, fragments))
    return many(sum(as_number(count[-1]) for count in counts if count), "row")


def _short(text: str) -> str:
    """Shorten a client's text to one line, without the parentheses that our own deletes put round a predicate."""
    text = " ".join((text[1:-2] if text.startswith("(") and text.endswith("\n)") else text).split())
    return text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]}..."


def columns_of(data: bytes) -> dict[str, str]:
    """Return the columns of a manifest file's schema and their comments. ValueError: this is no manifest."""
    return dict(_column(as_bytes(value)) for value in pick(manifest_message(data), SCHEMA))


def _column(message: bytes) -> tuple[str, str]:
    name, comment = "", ""
    for field, value, _ in parse(message):
        if field == _COLUMN_NAME:
            name = as_bytes(value).decode()
        elif field == _COLUMN_METADATA:
            key, text = pair(as_bytes(value))
            comment = text if key == COMMENT else comment
    return name, comment


@dataclass(frozen=True)
class FragmentRows:
    """The rows of a fragment, those of them that are deleted, and the bytes of its files."""

    rows: int
    deleted: int
    bytes: int


def fragments_of(data: bytes) -> list[FragmentRows]:
    """Return the fragments of a manifest file. ValueError: this is no manifest."""
    return [_fragment_rows(as_bytes(value)) for value in pick(manifest_message(data), FRAGMENT)]


@lru_cache(maxsize=1 << 12)
def _fragment_rows(message: bytes) -> FragmentRows:
    rows, deleted, size = 0, 0, 0
    for field, value, _ in parse(message):
        if field == _PHYSICAL_ROWS:
            rows = as_number(value)
        elif field == _DATA_FILE:
            size += sum(as_number(each) for each in pick(as_bytes(value), DATA_SIZE))
        elif field == _DELETION_FILE:
            deleted = sum(as_number(each) for each in pick(as_bytes(value), _DELETED_ROWS))
    return FragmentRows(rows, deleted, size)


def metadata_of(data: bytes) -> dict[str, str]:
    """Return the metadata of a manifest file: its schema's and its table's. ValueError: this is no manifest."""
    wanted = (SCHEMA_METADATA, TABLE_METADATA)
    return dict(pair(as_bytes(value)) for field, value, _ in parse(manifest_message(data)) if field in wanted)


def has_mem_wal(data: bytes) -> bool:
    """Return True if the manifest file has the index of a write-ahead log: writers put rows there, in no fragment."""
    sections = (as_number(value) for number, value, _ in parse(manifest_message(data)) if number == INDEX_SECTION)
    indices = (as_bytes(value) for at in sections for number, value, _ in parse(section(data, at)) if number == 1)
    return any(_text(index, INDEX_NAME) == MEM_WAL_INDEX for index in indices)


def read_contents(data: bytes) -> Contents:
    """Return all that a manifest names. ValueError: it is no manifest that is wholly understood.

    A file that lies under another base path is named as well: whoever asks what may be deleted must see it.
    """
    return ManifestReader().read(data)


class ManifestReader:
    """Reads manifests one after the other, and of each only what follows the beginning that it shares with the last.

    Neighbouring versions of a table have nearly the same fragments: those of 5,000 versions are 12 million.
    """

    def __init__(self) -> None:
        self._before = b""
        self._ends: list[int] = []
        """The end of the leading fragments of the last manifest: behind it stands all else that names a file."""

    def read(self, data: bytes) -> Contents:
        """Return what a manifest names, without what it shares with the one before. ValueError: as `read_contents`."""
        message = manifest_message(data)
        files, folders, elsewhere = set[str](), set[str](), set[str]()
        sizes: dict[str, int] = {}
        time: int | None = None
        at, ends, is_first = self._shared(message), self._ends, True
        self._before = b""
        for number, value, field in parse(message[at:]):
            at += len(field)
            if number == FRAGMENT:
                found = _fragment(as_bytes(value))
                files.update(found.files)
                folders.update(found.folders)
                elsewhere.update(found.elsewhere)
                sizes.update(found.sizes)
                if is_first:
                    ends.append(at)
            elif number == INDEX_SECTION:
                _add_indices(section(data, as_number(value)), files, folders, elsewhere, sizes)
            elif number == TRANSACTION_FILE:
                files.add(f"_transactions/{as_bytes(value).decode()}")
            elif number == TIMESTAMP:
                time = _milliseconds(as_bytes(value))
            is_first = is_first and number not in (INDEX_SECTION, TRANSACTION_FILE, TIMESTAMP)
        self._before = message
        return Contents(time, frozenset(files), frozenset(folders), frozenset(elsewhere), sizes)

    def _shared(self, message: bytes) -> int:
        """Return where the last fragment ends that the manifest shares with the one before."""
        low, high = 0, min(len(message), len(self._before))
        while low < high:
            middle = (low + high + 1) // 2
            if message[low:middle] == self._before[low:middle]:
                low = middle
            else:
                high = middle - 1
        del self._ends[bisect_right(self._ends, low) :]
        return self._ends[-1] if self._ends else 0


def names_in(manifests: Iterable[bytes | None]) -> tuple[set[str], set[str]]:
    """Return the files and the folders that any of the manifests names. ValueError: one of them is not understood."""
    reader, files, folders = ManifestReader(), set[str](), set[str]()
    for data in manifests:
        contents = reader.read(data or b"")
        files |= contents.files
        folders |= contents.folders
    return files, folders


@lru_cache(maxsize=1 << 14)
def _fragment(message: bytes) -> Contents:
    """Return the files of a fragment. Neighbouring versions have nearly the same fragments, so they are kept."""
    files, folders, elsewhere = set[str](), set[str](), set[str]()
    sizes: dict[str, int] = {}
    id, deletions = 0, list[bytes]()
    for field, value, _ in parse(message):
        if field == 1:
            id = as_number(value)
        elif field == 2:
            path = _text(as_bytes(value), 1)
            files.add(f"data/{path}")
            _add_size(sizes, f"data/{path}", as_bytes(value), DATA_SIZE)
            if any(number == BASE for number, _, _ in parse(as_bytes(value))):
                elsewhere.add(f"data/{path}")
            folders.add(f"data/{path.rsplit('.', 1)[0]}")  # large blobs of the file lie beside it
        elif field == 3:
            deletions.append(as_bytes(value))
    for message_ in deletions:
        values = {field: as_number(value) for field, value, _ in parse(message_) if not isinstance(value, bytes)}
        suffix = DELETION_SUFFIXES[values.get(1, 0)] if values.get(1, 0) in (0, 1) else ""
        if not suffix:
            raise ValueError("an unknown kind of deletion file")
        name = f"_deletions/{id}-{values.get(2, 0)}-{values.get(3, 0)}.{suffix}"
        files.add(name)
        if BASE in values:
            elsewhere.add(name)
    return Contents(None, frozenset(files), frozenset(folders), frozenset(elsewhere), sizes)


def _add_indices(
    message: bytes, files: set[str], folders: set[str], elsewhere: set[str], sizes: dict[str, int]
) -> None:
    """The folders of indices, and the files in them where the manifest tells those."""
    for index in (as_bytes(value) for number, value, _ in parse(message) if number == 1):
        if _text(index, INDEX_NAME) == MEM_WAL_INDEX:
            continue
        folder = f"_indices/{uuid.UUID(bytes=_bytes(index))}"
        inside = [as_bytes(value) for number, value, _ in parse(index) if number == INDEX_FILE]
        names = [f"{folder}/{_text(file, 1)}" for file in inside]
        for name, file in zip(names, inside, strict=True):
            _add_size(sizes, name, file, INDEX_SIZE)
        folders.add(folder)
        files.update(names)
        if any(number == INDEX_BASE for number, _, _ in parse(index)):
            elsewhere.update([folder, *names])


def _add_size(sizes: dict[str, int], name: str, message: bytes, place: int) -> None:
    told = next((as_number(value) for number, value, _ in parse(message) if number == place), 0)
    if told:
        sizes[name] = told


def _bytes(index: bytes) -> bytes:
    for field, value, _ in parse(index):
        if field == 1:
            return next(as_bytes(inner) for number, inner, _ in parse(as_bytes(value)) if number == 1)
    raise ValueError("an index without an id")


def _text(message: bytes, wanted: int) -> str:
    for field, value, _ in parse(message):
        if field == wanted:
            return as_bytes(value).decode()
    raise ValueError("a data file without a path, or an index without a name")


def _milliseconds(timestamp: bytes) -> int | None:
    values: dict[int, Value] = {field: value for field, value, _ in parse(timestamp)}
    found = as_number(values.get(1, 0)) * 1000 + as_number(values.get(2, 0)) // 1_000_000
    return found if 0 < found <= MAX_MS else None


BASE_PATHS = 18
"""The field of a manifest, and in it the field of a base's path."""
PATH = 4


def outside(paths: Iterable[str], table_uri: str) -> str | None:
    """Return the first base path outside the table's own folder; None if there is none.

    A server reads with its own rights: a version with the base path of another table would give that table away.
    """
    return next((path for path in paths if not _is_inside(path, table_uri)), None)


def bases_of(manifest: bytes) -> list[str]:
    """Return the base paths of a Lance manifest (its message, without the footer). ValueError: this is no manifest."""
    return [as_bytes(path).decode() for base in pick(manifest, BASE_PATHS) for path in pick(as_bytes(base), PATH)]


def message_of(data: bytes) -> bytes:
    """Return the manifest message of a manifest file, at the offset in its footer."""
    start = int.from_bytes(data[-16:-8], "little")
    length = int.from_bytes(data[start : start + 4], "little")
    return data[start + 4 : start + 4 + length]


def _is_inside(path: str, table_uri: str) -> bool:
    if _is_local(path) or _is_local(table_uri):
        return _is_local(path) and _is_local(table_uri) and _inside_folder(path, table_uri)
    scheme, _, rest = path.partition("://")
    own_scheme, _, own = table_uri.partition("://")
    parts = rest.rstrip("/").split("/")
    if scheme.lower() != own_scheme.lower() or any(unquote(part) in ("", ".", "..") for part in parts):
        return False
    return any(parts[: len(table)] == table for table in (own.split("/"), unquote(own).split("/")))


def _is_local(path: str) -> bool:
    return "://" not in path or path.lower().startswith("file://")


def _inside_folder(path: str, table: str) -> bool:
    folder = os.path.realpath(_plain(table))
    return os.path.realpath(_plain(path)).startswith(folder + os.sep) or os.path.realpath(_plain(path)) == folder


def _plain(path: str) -> str:
    return unquote(path[len("file://") :]) if path.lower().startswith("file://") else path
