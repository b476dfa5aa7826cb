"""A table's record of tags and branches: what was changed through the catalog, in the order of slots. Pure.

Lance keeps both as files in the table's folder, where every Lance client looks and may change them. A change through
the catalog is an entry of this record, committed with the rest of its transaction; the files are made so afterwards, by
whoever committed it or is the next to look. Until they are, the entry counts. Then the file does, so that what a Lance
client changes holds, unless it bears the stamp of an older entry: then a process that slept has written it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from headwater.table_refs import BRANCH, TAG, Ref

REFS_FORMAT = "refs"
"""The format of the stream whose properties are the record."""
MAX_GONE = 100
"""So many entries of tags and branches that are gone are kept, once their files are."""


class RefTarget(msgspec.Struct, frozen=True):
    """The version that a tag names or a branch begins at, that one's branch, its manifest's bytes, and since when."""

    version: int
    branch: str | None = None
    size: int = 0
    time: int = 0


class RefEntry(msgspec.Struct, frozen=True):
    """The change of this number: what a tag or branch was changed to (None: deleted), and what it was before.

    `lost`: a branch that was deleted had versions of its own, which do not come back with it.
    """

    number: int
    to: RefTarget | None = None
    was: RefTarget | None = None
    lost: bool = False


class RefRecord(msgspec.Struct, frozen=True):
    """The last entry of each tag and branch, and how many changes there were. `id` tells it from another record that
    the same folder may have had."""

    id: str
    count: int = 0
    tag: dict[str, RefEntry] = {}
    branch: dict[str, RefEntry] = {}

    def of(self, kind: str) -> dict[str, RefEntry]:
        return self.tag if kind == TAG else self.branch

    def stamp(self, number: int) -> str:
        """Return the stamp that a ref file carries for the change it was written for."""
        return f"{self.id}:{number}"

    def number_of(self, stamp: str) -> int:
        """Return the change that a stamp is of: 0 if it is of another catalog's record."""
        id, _, number = stamp.rpartition(":")
        return int(number) if id == self.id and number.isdecimal() else 0


class KnownRefs(msgspec.Struct, frozen=True):
    """The tags and branches of a table by name. `due`: kind, name and entry of files that are not as they must be."""

    tags: dict[str, RefTarget]
    branches: dict[str, RefTarget]
    due: tuple[tuple[str, str, RefEntry], ...] = ()
    applied: int = 0
    """Up to which change of the record the files are as it says."""

    @property
    def unmade(self) -> dict[str, RefTarget]:
        """Return the branches that are recorded and not yet created in the table, with the version each begins at."""
        return {name: entry.to for kind, name, entry in self.due if kind == BRANCH and entry.to is not None}

    @property
    def leaving(self) -> set[str]:
        """The branches that are gone, but for their files."""
        return {name for kind, name, entry in self.due if kind == BRANCH and entry.to is None}


LEARNT = msgspec.json.Decoder(RefRecord)
"""Known to msgspec from here on: threads that are first at once crash the process."""


def parse_record(properties: Mapping[str, object]) -> RefRecord:
    return msgspec.convert(dict(properties), RefRecord)


def format_record(record: RefRecord) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(record)
    return found


def with_change(
    record: RefRecord,
    kind: str,
    name: str,
    to: RefTarget | None,
    was: RefTarget | None,
    applied: int = 0,
    lost: bool = False,
) -> RefRecord:
    """Return the record after one more change. `applied`: up to which one files are made, so that no other need be
    kept."""
    number = record.count + 1
    entries = {key: value for key, value in record.of(kind).items() if key != name}
    entries[name] = RefEntry(number, to, was, lost)
    gone = [key for key, value in entries.items() if value.to is None and value.number <= applied]
    for key in gone[:-MAX_GONE]:
        del entries[key]
    tags, branches = (entries, record.branch) if kind == TAG else (record.tag, entries)
    return RefRecord(record.id, number, tags, branches)


def was_before(record: RefRecord, since: int, kind: str, name: str, now: RefTarget | None) -> RefTarget | None:
    """Return a tag or branch as it was before a transaction. `since`: the number of changes before the transaction
    began.
    """
    own = record.of(kind).get(name)
    return own.was if own is not None and own.number > since else now


def changed_entries(before: RefRecord, after: RefRecord) -> Iterator[tuple[str, str, RefEntry]]:
    """Return the entries of a record that an older record lacks."""
    for kind in (TAG, BRANCH):
        for name, entry in after.of(kind).items():
            if before.of(kind).get(name) != entry:
                yield kind, name, entry


def is_as_left(before: RefRecord, left: RefRecord, now: RefRecord) -> bool:
    """Return True if what a transaction changed was not changed again."""
    return all(now.of(kind).get(name) == entry for kind, name, entry in changed_entries(before, left))


def reverted(before: RefRecord, left: RefRecord, now: RefRecord) -> RefRecord:
    """Return the record with what a transaction changed as it was before: what it did last is taken back first."""
    for kind, name, entry in sorted(changed_entries(before, left), key=lambda one: -one[2].number):
        now = with_change(now, kind, name, entry.was, entry.to)
    return now


def new_branches(before: RefRecord, left: RefRecord) -> Iterator[str]:
    """Yield the branches that a transaction made, which go when it is undone."""
    for kind, name, entry in changed_entries(before, left):
        if kind == BRANCH and entry.was is None and entry.to is not None:
            yield name


def lost_rows(before: RefRecord, left: RefRecord, is_written: Callable[[str], bool]) -> Iterator[str]:
    """Return why changed branches cannot be restored: no record has the rows that they hold."""
    for kind, name, entry in changed_entries(before, left):
        if kind == BRANCH and entry.lost:
            yield f"the branch {name!r} had rows of its own, which are gone"
        if kind == BRANCH and entry.was is None and is_written(name):
            yield f"the branch {name!r} was written to since"


def left_standing(now: RefRecord, after: RefRecord) -> Iterator[str]:
    """Return the refs that would stand on a missing branch after the changes that one record has beyond another."""
    gone = {name: entry.number for name, entry in after.branch.items() if entry.to is None}
    for kind in (TAG, BRANCH):
        for name, entry in after.of(kind).items():
            on = entry.to.branch if entry.to is not None else None
            if on is not None and on in gone and max(entry.number, gone[on]) > now.count:
                yield f"the {kind} {name!r} stands on the branch {on!r}"


def known_refs(files: Mapping[tuple[str, str], Ref], record: RefRecord, applied: int) -> KnownRefs:
    """Return the refs of a table, from the files of its folder and its record. `applied`: the changes already in the
    files.
    """
    found = {key: RefTarget(ref.version, ref.branch, ref.size) for key, ref in files.items()}
    due: list[tuple[str, str, RefEntry]] = []
    for kind in (TAG, BRANCH):
        for name, entry in record.of(kind).items():
            file = files.get((kind, name))
            if not _counts(kind, file, record, entry, applied):
                continue
            if file is None or _number(file, record) < entry.number:  # else it is of a change that is not known here
                due.append((kind, name, entry))
            if entry.to is None:
                found.pop((kind, name), None)
            else:
                found[kind, name] = entry.to
    tags, branches = ({name: to for (kind, name), to in found.items() if kind == one} for one in (TAG, BRANCH))
    return KnownRefs(tags, branches, tuple(due), applied)


def _counts(kind: str, file: Ref | None, record: RefRecord, entry: RefEntry, applied: int) -> bool:
    """Return True if the entry counts, and not the file."""
    is_new = entry.number > applied
    if kind == BRANCH or file is None:
        return is_new and (entry.to is None) != (file is None)
    number = _number(file, record)
    return number != entry.number and (is_new or number > 0)


def _number(file: Ref, record: RefRecord) -> int:
    """Return the change of the record that a file was written for; 0: somebody else has."""
    return record.number_of(file.stamp or "")
