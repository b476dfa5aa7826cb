"""Roots that another program wrote in the layout of the DeltaCAT document, or that lost what made them a metastore.

A write there would hide what the root holds, so each is refused with what was found. The document defines names, ids,
revisions and transactions; it leaves open what a revision says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from headwater.errors import InvalidTableStateError
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
"""The same by DeltaCAT 2.x, which spreads them over numbered folders."""


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
