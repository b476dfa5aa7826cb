"""The kind of catalog that a root holds, by one listing, and the rule for a new metastore.

    config.look (Catalog, serve, init, Spark) ──┐
    Metastore (connect, MetastoreNamespace) ────┴── root_kind ── foreign_root, check_not_lost

Every door that makes a metastore gets its answer here. `connect("dir")` takes any folder that is no metastore, as the
directory document says. A root that another program wrote in the layout of the DeltaCAT document, or that lost what
made it a metastore, is refused with what was found: a write there would hide what the root holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice

import msgspec

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.metastore.records.layout import (
    FORMAT_KEY,
    SLOTS,
    TXNS,
    MappingFile,
    RevisionFile,
    TxnFile,
    below,
    canonical,
    digest,
    is_dataset_folder,
    is_object_folder,
    parse_key,
    revision_key,
)
from headwater.store import Store
from headwater.store.seam import OWN_FOLDER
from headwater.wording import many

SHOWN = 5
MAX_FOLDERS, MAX_FILES, MAX_READS = 32, 10_000, 32
"""Limits of what is looked at: folders of a root that may be nobody's, files of one that is another's, revisions."""
DELTACAT_FOLDERS = frozenset({"running", "failed", "paused", "success"})
"""The folders in which DeltaCAT 2.x keeps transactions."""
_DELTACAT_TXN = re.compile(r"\d{4}|\d{13,}_.+")
"""In such a folder: the year of a transaction, or its start and id."""
_PUBLISHED = re.compile(r"(?:.+/)?\d{20}_(?:create|update|delete)_[^/]+\.[^/]+")
"""A revision or a mapping file, whatever the ids of its writer look like."""
_DELTACAT_FILE = re.compile(r".+/\d+/\d+/\d{20}_(?:create|update|delete)_[^/]+")
"""Such a file of DeltaCAT 2.x, which spreads them over numbered folders."""


def is_metastore(store: Store) -> bool:
    """Return True if a root is a metastore: by its format file, or if that is lost, by slots or published transactions.

    Folders that only have such names, as in the root of another program, make none.
    """
    return store.head(FORMAT_KEY) is not None or bool(store.children(SLOTS).folders) or has_transactions(store)


def check_not_lost(store: Store, folders: Collection[str]) -> None:
    """Raise InvalidTableState (19) if a root with these folders, which is no metastore, holds names or revisions.

    This program publishes both after the slot that holds them, so that slot is lost, or another program wrote them.
    """
    for folder in islice(filter(is_object_folder, sorted(folders)), MAX_FOLDERS):
        if any(_PUBLISHED.fullmatch(entry.key) for entry in islice(store.list(folder), MAX_FILES)):
            raise foreign_root(store)


def has_transactions(store: Store) -> bool:
    """Return True if transactions were published, by this program or another one that follows the document."""
    found = store.children(TXNS)
    own = any(isinstance(parse_key(entry.key), TxnFile) for entry in found.entries)
    return own or _is_deltacat(store, found.folders)


def _is_deltacat(store: Store, folders: Collection[str]) -> bool:
    """Return True if `txn` with these folders is that of DeltaCAT 2.x: a state of transactions each, then dates."""
    states = DELTACAT_FOLDERS.intersection(folders)
    if len(states) != 1:
        return bool(states)
    found = store.children(f"{TXNS}/{next(iter(states))}")
    names = (*found.folders, *(entry.key.rpartition("/")[2] for entry in found.entries))
    return any(_DELTACAT_TXN.fullmatch(name) for name in names)


def foreign_root(store: Store) -> InvalidTableStateError:
    """Return error 19 for a root that is no metastore of ours, with what it holds by the document's own terms."""
    keys = [entry.key for entry in islice(store.list(), MAX_FILES)]
    if _is_deltacat(store, store.children(TXNS).folders) or any(map(_DELTACAT_FILE.fullmatch, keys)):
        what, lost = "is one of DeltaCAT 2.x", ""
    else:
        files = [file for key in keys if (file := parse_key(key)) is not None]
        txns = sum(isinstance(file, TxnFile) for file in files)
        found = [_named(store, files), many(txns, "transaction") if txns else f"no transaction in {TXNS}"]
        another = " with the content of another program" if txns else ""
        what = f"holds {' and '.join(found)}, in the layout of the DeltaCAT document{another}"
        own = f" If it is a catalog that lost its folders {OWN_FOLDER} and {TXNS}, bring them back from a copy."
        lost = "" if txns else own
    return InvalidTableStateError(
        f"This root {what}: what is written there now would hide it.{lost} Use another root: `headwater from-deltacat` "
        "brings the tables of a DeltaCAT 2.x root there. Nothing was changed."
    )


def _named(store: Store, files: Sequence[object]) -> str:
    """Return the names that are mapped in words; of a root without any, the directories that have revisions."""
    names, what = list(_names(store, files)), "name"
    if not names:
        names, what = sorted({file.home for file in files if isinstance(file, RevisionFile)}), "nameless object"
    shown = f" ({', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''})" if names else ""
    return f"{many(len(names), what) if names else 'no name'}{shown}"


def _names(store: Store, files: Sequence[object]) -> Iterator[str]:
    """Yield what the document defines of each name: the name itself, if a text of its object has that digest, and the
    object's id and revision."""
    newest: dict[str, RevisionFile] = {}
    for file in files:
        if isinstance(file, RevisionFile) and (file.home not in newest or file.number > newest[file.home].number):
            newest[file.home] = file
    known = {"": ""}
    mappings = [file for file in files if isinstance(file, MappingFile) and file.operation != "delete"]
    for place, file in enumerate(sorted(mappings, key=lambda file: len(file.home))):
        home = below(file.home, file.object_id)
        told = newest.get(home) if place < MAX_READS else None
        if told is None:
            yield f"{file.digest} -> {file.object_id}"
            continue
        (data,) = store.get_all([revision_key(told.home, told.number, told.operation, told.txn)])
        texts = (canonical(known.get(file.home, ""), text) for text in _texts(data or b""))
        known[home] = next((text for text in texts if digest(text) == file.digest), file.digest)
        yield f"{known[home]} -> {file.object_id}, {told.operation} {told.number}"


def _texts(data: bytes) -> Iterator[str]:
    """Yield the texts in MessagePack, whatever it is."""
    try:
        stack = [msgspec.msgpack.decode(data, strict=False)]
    except (ValueError, RecursionError):
        return
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            stack += value.values()
        elif isinstance(value, (list, tuple)):
            stack += value


MANIFEST = "__manifest"
DIRECTORY_MARKER = f"{OWN_FOLDER}/directory"
"""Written by `headwater init`: an empty folder that is to be a directory catalog."""
UPGRADE_MARKER = f"{OWN_FOLDER}/upgrade"
"""There while the root becomes a metastore: every open is refused."""
TABLE_SUFFIX = ".lance"
LANCE_FOLDERS = frozenset({"data", "_transactions", "_versions"})
"""Folders of a dataset before its first commit."""
MAX_LISTINGS = 6
"""Folders that are listed to name the things in a root that is refused."""
TABLE_FOLDERS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
FILE_ENDINGS = {".metadata.json": "an Iceberg table", ".parquet": "Parquet files"}


class RootKind(Enum):
    """The kind of catalog found at a root."""

    MISSING = "nothing"
    EMPTY = "an empty folder"
    OTHER = "a folder with other things in it"
    DIRECTORY = "a directory catalog (impl=dir)"
    METASTORE = "a metastore catalog (impl=metastore)"


def check_finished(store: Store) -> None:
    """Raise InvalidTableState (19) while an upgrade of the root is unfinished. One request."""
    if store.head(UPGRADE_MARKER) is not None:
        raise unfinished_upgrade()


def unfinished_upgrade() -> InvalidTableStateError:
    return InvalidTableStateError(
        "This root is being upgraded to a metastore, or an upgrade was interrupted: run `headwater upgrade` again."
    )


def root_kind(store: Store, early: bool = False) -> RootKind:
    """Return the kind of a root that exists. Raise InvalidTableState (19) during an upgrade, and for lost records.

    A root with transactions of another program counts as a metastore: to open it raises an error with its content.
    `early`: folders without a suffix are tables of a directory catalog.
    """
    found = store.children()
    if OWN_FOLDER in found.folders:
        check_finished(store)
    if {OWN_FOLDER, TXNS}.intersection(found.folders) and is_metastore(store):
        return RootKind.METASTORE
    if (early and set(found.folders) - {OWN_FOLDER}) or _is_directory(store, found.folders):
        return RootKind.DIRECTORY
    check_not_lost(store, found.folders)
    others = (name for name in found.folders if name != OWN_FOLDER and not _is_unfinished(store, name))
    return RootKind.OTHER if found.entries or any(others) else RootKind.EMPTY


def _is_directory(store: Store, folders: Collection[str]) -> bool:
    """Return True if a root with these folders, which is no metastore, is a directory catalog."""
    if MANIFEST in folders or any(name.endswith(TABLE_SUFFIX) for name in folders):
        return True
    return OWN_FOLDER in folders and store.head(DIRECTORY_MARKER) is not None


def _is_unfinished(store: Store, folder: str) -> bool:
    """Return True for the files of a first transaction that was cut off, or that is not committed yet: a dataset, or
    data of stream tables."""
    if not is_dataset_folder(folder) and not is_object_folder(folder):
        return False
    found = store.children(folder)
    if found.entries:
        return False
    return LANCE_FOLDERS.issuperset(found.folders) or all(map(is_object_folder, found.folders))


def check_new(store: Store) -> None:
    """Raise InvalidInput (13) if the root, which has no commit yet, holds another catalog or other things."""
    kind = root_kind(store)
    if kind is RootKind.DIRECTORY:
        raise InvalidInputError(
            "This root is a directory catalog: open it with impl=dir, or make it a metastore with `headwater upgrade`."
        )
    if kind is RootKind.OTHER:
        raise InvalidInputError(
            f"This root is not a catalog, and holds {things_in(store)}: `headwater init` makes a catalog beside them, "
            "or name another root. Nothing was changed."
        )


def things_in(store: Store) -> str:
    """Return the first names of a root, or the first table of another format that the root holds.

    The search goes down the first folder of each folder, since tables stand one or two levels below a warehouse.
    """
    place, names = "", ""
    for _ in range(MAX_LISTINGS):
        found = store.children(place)
        files = [entry.key.rpartition("/")[2] for entry in found.entries]
        names = names or _shown([*found.folders, *files])
        if known := _format(found.folders, files):
            return f"{known} ({place.removesuffix('/metadata') or names})"
        if not found.folders:
            break
        below = "metadata" if "metadata" in found.folders else found.folders[0]
        place = f"{place}/{below}".lstrip("/")
    return names


def _shown(names: list[str]) -> str:
    return ", ".join(sorted(names)[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _format(folders: Collection[str], files: Collection[str]) -> str | None:
    """Return the format of the table that a folder with these names is a part of; None if no format is known."""
    marked = [what for name, what in TABLE_FOLDERS.items() if name in folders]
    marked += [what for ending, what in FILE_ENDINGS.items() if any(file.endswith(ending) for file in files)]
    return marked[0] if marked else None
