"""Every on-disk name of a metastore (deltacat-storage-model.md; docs/formats/metastore.md says them byte by byte).

Published: object directories with `rev/`, name resolution directories, `txn/`. Private, below `.headwater/`: the
commit slots that order the writers, the checkpoints and delta segments that bound the time to open.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from headwater.errors import InvalidInputError
from headwater.store.seam import OWN_FOLDER

FORMAT = 1
FORMAT_KEY = f"{OWN_FOLDER}/metastore"
CHECKPOINTS = f"{OWN_FOLDER}/checkpoints"
SLOTS = f"{OWN_FOLDER}/slots"
LAYERS = f"{OWN_FOLDER}/layers"
SEGMENTS = f"{OWN_FOLDER}/segments"
SNAPSHOTS = f"{OWN_FOLDER}/snapshots"
PENDING_DELETES = f"{OWN_FOLDER}/doomed"
OPEN = f"{OWN_FOLDER}/open"
"""Transactions that a server has open: `open/<caller>/<id>/<step>`."""
SNAPSHOT_RECORDS = "_snapshots"
ROOT_RECORD = "_root"
"""The directory of the record that holds the properties of the root namespace."""
ROOT_NODE = "//root"
"""Its key in the index: no part of an object, and no snapshot's."""
TXNS = "txn"
SLOTS_PER_FOLDER = 1000
DATA_FOLDER = "data"
MAX_REMOTE_KEY = 1024
MAX_LOCAL_KEY = 3500

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_REVISION = re.compile(rf"(?:(.+)/)rev/(\d{{20}})_(create|update|delete)_({_UUID})\.mpk")
_MAPPING = re.compile(rf"(?:(.+)/)?([0-9a-f]{{40}})/(\d{{20}})_(create|update|delete)_({_UUID})\.({_UUID})")
_TXN = re.compile(rf"txn/(\d+)[_-]({_UUID})")
_TABLE_DATA = re.compile(rf"(?:.+/)?{_UUID}/{DATA_FOLDER}/.+")
_DATASET = re.compile(r"[0-9a-f]{8}_")
_DIGEST = re.compile(r"[0-9a-f]{40}")
_NAMED_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class RevisionFile:
    """A Metadata Revision File: `<home>/rev/<number>_<operation>_<txn>.mpk`."""

    home: str
    number: int
    operation: str
    txn: str


@dataclass(frozen=True, slots=True)
class MappingFile:
    """A Name Mapping File, zero bytes: `<parent home>/<digest>/<number>_<operation>_<txn>.<object id>`."""

    home: str
    digest: str
    number: int
    operation: str
    txn: str
    object_id: str


@dataclass(frozen=True, slots=True)
class TxnFile:
    """A Transaction Log File: `txn/<start>_<txn>`; a `-` is read as well as the `_` that is written."""

    start: int
    txn: str


def slot_key(number: int) -> str:
    return f"{slot_folder(number)}/{number:020d}"


def slot_folder(number: int) -> str:
    return f"{SLOTS}/{number // SLOTS_PER_FOLDER:017d}"


def first_beside(number: int) -> int:
    """Return the lowest number in the folder of a slot."""
    return number // SLOTS_PER_FOLDER * SLOTS_PER_FOLDER


def slot_number(key: str) -> int | None:
    """Return the number that a slot's key says; None for a file that is not a slot."""
    name = key.rsplit("/", 1)[-1]
    return int(name) if len(name) == 20 and name.isascii() and name.isdigit() else None


def checkpoint_key(slot: int) -> str:
    return f"{CHECKPOINTS}/{slot:020d}"


def checkpoint_slot(key: str) -> int | None:
    """Return the slot a checkpoint's key names; None for a file that is not a checkpoint."""
    return slot_number(key)


def layer_key(id: str) -> str:
    """Return a file of a checkpoint's layer."""
    return f"{LAYERS}/{id}"


def segment_key(number: int) -> str:
    """Return the key of the segment that a slot sealed. 2 is the rule by which slots do so."""
    return f"{SEGMENTS}/{number:020d}-2"


def snapshot_key(id: str) -> str:
    """Return the file of a named snapshot."""
    return f"{SNAPSHOTS}/{id}"


def pending_deletes_key(id: str) -> str:
    """Return the key of a list of files and folders that a collection deletes once they are old enough."""
    return f"{PENDING_DELETES}/{id}"


def snapshot_home(name: str) -> str:
    """Return the directory of a named snapshot's record."""
    return f"{SNAPSHOT_RECORDS}/{name}"


def snapshot_node(name: str) -> str:
    """Return the key of a named snapshot's record in the index: a part of the root, which no table's id is."""
    return f"/{name}"


def txn_key(start: int, txn: str) -> str:
    return f"{TXNS}/{start}_{txn}"


def revision_key(home: str, number: int, operation: str, txn: str) -> str:
    return f"{home}/rev/{number:020d}_{operation}_{txn}.mpk"


def mapping_key(home: str, digest: str, number: int, operation: str, txn: str, object_id: str) -> str:
    return below(home, f"{digest}/{number:020d}_{operation}_{txn}.{object_id}")


def below(home: str, name: str) -> str:
    """Return the key of `name` in an object's directory; the root's directory is the catalog root."""
    return f"{home}/{name}" if home else name


def is_dataset_folder(name: str) -> bool:
    """Return True if a folder of the root has a name that a catalog gives to Lance datasets."""
    return _DATASET.match(name) is not None


def is_own_folder(name: str) -> bool:
    """Return True if a folder of the root is, or may become, one of the metastore's own."""
    own = name in (TXNS, SNAPSHOT_RECORDS, ROOT_RECORD, FORMAT_KEY.partition("/")[0])
    return own or is_object_folder(name)


def is_object_folder(name: str) -> bool:
    """Return True for the name of an object's directory, or of a Name Resolution Directory, in the root."""
    return re.fullmatch(_UUID, name) is not None or is_name_folder(name)


def is_key(word: str) -> bool:
    """Return True for the immutable id of a namespace or table, or for the key of a part of a table."""
    return re.fullmatch(f"{_UUID}(/.+)?", word) is not None


def is_name_folder(name: str) -> bool:
    """Return True for the name of a Name Resolution Directory."""
    return _DIGEST.fullmatch(name) is not None


def is_table_data(key: str) -> bool:
    """Return True if a key is in a table's data folder. A Lance dataset has a folder of that name too."""
    return _TABLE_DATA.fullmatch(key) is not None and ".lance/" not in key


def parse_key(key: str) -> RevisionFile | MappingFile | TxnFile | None:
    """Parse the key of a published file; None if it is none."""
    if match := _REVISION.fullmatch(key):
        home, number, operation, txn = match.groups()
        return RevisionFile(home, int(number), operation, txn)
    if match := _MAPPING.fullmatch(key):
        home, digest_hex, number, operation, txn, object_id = match.groups()
        return MappingFile(home or "", digest_hex, int(number), operation, txn, object_id)
    if match := _TXN.fullmatch(key):
        return TxnFile(int(match[1]), match[2])
    return None


def canonical(parent: str, *parts: str) -> str:
    """Return the Canonical String: the parent's, then the own parts, joined by `|`, each escaped."""
    own = "|".join(map(escape, parts))
    return f"{parent}|{own}" if parent else own


def escape(part: str) -> str:
    """A part inside a Canonical String: `\\|` for `|`, and two backslashes for one (which no name contains)."""
    if "|" not in part and "\\" not in part:
        return part
    return part.replace("\\", "\\\\").replace("|", "\\|")


@lru_cache(maxsize=1 << 12)
def digest(canonical_string: str) -> str:
    """Return the name of a Name Resolution Directory: the SHA-1 hex digest of the Canonical String."""
    return hashlib.sha1(canonical_string.encode(), usedforsecurity=False).hexdigest()


def check_named_id(id: str, what: str) -> str:
    """A Named Immutable ID is a directory name that cannot be taken for any other directory of the layout."""
    if not _NAMED_ID.fullmatch(id) or id in ("rev", DATA_FOLDER) or _DIGEST.fullmatch(id):
        raise InvalidInputError(
            f"{id!r} cannot be the id of a {what}: use 1 to 100 letters, digits, '.', '_' or '-', beginning with a "
            f"letter or digit, other than 'rev' and '{DATA_FOLDER}'."
        )
    return id
