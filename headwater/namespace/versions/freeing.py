"""Which files versions name: what only removed ones named is given back, and what is gone is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headwater.lance_manifest import read_contents
from headwater.namespace.versions.paths import VersionLine, staged_version
from headwater.store import Store
from headwater.table_refs import branch_names
from headwater.tables.layout import VERSIONS, manifest_version

NEEDED = ("data/", "_deletions/")
"""Without these a version cannot be read; its transaction file tells only of its past."""
INDICES = "_indices/"
MANIFESTS_AT_ONCE = 64


def free_files(store: Store, line: VersionLine, removed: Sequence[bytes]) -> tuple[int, int]:
    """Delete what only the removed manifests name: how many files, and their bytes.

    Called when those manifests are gone. A manifest that is left and not understood may name anything: nothing goes.
    """
    try:
        dead = [read_contents(data) for data in removed]
        alive = [read_contents(data) for data in _remaining(store, line)]
    except ValueError:
        return 0, 0
    location = line.table.location
    files = frozenset().union(*(item.files for item in dead)) - frozenset().union(*(item.files for item in alive))
    folders = frozenset().union(*(item.folders for item in dead)) - frozenset().union(*(item.folders for item in alive))
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


def lost_files(store: Store, location: str, manifests: Mapping[int, str]) -> dict[str, list[int]]:
    """The files, and folders of indices, that versions name and that are not there, each with those versions' numbers.

    `manifests` are the keys of the versions' manifests. One that is gone, or not understood, is told elsewhere.
    """
    there = {_inside(location, entry.key) for entry in store.list(f"{location}/")}
    folders = {"/".join(key.split("/")[:2]) for key in there}
    lost: dict[str, list[int]] = {}
    numbers = sorted(manifests)
    for first in range(0, len(numbers), MANIFESTS_AT_ONCE):
        some = numbers[first : first + MANIFESTS_AT_ONCE]
        for number, data in zip(some, store.get_all([manifests[number] for number in some]), strict=True):
            if data is None or not _is_readable(data):
                continue
            contents = read_contents(data)
            files = {file for file in contents.files - contents.elsewhere if file.startswith(NEEDED)}
            indices = {folder for folder in contents.folders if folder.startswith(INDICES)}
            for name in (files - there) | (indices - folders):
                lost.setdefault(name, []).append(number)
    return dict(sorted(lost.items()))


def _remaining(store: Store, line: VersionLine) -> Iterator[bytes]:
    """Every manifest that is left: of the main line and of all branches, and those that writers have staged."""
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
