"""Give back the disk that removed versions held: the files that they named, and that no version left names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.lance_manifest import read_contents
from headwater.namespace.versions.paths import VersionLine, staged_version
from headwater.store import Store
from headwater.table_refs import branch_names
from headwater.tables.layout import VERSIONS, manifest_version


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
