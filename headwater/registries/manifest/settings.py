"""Settings of a directory catalog in the metadata of `__manifest`, with its reader and writer feature flags.

An unknown flag means that a newer writer has put something into the table that would be misread (reader flags) or
destroyed (writer flags) here. Such a catalog is refused before anything is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.errors import CorruptFileError, InvalidInputError, UnsupportedOperationError
from headwater.registries.layout import MANIFEST
from headwater.registries.refusals import unfinished_upgrade

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
        raise CorruptFileError(MANIFEST, f"its metadata {key} is {text[:40]!r}, which is no number")
    return int(text)


def _check(unknown: int, doing: str) -> None:
    if unknown:
        raise UnsupportedOperationError(
            f"This catalog uses features that this version of headwater does not know (flags {unknown}), "
            f"and cannot be trusted to {doing} it: upgrade headwater."
        )
