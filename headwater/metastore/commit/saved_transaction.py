"""An open transaction as bytes, so that any process on the root can go on with it."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.metastore.commit.draft import AppendedDelta, Draft, DroppedDelta
from headwater.metastore.commit.reads import Read
from headwater.metastore.commit.rules import Header
from headwater.metastore.state.slot_views import IndexView, Item


class SavedTransaction(msgspec.Struct):
    """A serialized open transaction: its reads, its changes, and the slot it began at."""

    id: str
    start: int
    message: str
    author: str
    base: int
    reads: list[Read]
    items: dict[str, Item]
    paths: dict[str, tuple[str, ...]]
    names: list[tuple[str, str, str | None]]
    moved: dict[str, dict[str, bool]]
    new_parts: dict[str, list[str]]
    appends: list[AppendedDelta]
    dropped_deltas: list[DroppedDelta]

    @property
    def header(self) -> Header:
        return Header(self.id, self.start, self.message, self.author)

    def draft(self, view: IndexView) -> Draft:
        """The draft over the index, which must know its base."""
        return Draft(
            view,
            set(self.reads),
            dict(self.items),
            self.paths,
            {(parent, digest): key for parent, digest, key in self.names},
            self.moved,
            self.new_parts,
            self.appends,
            self.dropped_deltas,
        )


def saved(header: Header, draft: Draft) -> SavedTransaction:
    names: list[Any] = [(parent, digest, key) for (parent, digest), key in draft.names.items()]
    return SavedTransaction(
        header.id,
        header.start,
        header.message,
        header.author,
        draft.base.at,
        sorted(draft.reads, key=repr),
        draft.items,
        draft.paths,
        names,
        draft.moved,
        draft.new_parts,
        draft.appends,
        draft.dropped_deltas,
    )
