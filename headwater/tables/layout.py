"""The on-disk names of a Lance table that Headwater itself reads or writes (docs/formats/directory.md)."""

from __future__ import annotations

import re

from headwater.store.seam import OWN_FOLDER

VERSIONS = "_versions"
VERSION_HINT = "latest_version_hint.json"
DATA = "data"
STAGED = "_staged"
"""Manifests of transactions that are open: `_staged/<transaction>/<final name>`, where no client looks for versions."""
TRASH = f"{OWN_FOLDER}/trash"
"""Dropped folders on their way out."""
UNRECORDED = f"{OWN_FOLDER}/unrecorded"
"""The folder of manifests that other clients wrote without the catalog that manages the versions."""
TRANSACTIONS = "_transactions"
TABLE_FOLDERS = frozenset({VERSIONS, DATA, STAGED, TRANSACTIONS, "_deletions", "_indices", "_refs", "tree"})
"""Names in a table's folder, also during its creation and after a crash of its creator."""

_LAST_VERSION = 2**64 - 1
_MANIFEST_NAME = re.compile(r"^(\d+)\.manifest$")


def manifest_name(version: int, scheme: str = "V2") -> str:
    """Return the file name of a Lance manifest. V2 counts down from 2^64-1, so that the newest is listed first."""
    return f"{_LAST_VERSION - version:020d}.manifest" if scheme == "V2" else f"{version}.manifest"


def hidden_manifest(transaction: str, version: int, scheme: str = "V2") -> str:
    """Return the path, below the table's folder, of the manifest that an open transaction has staged."""
    return f"{STAGED}/{transaction}/{manifest_name(version, scheme)}"


def manifest_version(name: str) -> tuple[int, str] | None:
    """Return the version and naming scheme of a manifest's file name; None for any other name."""
    match = _MANIFEST_NAME.match(name)
    if not match:
        return None
    number = int(match[1])
    if len(match[1]) == 20 and number > _LAST_VERSION // 2:
        return _LAST_VERSION - number, "V2"
    return number, "V1"
