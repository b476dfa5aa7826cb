"""Files of table versions: frees those of removed versions alone, and reports missing and leftover ones.

Leftovers are those of dead writers and interrupted drops in a directory catalog; `find_leftovers` deletes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from headwater.lance_manifest import (
    MEM_WAL,
    Contents,
    ManifestReader,
    manifest_digest,
    manifest_message,
    names_in,
    read_contents,
)
from headwater.metastore.records.objects import Removal
from headwater.metastore.upkeep.garbage import OWN_FOLDERS, Folders
from headwater.namespace.versions.stored_versions import VersionLine, staged_version
from headwater.registries.folders import folder_status
from headwater.registries.layout import is_reserved
from headwater.store import Entry, Store
from headwater.store.seam import get_in_parts
from headwater.table_refs import branch_names
from headwater.tables.layout import TRASH, VERSIONS, manifest_version

INDICES, DELETIONS = "_indices/", "_deletions/"
NEEDED = ("data/", DELETIONS, INDICES)
"""Without these a version cannot be read; its transaction file tells only of its past."""
ARROW_MAGIC = b"ARROW1"
Name = TypeVar("Name", int, str)


def free_files(store: Store, line: VersionLine, removed: Sequence[bytes]) -> tuple[int, int]:
    """Delete what only the removed manifests name: how many files, and their bytes.

    Called when those manifests are gone. A manifest that is left and not understood may name anything: nothing goes.
    """
    try:
        dead, alive = names_in(removed), names_in(_remaining(store, line))
    except ValueError:
        return 0, 0
    location = line.table.location
    files, folders = dead[0] - alive[0], dead[1] - alive[1]
    sizes: dict[str, int] = {}
    for parent in sorted({name.split("/", 1)[0] for name in files | folders}):
        listing = store.children(f"{location}/{parent}")
        sizes.update({item.key: item.size for item in listing.entries if _inside(location, item.key) in files})
        for name in listing.folders:
            if f"{parent}/{name}" in folders:
                sizes.update({item.key: item.size for item in store.list(f"{location}/{parent}/{name}")})
                store.delete_tree(f"{location}/{parent}/{name}")
    for key in sizes:
        store.delete(key)
    return len(sizes), sum(sizes.values())


@dataclass
class LostFile:
    """A file that versions name, by their numbers, and that is gone or damaged."""

    versions: list[int]
    is_gone: bool = True
    is_other: bool = False
    """True for a readable manifest that is not the recorded one."""


def lost_files(
    store: Store, location: str, manifests: Mapping[int, str], digests: Mapping[int, str | None]
) -> dict[str, LostFile]:
    """Return the files that versions name and that are not there, or have not the bytes they should have; of an index
    that is gone its folder.

    `manifests` are the keys of the versions' manifests, `digests` those of their bytes as far as they were recorded.
    A manifest that is gone is told elsewhere; of one that is not understood nothing is known.
    """
    there = {_inside(location, entry.key): entry.size for entry in store.list(f"{location}/")}
    folders = {"/".join(key.split("/")[:2]) for key in there}
    lost: dict[str, LostFile] = {}
    reader, deletions, is_whole = ManifestReader(), dict[str, str](), True
    for number, data in _read(store, manifests):
        if _is_cut_manifest(data):
            lost[_inside(location, manifests[number])] = LostFile([number], is_gone=False)
        elif digests.get(number) not in (None, manifest_digest(data)):
            lost[_inside(location, manifests[number])] = LostFile([number], is_gone=False, is_other=True)
        try:
            contents = reader.read(data)
        except ValueError:
            continue
        is_whole = is_whole and not any(_lost(contents, there, folders))
        deletions.update((name, f"{location}/{name}") for name in _deletions(contents, there))
    cut = {name for name, data in _read(store, deletions) if not data.endswith(ARROW_MAGIC)}
    if cut or not is_whole:  # only then it matters which versions name a file
        lost |= _lost_by_version(store, manifests, there, folders, cut)
    return dict(sorted(lost.items()))


def _lost_by_version(
    store: Store, manifests: Mapping[int, str], there: Mapping[str, int], folders: Set[str], cut: Set[str]
) -> dict[str, LostFile]:
    """Return the files that are gone or damaged, each with all versions that name it. `cut`: damaged deletion files."""
    lost: dict[str, LostFile] = {}
    for number, data in _read(store, manifests):
        if not _is_readable(data):
            continue
        contents = read_contents(data)
        damaged = ((name, False) for name in _deletions(contents, there) if name in cut)
        for name, is_gone in (*_lost(contents, there, folders), *damaged):
            lost.setdefault(name, LostFile([], is_gone)).versions.append(number)
    return lost


def _deletions(contents: Contents, there: Mapping[str, int]) -> Iterator[str]:
    """Yield the deletion files that are there: a manifest does not tell their bytes, so they are read."""
    for name in contents.files - contents.elsewhere:
        if name in there and name.startswith(DELETIONS) and name.endswith(".arrow"):
            yield name


def _lost(contents: Contents, there: Mapping[str, int], folders: Set[str]) -> Iterator[tuple[str, bool]]:
    """Return the files of one version that are gone (True) or have other bytes (False)."""
    gone = {each for each in contents.folders - contents.elsewhere if each.startswith(INDICES)} - folders
    yield from ((folder, True) for folder in gone)
    for name in contents.files - contents.elsewhere:
        if not name.startswith(NEEDED) or name.rpartition("/")[0] in gone:
            continue
        if name not in there:
            yield name, True
        elif contents.sizes.get(name, there[name]) != there[name]:
            yield name, False


def _read(store: Store, keys: Mapping[Name, str]) -> Iterator[tuple[Name, bytes]]:
    """Return the contents of keys, read in few rounds, without those that do not exist."""
    names = sorted(keys)
    for name, data in zip(names, get_in_parts(store, [keys[name] for name in names]), strict=True):
        if data is not None:
            yield name, data


def _is_cut_manifest(data: bytes) -> bool:
    try:
        manifest_message(data)
    except ValueError:
        return True
    return False


def _remaining(store: Store, line: VersionLine) -> Iterator[bytes]:
    """Yield every manifest that is left: of the main line and of all branches, and those that writers have staged."""
    location = line.table.location
    lines = [VERSIONS, *(f"tree/{name}/{VERSIONS}" for name in branch_names(store, location))]
    for folder in lines:
        for entry in store.children(f"{location}/{folder}").entries:
            name = entry.key.rsplit("/", 1)[-1]
            data = store.get_all([entry.key])[0] if manifest_version(name) or staged_version(name) else None
            if data is not None and not (staged_version(name) and not _is_readable(data)):
                yield data


def _is_readable(data: bytes) -> bool:
    """Staged manifests are put in one piece, so one that cannot be read is junk and no writer's."""
    try:
        read_contents(data)
    except ValueError:
        return False
    return True


def _inside(location: str, key: str) -> str:
    return key.removeprefix(f"{location}/")


def find_leftovers(store: Store, locations: Sequence[str], recorded: Set[str], before_ms: int) -> list[Removal]:
    """Return all that can go, and why: nothing that is younger than `before_ms`, or that a table may need.

    `locations` are the folders of the tables that there are, `recorded` the manifests that records of versions name.
    """
    by_folder: dict[str, list[Entry]] = defaultdict(list)
    for entry in store.list():
        by_folder[entry.key.partition("/")[0]].append(entry)
    found = [
        Removal("folder", f"{TRASH}/{name}", "its table was dropped, and the drop was interrupted")
        for name in store.children(TRASH).folders
    ]
    stillborn = {
        folder: len(entries)
        for folder, entries in by_folder.items()
        if not is_reserved(folder) and _is_stillborn(store, folder, entries, before_ms)
    }
    inner = Folders(location for location in locations if location.strip("/") not in stillborn)
    gone = {folder: count for folder, count in stillborn.items() if not inner.overlap(folder)}
    why = "its creator died: it has no version, and was not touched since"
    found += [Removal("folder", folder, why, count) for folder, count in sorted(gone.items())]
    kept = [location.strip("/") for location in locations if location.strip("/") not in gone]
    return [*found, *_in_tables(store, kept, by_folder, recorded, before_ms)]


def _is_stillborn(store: Store, folder: str, entries: Sequence[Entry], before_ms: int) -> bool:
    """A folder with files of a table's writer alone: none is young or the manifest of a version, and it is unmarked."""
    for entry in entries:
        if entry.modified_ms >= before_ms or manifest_version(entry.key.rsplit("/", 1)[-1]) is not None:
            return False
    status = folder_status(store, folder)
    return not (status.deregistered or status.reserved or status.foreign)


def _in_tables(
    store: Store, locations: Sequence[str], by_folder: dict[str, list[Entry]], recorded: Set[str], before_ms: int
) -> Iterator[Removal]:
    """Staged manifests that are old, and old files that no manifest names. One manifest that is not understood may
    name anything, also in the folders of others: then no such file goes."""
    known = Folders(locations)
    alone = [one for one in locations if one not in known.above and not known.around(one)]
    files: dict[str, list[Entry]] = {}
    staged: list[Entry] = []
    named, folders = set[str](), set[str]()
    for location in alone:
        inside = [each for each in by_folder[location.partition("/")[0]] if each.key.startswith(f"{location}/")]
        left = [each for each in inside if _is_staged(each, before_ms) and each.key not in recorded]
        dead = {each.key for each in left}
        manifests = [each.key for each in inside if ".manifest" in each.key and each.key not in dead]
        try:
            found = names_in(get_in_parts(store, manifests))
        except ValueError:
            return
        named |= found[0]
        folders |= found[1]
        staged += left
        files[location] = [each for each in inside if each.modified_ms < before_ms]
    for entry in staged:
        yield Removal("staged", entry.key, "its writer died before it committed this manifest")
    for location, entries in files.items():
        for entry in entries:
            inner = entry.key.removeprefix(f"{location}/")
            if inner.startswith(OWN_FOLDERS) and inner not in named and "/".join(inner.split("/")[:2]) not in folders:
                yield Removal("data", entry.key, "no version names it: its writer died, or they went")


def _is_staged(entry: Entry, before_ms: int) -> bool:
    folder, _, name = entry.key.rpartition("/")
    return entry.modified_ms < before_ms and staged_version(name) is not None and f"/{MEM_WAL}/" not in folder
