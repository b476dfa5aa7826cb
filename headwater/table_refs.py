"""Tags and branches of Lance tables: rules for their names, and their files in the table's `_refs/` folder.

The files are read directly, so also for a table that pylance cannot open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote

import msgspec

from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.names import ObjectId
from headwater.store import Store

REFS = "_refs"
TAG, BRANCH = "tag", "branch"
KINDS = {TAG: f"{REFS}/tags", BRANCH: f"{REFS}/branches"}
BRANCH_TREE, BRANCH_VERSIONS = "tree", "_versions"
"""Lance's folder of branches, and the folder of versions in a branch."""


class _Contents(msgspec.Struct, rename="camel"):
    """The file of a tag (`branch`, `version`) or of a branch (`parentBranch`, `parentVersion`).

    `headwater` is a stamp of ours on a tag, which Lance passes over and does not write again: it says by which change
    of a catalog's record the file was written.
    """

    branch: str | None = None
    version: int | None = None
    parent_branch: str | None = None
    parent_version: int | None = None
    manifest_size: int | None = None
    headwater: str | None = None


_contents = msgspec.json.Decoder(_Contents)


@dataclass(frozen=True)
class Ref:
    """A tag, a branch or a named snapshot, the version it stands on, and that one's branch (None: the main one)."""

    kind: str
    name: str
    version: int
    branch: str | None
    key: str
    size: int = 0
    """The size of that version's manifest in bytes, if the file has it."""
    stamp: str | None = None

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r}"


def read_refs(store: Store, location: str) -> Iterator[Ref]:
    """Return every tag and branch of the table in a folder. Other files are ignored."""
    for kind, folder in KINDS.items():
        keys = [entry.key for entry in store.children(f"{location}/{folder}").entries if entry.key.endswith(".json")]
        for key, data in zip(keys, store.get_all(keys), strict=True):
            ref = _parse(kind, key, data) if data is not None else None
            if ref is not None:
                yield ref


def branch_names(store: Store, location: str) -> list[str]:
    return [ref.name for ref in read_refs(store, location) if ref.kind == "branch"]


def is_written(store: Store, location: str, branch: str) -> bool:
    """Return True if a branch has a version of its own, beyond the one at its creation."""
    found = store.children(f"{location}/{BRANCH_TREE}/{branch}/{BRANCH_VERSIONS}").entries
    return sum(entry.key.endswith(".manifest") for entry in found) > 1


def held_versions(refs: Iterable[Ref], branch: str | None) -> Mapping[int, Ref]:
    """Return the versions of one branch that a tag or another branch refers to."""
    return {ref.version: ref for ref in refs if (ref.branch or None) == branch}


def snapshot_refs(pinned: Mapping[int, str]) -> Iterator[Ref]:
    """Return the named snapshots of the catalog by the versions of a table that they need."""
    for version, name in pinned.items():
        yield Ref("snapshot", name, version, None, "")


def _parse(kind: str, key: str, data: bytes) -> Ref | None:
    try:
        found = _contents.decode(data)
    except msgspec.DecodeError:
        return None
    name = unquote(key.rsplit("/", 1)[-1].removesuffix(".json"))
    version, branch = (found.version, found.branch) if kind == TAG else (found.parent_version, found.parent_branch)
    if version is None:
        return None
    on = None if branch == "main" else branch
    return Ref(kind, name, version, on, key, found.manifest_size or 0, found.headwater)


def ref_key(kind: str, location: str, name: str) -> str:
    """Return the key of the file of a tag or branch."""
    return f"{location}/{KINDS[kind]}/{quote(name, safe='')}.json"


def applied_key(location: str, record: str, number: int) -> str:
    """Return the key of our mark that the files match a catalog's record up to this change.

    The change number is in the name, so that a late write of an older mark has no effect: the highest counts.
    """
    return f"{location}/{REFS}/headwater-{record}.{number}"


def applied_marks(store: Store, location: str, record: str) -> dict[str, int]:
    """Return the marks of a record by key. A mark without a number in its name has it in the file."""
    prefix = applied_key(location, record, 0).removesuffix(".0")
    keys = [entry.key for entry in store.children(f"{location}/{REFS}").entries if entry.key.startswith(prefix)]
    old = store.get_all([prefix])[0] or b"" if prefix in keys else b""
    texts = {key: key.removeprefix(f"{prefix}.") if key != prefix else old.decode().rpartition(":")[2] for key in keys}
    return {key: int(text) for key, text in texts.items() if text.isdecimal()}


def tag_file(version: int, branch: str | None, size: int, time_ms: int, stamp: str) -> bytes:
    """Return the file of a tag as Lance writes it, with our stamp."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    contents = {"branch": branch, "version": version, "createdAt": time, "updatedAt": time, "manifestSize": size}
    return msgspec.json.encode({**contents, "metadata": {}, "headwater": stamp})


MAIN = "main"
MAX_REF_CHARS = 210
"""Characters of a name in its file, where a slash takes up to five: Lance writes that first under a longer name."""
MAX_VERSION = 2**63 - 1
_TAG = re.compile(r"[\w.-]+", re.ASCII)


def check_version(id: ObjectId, version: int | None) -> None:
    """Raise InvalidInput (13) unless it is a version number, TableVersionNotFound (11) for an impossible one."""
    if version is None:
        return
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise InvalidInputError(f"version must be a whole number, at least 1, not {version!r}.")
    if version == 0 or version > MAX_VERSION:
        raise TableVersionNotFoundError(f"Table {id} has no version {version}.")


def branch_of(name: str | None) -> str | None:
    """Return the checked name of a branch; None for the main branch."""
    return None if name in (None, "", MAIN) else check_branch(name)


def check_branch(name: object) -> str:
    """Return a branch name; InvalidInput (13) unless it is tag-like names joined by '/', since it becomes a path."""
    text = _short_text("branch", name)
    for segment in text.split("/"):
        _check_segment("branch", text, segment)
    return text


def check_tag(name: object) -> str:
    """Return a tag name; InvalidInput (13) unless it is letters, digits, '.', '-', '_': it becomes a file name."""
    text = _short_text("tag", name)
    _check_segment("tag", text, text)
    return text


def _short_text(kind: str, name: object) -> str:
    if not isinstance(name, str) or len(name) + 4 * name.count("/") > MAX_REF_CHARS:
        raise InvalidInputError(f"A {kind} name is a text of at most {MAX_REF_CHARS} characters; a slash counts five.")
    return name


def _check_segment(kind: str, name: str, segment: str) -> None:
    dotted = segment.startswith(".") or segment.endswith((".", ".lock")) or ".." in segment
    if dotted or not _TAG.fullmatch(segment):
        raise InvalidInputError(
            f"The {kind} name {name[:80]!r} cannot be used: use ASCII letters, digits, '-', '_' and single dots inside."
        )
