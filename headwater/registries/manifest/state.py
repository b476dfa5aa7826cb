"""Snapshots of the `__manifest` table in memory, plans of commits to it, and the settings in its metadata. Pure.

Fragments grow like a binary counter: a commit writes its rows together with those of every fragment that is not much
larger. So a table of n rows has about log n fragments, each commit rewrites about log n rows, and a reader that is one
commit behind reads one small file.
An unknown feature flag means that a newer writer has put something into the table that would be misread (reader flags)
or destroyed (writer flags) here. Such a catalog is refused before anything is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headwater.errors import CorruptFileError, InvalidInputError, UnsupportedOperationError
from headwater.metastore.commit.root_kinds import MANIFEST, unfinished_upgrade
from headwater.registries.manifest.format import Manifest, live_rows
from headwater.registries.manifest.rows import Codec, Row

CHANGES = "headwater.changes"
"""The transaction property that holds a commit's change, for those who follow it without reading data files."""
BASE = "headwater.base"
"""And the one that says what state it changed."""
LONGEST_CHANGES = 64 * 1024
REWRITE_ROWS = 1024
"""A fragment of at most this many rows is rewritten without its dead rows; a larger one gets a deletion file."""


@dataclass(frozen=True)
class ManifestFragment:
    """One fragment: an identity of its content, and its live rows by object id."""

    signature: bytes
    rows: Mapping[str, Row]


@dataclass(frozen=True)
class ManifestSnapshot:
    """The table at one version, in memory."""

    manifest: Manifest
    scheme: str
    """The naming scheme of its manifest file."""
    codec: Codec
    fragments: Mapping[int, ManifestFragment]
    settings: ManifestSettings

    @property
    def version(self) -> int:
        return self.manifest.version

    def row(self, key: str) -> Row | None:
        """Return the row of an object id; None if there is none."""
        return next((item.rows[key] for item in self.fragments.values() if key in item.rows), None)


@dataclass(frozen=True)
class RowDifference:
    """The difference between two snapshots: ids of removed rows, and added rows.

    A row that only moved to another fragment is in neither. A replaced row may be in both.
    """

    removed: frozenset[str] = frozenset()
    added: Mapping[str, Row] = field(default_factory=dict)


@dataclass(frozen=True)
class Rewrite:
    """The storage plan of a commit: fragments to rewrite with its rows, and fragments that get a deletion file."""

    merged: tuple[int, ...]
    punctured: tuple[int, ...]

    def rows(self, base: ManifestSnapshot, gone: frozenset[str], added: Sequence[Row]) -> list[Row]:
        """Return the rows of the new fragment."""
        kept = (pair for id in self.merged for pair in base.fragments[id].rows.items())
        return [*added, *(row for key, row in kept if key not in gone)]


def plan_commit(fragments: Mapping[int, ManifestFragment], gone: frozenset[str], new_rows: int) -> Rewrite:
    """Plan a commit: the fragments to rewrite, and the large ones that only get a deletion file."""
    touched = {id for id, item in fragments.items() if gone and not gone.isdisjoint(item.rows)}
    merged = {id for id in touched if len(fragments[id].rows) <= REWRITE_ROWS}
    total = new_rows + sum(len(fragments[id].rows) for id in merged)
    for id, item in sorted(fragments.items(), key=lambda pair: len(pair[1].rows)):
        if id not in touched and len(item.rows) <= 2 * total:
            merged.add(id)
            total += len(item.rows)
    return Rewrite(tuple(sorted(merged)), tuple(sorted(touched - merged)))


def note_changes(
    base: ManifestSnapshot, note: Mapping[str, str], gone: Iterable[str], added: Sequence[Row]
) -> dict[str, str]:
    """Return the transaction properties of a commit: its note and, if short enough, its change.

    A change of rows with values in columns of other writers is left out, because the text cannot hold them.
    """
    if any(base.codec.is_foreign(row) for row in added):
        return dict(note)
    changes = base.codec.to_json(gone, added)
    if len(changes) > LONGEST_CHANGES:
        return dict(note)
    return {**note, CHANGES: changes, BASE: base.manifest.identity}


def follow(base: ManifestSnapshot, manifest: Manifest) -> tuple[ManifestSnapshot, RowDifference] | None:
    """Return the next snapshot from the change in its manifest, without reading a data file.

    None if another writer made the version, or if it is not `base` plus that change.
    """
    made = manifest.transaction
    if made is None or CHANGES not in made.properties or manifest.schema != base.manifest.schema:
        return None
    if (
        made.properties.get(BASE) != base.manifest.identity
        or not made.is_update
        or made.read_version != base.version
        or manifest.version != base.version + 1
    ):
        return None
    kept, now = base.fragments.keys() - set(made.removed), manifest.fragments.keys()
    if not (kept <= now and base.fragments.keys() >= set(made.removed) and len(now - kept) <= 1):
        return None
    try:
        gone, added = base.codec.from_json(made.properties[CHANGES])
    except ValueError:
        return None
    snapshot = after_commit(base, manifest, gone, Rewrite(made.removed, ()).rows(base, gone, added))
    if any(live_rows(item.signature) != len(item.rows) for item in _fresh(base.fragments, snapshot.fragments)):
        return None
    return snapshot, RowDifference(gone, {base.codec.object_id(row): row for row in added})


def after_commit(
    base: ManifestSnapshot, manifest: Manifest, gone: frozenset[str], written: Sequence[Row]
) -> ManifestSnapshot:
    """Return the snapshot after a commit on `base` that removed rows and wrote others into a new fragment."""
    fragments: dict[int, ManifestFragment] = {}
    for id, signature in manifest.fragments.items():
        known = base.fragments.get(id)
        if known is None:
            fragments[id] = ManifestFragment(signature, {base.codec.object_id(row): row for row in written})
        elif known.signature == signature:
            fragments[id] = known
        else:
            alive = {key: row for key, row in known.rows.items() if key not in gone}
            fragments[id] = ManifestFragment(signature, alive)
    same = manifest.metadata == base.manifest.metadata
    settings = base.settings if same else parse_settings(manifest.metadata)
    return ManifestSnapshot(manifest, base.scheme, base.codec, fragments, settings)


def difference(before: Mapping[int, ManifestFragment], after: Mapping[int, ManifestFragment]) -> RowDifference:
    stale = _fresh(after, before)
    added = {key: row for item in _fresh(before, after) for key, row in item.rows.items()}
    return RowDifference(frozenset(key for item in stale for key in item.rows if key not in added), added)


def join(first: RowDifference, second: RowDifference) -> RowDifference:
    """Return two successive differences as one."""
    kept = {key: row for key, row in first.added.items() if key not in second.removed}
    return RowDifference(first.removed | second.removed, {**kept, **second.added})


def _fresh(before: Mapping[int, ManifestFragment], after: Mapping[int, ManifestFragment]) -> list[ManifestFragment]:
    return [item for id, item in after.items() if before.get(id) is not item]


READER_FLAGS = "lance.namespace.manifest.reader_feature_flags"
WRITER_FLAGS = "lance.namespace.manifest.writer_feature_flags"
MANAGEMENT = "table_version_management"
ROOT_PROPERTY = "headwater.root."
"""Before the name of a property of the root namespace, which has no row. One key each, so that none is lost."""

VERSION_ROWS = 1 << 32
"""Writer flag: the table holds `table_version` rows. Lance counts its own flags from bit 0."""

UPGRADING = 1 << 33
"""Writer flag: the root is becoming a metastore, or has become one. Nothing is written here any more."""
MIRROR = 1 << 34
"""Writer flag: a metastore writes this table, for others to read."""
UPGRADED = 1 << 32
"""Reader flag: the names are in a metastore now, and these are old."""

KNOWN_READER_FLAGS = 0
KNOWN_WRITER_FLAGS = VERSION_ROWS

MANAGED = {MANAGEMENT: "true", WRITER_FLAGS: str(VERSION_ROWS)}
"""The metadata of a catalog that manages table versions (directory document, "CreateTableVersion")."""


@dataclass(frozen=True)
class ManifestSettings:
    """The settings of one catalog."""

    manages_versions: bool = False
    reader_flags: int = 0
    writer_flags: int = 0
    root_properties: Mapping[str, str] = field(default_factory=dict)

    def check_readable(self, passes: int = 0) -> None:
        """Error 0 for flags that are not known here; 19 and 13 for a table that a metastore has taken over, unless the
        caller `passes` these writer flags, because it is the one that sets them."""
        if not passes & (UPGRADING | MIRROR):
            self._check_is_catalog()
        known = KNOWN_READER_FLAGS | (UPGRADED if passes else 0)
        _check(self.reader_flags & ~known, "read")

    def check_writable(self, passes: int = 0) -> None:
        _check(self.writer_flags & ~(KNOWN_WRITER_FLAGS | passes), "write")

    def _check_is_catalog(self) -> None:
        if self.reader_flags & UPGRADED or self.writer_flags & MIRROR:
            raise InvalidInputError(
                "This root is a metastore catalog, and its __manifest is not the catalog: open it without impl=dir."
            )
        if self.writer_flags & UPGRADING:
            raise unfinished_upgrade()


def parse_settings(metadata: Mapping[str, str]) -> ManifestSettings:
    return ManifestSettings(
        metadata.get(MANAGEMENT, "").lower() == "true",
        _flags(metadata, READER_FLAGS),
        _flags(metadata, WRITER_FLAGS),
        {
            key.removeprefix(ROOT_PROPERTY): value
            for key, value in sorted(metadata.items())
            if key.startswith(ROOT_PROPERTY)
        },
    )


def _flags(metadata: Mapping[str, str], key: str) -> int:
    text = metadata.get(key, "0")
    if not (text.isascii() and text.isdigit()):
        raise CorruptFileError(MANIFEST, f"its metadata {key} is {text[:40]!r}, which is not a number")
    return int(text)


def _check(unknown: int, doing: str) -> None:
    if unknown:
        raise UnsupportedOperationError(
            f"This catalog uses features that this version of headwater does not know (flags {unknown}), "
            f"and cannot be trusted to {doing} it: upgrade headwater."
        )
