"""A reader of Lance manifest files, and a writer of the next version of a plain table.

pylance needs several milliseconds for a commit, and reads the table again after each of another process; a catalog
commits and follows all the time. A manifest is a public format (docs/formats/directory.md): sections, each after its
length in four bytes, of which the last is the manifest proper, then its position, two version numbers and `LANC`.

Only what is wholly understood is written: `Manifest.is_plain` is false for a table with an index, stable row ids,
other base paths, a branch, or any field that is not named here. Such a table is left to pylance.

A cheap check before each read tells that the state in memory is the newest version of `__manifest`. The rest is pure.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from headwater.errors import CorruptFileError
from headwater.lance_manifest import (
    FOOTER,
    FRAGMENT,
    LENGTH,
    MAGIC,
    MAX_FRAGMENT,
    READER_FLAGS,
    SCHEMA,
    SCHEMA_METADATA,
    TABLE_METADATA,
    TIMESTAMP,
    TRANSACTION_FILE,
    VERSION,
    WRITER,
    WRITER_FLAGS,
    footer,
    section,
)
from headwater.metastore.commit.root_kinds import MANIFEST
from headwater.protobuf import (
    Value,
    as_bytes,
    as_number,
    number,
    numbers,
    packed,
    pair,
    pairs,
    parse,
    text,
)
from headwater.store import Store
from headwater.tables.layout import VERSIONS, manifest_name, manifest_version

DATA_FORMAT, CONFIG, TRANSACTION = 15, 16, 23
KEPT = frozenset({SCHEMA, SCHEMA_METADATA, READER_FLAGS, WRITER_FLAGS, WRITER, DATA_FORMAT, CONFIG, TABLE_METADATA})
"""Fields that the next version inherits unchanged."""
RENEWED = frozenset({FRAGMENT, VERSION, TIMESTAMP, MAX_FRAGMENT, TRANSACTION_FILE, TRANSACTION})

DELETION_FILES, TABLE_CONFIG = 1, 8
PLAIN_FLAGS = DELETION_FILES | TABLE_CONFIG
UPDATE = 108


@dataclass(frozen=True)
class FragmentFile:
    """A data file of a fragment: its columns, their positions and the version of the file format."""

    path: str
    fields: tuple[int, ...]
    column_indices: tuple[int, ...]
    major: int
    minor: int
    size: int

    def encode(self) -> bytes:
        return b"".join(
            (
                text(1, self.path),
                packed(2, self.fields),
                packed(3, self.column_indices),
                number(4, self.major),
                number(5, self.minor),
                number(6, self.size),
            )
        )


@dataclass(frozen=True)
class ManifestTransaction:
    """The transaction of a version: its base version, its properties and, for an update, the fragments it replaced."""

    read_version: int
    properties: Mapping[str, str]
    removed: tuple[int, ...] = ()
    is_update: bool = False


@dataclass(frozen=True)
class Manifest:
    """A version of a table, decoded from its manifest."""

    version: int
    fragments: Mapping[int, bytes]
    """The message of each fragment, which also identifies its content."""
    max_fragment: int
    inherited: bytes
    """The fields that the next version takes over unchanged."""
    schema: bytes
    """Of these the ones that say what columns there are, and how files are written."""
    metadata: Mapping[str, str]
    data_version: str
    is_plain: bool
    transaction: ManifestTransaction | None

    @property
    def identity(self) -> str:
        """Return an identity of this state that no other table has, since data files have random names."""
        return hashlib.blake2b(b"".join(self.fragments.values()), digest_size=8).hexdigest()

    def successor(
        self,
        removed: Iterable[int],
        file: FragmentFile | None,
        rows: int,
        note: Mapping[str, str],
        uuid: str,
        now_ms: int,
    ) -> tuple[Manifest, bytes]:
        """Return the next version and its manifest file, without `removed` fragments, plus `file` of `rows` rows."""
        gone = tuple(sorted(removed))
        body = b"" if file is None else text(2, file.encode()) + number(4, rows)
        update = packed(1, gone) + (text(3, body) if file else b"")
        transaction = number(1, self.version) + text(2, uuid) + pairs(4, note) + text(UPDATE, update)
        newest = self.max_fragment + (file is not None)
        fragments = {id: raw for id, raw in self.fragments.items() if id not in gone}
        if file is not None:
            fragments[newest] = (number(1, newest) if newest else b"") + body
        manifest = b"".join(
            (
                self.inherited,
                *(text(FRAGMENT, raw) for raw in fragments.values()),
                number(VERSION, self.version + 1),
                text(TIMESTAMP, number(1, now_ms // 1000) + number(2, now_ms % 1000 * 1_000_000)),
                number(MAX_FRAGMENT, newest) if newest >= 0 else b"",
                number(TRANSACTION, 0),
            )
        )
        sections = LENGTH.pack(len(transaction)) + transaction + LENGTH.pack(len(manifest)) + manifest
        made = ManifestTransaction(self.version, note, gone, is_update=True)
        following = replace(self, version=self.version + 1, fragments=fragments, max_fragment=newest, transaction=made)
        return following, sections + FOOTER.pack(LENGTH.size + len(transaction), 0, 2, MAGIC)


def parse_manifest(data: bytes) -> Manifest:
    """Decode a manifest file. ValueError: it holds no manifest."""
    position, minor = footer(data)
    found: dict[int, list[Value]] = {}
    inherited: list[bytes] = []
    schema: list[bytes] = []
    for field, value, raw in parse(section(data, position)):
        found.setdefault(field, []).append(value)
        if field in KEPT:
            inherited.append(raw)
        if field in (SCHEMA, SCHEMA_METADATA, DATA_FORMAT):
            schema.append(raw)
    flags = _last(found, READER_FLAGS) | _last(found, WRITER_FLAGS)
    at = found.get(TRANSACTION)
    fragments = dict(_fragment(as_bytes(raw)) for raw in found.get(FRAGMENT, []))
    return Manifest(
        version=_last(found, VERSION),
        fragments=fragments,
        max_fragment=max((_last(found, MAX_FRAGMENT, -1), *fragments)),
        inherited=b"".join(inherited),
        schema=b"".join(schema),
        metadata=dict(pair(as_bytes(entry)) for entry in found.get(TABLE_METADATA, [])),
        data_version=_data_version(found),
        is_plain=minor == 2 and found.keys() <= KEPT | RENEWED and not flags & ~PLAIN_FLAGS and WRITER in found,
        transaction=_transaction(section(data, as_number(at[-1]))) if at else None,
    )


def live_rows(fragment: bytes) -> int:
    """Return the number of rows of a fragment that are not deleted."""
    rows = 0
    for field, value, _ in parse(fragment):
        if field == 4:
            rows += as_number(value)
        elif field == 3:
            rows -= sum(as_number(dead) for inner, dead, _ in parse(as_bytes(value)) if inner == 4)
    return rows


def _fragment(raw: bytes) -> tuple[int, bytes]:
    return next((as_number(value) for field, value, _ in parse(raw) if field == 1), 0), raw


def _transaction(message: bytes) -> ManifestTransaction:
    read_version, properties, removed, is_update = 0, {}, [], False
    for field, value, _ in parse(message):
        if field == 1:
            read_version = as_number(value)
        elif field == 4:
            key, content = pair(as_bytes(value))
            properties[key] = content
        elif field == UPDATE:
            is_update = True
            for inner, content_, _ in parse(as_bytes(value)):
                removed += numbers(content_) if inner == 1 else []
    return ManifestTransaction(read_version, properties, tuple(removed), is_update)


def _data_version(found: Mapping[int, list[Value]]) -> str:
    for value in found.get(DATA_FORMAT, []):
        for field, content, _ in parse(as_bytes(value)):
            if field == 2:
                return as_bytes(content).decode()
    return ""


def _last(found: Mapping[int, list[Value]], field: int, default: int = 0) -> int:
    return as_number(found[field][-1]) if field in found else default


class Freshness(Protocol):
    """A check for versions that other writers committed."""

    asks_the_store: bool
    """True if the check is a storage request; False if it costs next to nothing."""

    def newest(self) -> tuple[int, str] | None:
        """Return the newest version and the naming scheme of its manifest; None if there is no table."""
        ...

    def mark(self) -> object:
        """Return a mark, before a version is loaded, for `moved`."""
        ...

    def moved(self, version: int, mark: object) -> bool:
        """Return True if a version newer than the one loaded after `mark` may exist."""
        ...


class LocalFreshness:
    """A check by two stats: of the next version's manifest, and of the folder's change time.

    The first sees every commit. The second also sees a next version that was committed and cleaned up meanwhile.
    """

    asks_the_store = False

    def __init__(self, path: str) -> None:
        self._folder = os.path.join(path, MANIFEST, VERSIONS)

    def newest(self) -> tuple[int, str] | None:
        try:
            return _newest(os.listdir(self._folder))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptFileError(MANIFEST, f"its versions cannot be listed ({error.strerror})") from None

    def mark(self) -> object:
        try:
            return os.stat(self._folder).st_mtime_ns
        except OSError:
            return None

    def moved(self, version: int, mark: object) -> bool:
        if self.mark() != mark:
            return True
        return os.access(f"{self._folder}/{manifest_name(version + 1)}", os.F_OK)


class ListedFreshness:
    """A check by one list request: the newest manifest sorts first, and clean-up keeps the folder small."""

    asks_the_store = True

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(self) -> tuple[int, str] | None:
        entries = self._store.children(f"{MANIFEST}/{VERSIONS}").entries
        return _newest(entry.key.rsplit("/", 1)[-1] for entry in entries)

    def mark(self) -> object:
        return None

    def moved(self, version: int, mark: object) -> bool:
        newest = self.newest()
        return newest is None or newest[0] != version


def _newest(names: Iterable[str]) -> tuple[int, str] | None:
    return max((found for name in names if (found := manifest_version(name))), default=None)


def freshness_of(store: Store) -> Freshness:
    path = store.abilities.path
    return ListedFreshness(store) if path is None else LocalFreshness(path)
