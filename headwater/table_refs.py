"""What stands on a version of a table: tags (also those of streams), and branches that begin at it.

Read from the table's `_refs/` folder, so also of a table that cannot be opened any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from headwater.store import Store

REFS = "_refs"
KINDS = {"tag": f"{REFS}/tags", "branch": f"{REFS}/branches"}


class _Contents(msgspec.Struct, rename="camel"):
    """The file of a tag (`branch`, `version`) or of a branch (`parentBranch`, `parentVersion`)."""

    branch: str | None = None
    version: int | None = None
    parent_branch: str | None = None
    parent_version: int | None = None


_contents = msgspec.json.Decoder(_Contents)


@dataclass(frozen=True)
class Ref:
    """A tag, a branch or a named snapshot, the version it stands on, and that one's branch (None: the main one)."""

    kind: str
    name: str
    version: int
    branch: str | None
    key: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r}"


def read_refs(store: Store, location: str) -> Iterator[Ref]:
    """Every tag and branch of the table in a folder. A file that is none is passed over."""
    for kind, folder in KINDS.items():
        keys = [entry.key for entry in store.children(f"{location}/{folder}").entries if entry.key.endswith(".json")]
        for key, data in zip(keys, store.get_all(keys), strict=True):
            ref = _parse(kind, key, data) if data is not None else None
            if ref is not None:
                yield ref


def branch_names(store: Store, location: str) -> list[str]:
    return [ref.name for ref in read_refs(store, location) if ref.kind == "branch"]


def held_versions(refs: Iterable[Ref], branch: str | None) -> Mapping[int, Ref]:
    """The versions of one line that something stands on."""
    return {ref.version: ref for ref in refs if (ref.branch or None) == branch}


def snapshot_refs(pinned: Mapping[int, str]) -> Iterator[Ref]:
    """Named snapshots of the catalog, by the versions of a table that they need."""
    for version, name in pinned.items():
        yield Ref("snapshot", name, version, None, "")


def _parse(kind: str, key: str, data: bytes) -> Ref | None:
    try:
        found = _contents.decode(data)
    except msgspec.DecodeError:
        return None
    name = unquote(key.rsplit("/", 1)[-1].removesuffix(".json"))
    version, branch = (found.version, found.branch) if kind == "tag" else (found.parent_version, found.parent_branch)
    return None if version is None else Ref(kind, name, version, None if branch == "main" else branch, key)
