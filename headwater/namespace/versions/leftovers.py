"""Leftovers of dead writers and interrupted drops in a directory catalog. This module deletes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from headwater.lance_manifest import MEM_WAL, read_contents
from headwater.metastore.records.objects import Removal
from headwater.metastore.upkeep.garbage import OWN_FOLDERS, Folders
from headwater.namespace.versions.file_removal import MANIFESTS_AT_ONCE
from headwater.namespace.versions.paths import staged_version
from headwater.registries.folders import folder_status
from headwater.registries.layout import is_reserved
from headwater.store import Entry, Store
from headwater.tables.layout import TRASH, manifest_version


def find_leftovers(store: Store, locations: Sequence[str], recorded: Set[str], before_ms: int) -> list[Removal]:
    """All that can go, and why: nothing that is younger than `before_ms`, or that a table may need.

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
        for first in range(0, len(manifests), MANIFESTS_AT_ONCE):
            for data in store.get_all(manifests[first : first + MANIFESTS_AT_ONCE]):
                try:
                    contents = read_contents(data or b"")
                except ValueError:
                    return
                named |= contents.files
                folders |= contents.folders
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
