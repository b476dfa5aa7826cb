"""Reads of a transaction, as values: what it depends on, and the last slot that changed that.

`rules.conflict` refuses a transaction if a slot after its snapshot changed one of them. Pure: reads look at an index.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from headwater.metastore.state.index import SlotIndex


class NameRead(msgspec.Struct, frozen=True, tag="name", gc=False):
    """The object that a name in a namespace means, or that it means none."""

    changed: ClassVar[str] = "a name it read or wrote"
    parent: str
    digest: str

    @property
    def owner(self) -> str:
        return self.parent

    def last_change(self, index: SlotIndex) -> int:
        versions = index.name_versions(f"{self.parent}/{self.digest}")
        return versions[-1].slot if versions else 0


class _KeyRead(msgspec.Struct, frozen=True, gc=False):
    key: str

    @property
    def owner(self) -> str:
        """The key of the namespace or table that this is, or is a part of."""
        return self.key.partition("/")[0]


class ObjectRead(_KeyRead, frozen=True, tag="object", gc=False):
    """The content of an object: its name, its parent, its properties."""

    changed: ClassVar[str] = "an object it read or wrote"

    def last_change(self, index: SlotIndex) -> int:
        node = index.node(self.key)
        return node.versions[-1].slot if node is not None else 0


class PartRead(_KeyRead, frozen=True, tag="part", gc=False):
    """The existence of a part of a table, not its content."""

    changed: ClassVar[str] = "whether a part of a table is there"

    def last_change(self, index: SlotIndex) -> int:
        node = index.node(self.key)
        changes = reversed(node.versions) if node is not None else ()
        return next((revision.slot for revision in changes if revision.operation != "update"), 0)


class ChildrenRead(_KeyRead, frozen=True, tag="children", gc=False):
    """The children or parts of an object, with their content."""

    changed: ClassVar[str] = "the children or parts of an object it read"

    def last_change(self, index: SlotIndex) -> int:
        return index.touched.get(self.key, index.since)


class MembersRead(_KeyRead, frozen=True, tag="members", gc=False):
    """The set of children or parts that an object has, not their content."""

    changed: ClassVar[str] = "which children or parts an object has"

    def last_change(self, index: SlotIndex) -> int:
        return index.members.get(self.key, index.since)


class LogRead(_KeyRead, frozen=True, tag="log", gc=False):
    """The deltas of a stream."""

    changed: ClassVar[str] = "the deltas of a stream it read"

    def last_change(self, index: SlotIndex) -> int:
        log = index.stream(self.key)
        return log.changed if log is not None else 0


class DeltaRead(_KeyRead, frozen=True, tag="delta", gc=False):
    """One delta of a stream: only a drop of that delta changes it."""

    changed: ClassVar[str] = "a delta it dropped"
    position: int

    def last_change(self, index: SlotIndex) -> int:
        log = index.stream(self.key)
        return log.dropped.get(self.position, 0) if log is not None else 0


class FolderRead(msgspec.Struct, frozen=True, tag="folder", gc=False):
    """The tables with a dataset in or around a folder, by one of its signs."""

    changed: ClassVar[str] = "which table has files that it gives to one"
    owner: ClassVar[str] = ""
    sign: str

    def last_change(self, index: SlotIndex) -> int:
        return index.datasets.came_by(self.sign)


Read = NameRead | ObjectRead | PartRead | ChildrenRead | MembersRead | LogRead | DeltaRead | FolderRead
