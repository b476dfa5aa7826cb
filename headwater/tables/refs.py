"""What may name a version: its number, a branch, a tag. Pure."""

from __future__ import annotations

import re

from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.names import ObjectId

MAIN = "main"
MAX_REF_CHARS = 255
MAX_VERSION = 2**63 - 1
_TAG = re.compile(r"[\w.-]+", re.ASCII)


def check_version(id: ObjectId, version: int | None) -> None:
    """Versions are counted from 1: 13 for what is no version, 11 for one that cannot exist."""
    if version is None:
        return
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise InvalidInputError(f"version must be a whole number, at least 1, not {version!r}.")
    if version == 0 or version > MAX_VERSION:
        raise TableVersionNotFoundError(f"Table {id} has no version {version}.")


def branch_of(name: str | None) -> str | None:
    """The branch that is meant; None is the main one."""
    return None if name in (None, "", MAIN) else check_branch(name)


def check_branch(name: object) -> str:
    """A branch is one or more tag-like names joined by '/'. It becomes a path, so nothing else may pass."""
    if not isinstance(name, str) or len(name) > MAX_REF_CHARS:
        raise InvalidInputError(f"A branch name is a text of at most {MAX_REF_CHARS} characters.")
    for segment in name.split("/"):
        _check_segment("branch", name, segment)
    return name


def check_tag(name: object) -> str:
    """A tag has letters, digits, '.', '-' and '_'. It becomes a file name, so nothing else may pass."""
    if not isinstance(name, str) or len(name) > MAX_REF_CHARS:
        raise InvalidInputError(f"A tag name is a text of at most {MAX_REF_CHARS} characters.")
    _check_segment("tag", name, name)
    return name


def _check_segment(kind: str, name: str, segment: str) -> None:
    dotted = segment.startswith(".") or segment.endswith((".", ".lock")) or ".." in segment
    if dotted or not _TAG.fullmatch(segment):
        raise InvalidInputError(
            f"The {kind} name {name[:80]!r} cannot be used: use ASCII letters, digits, '-', '_' and single dots inside."
        )
