"""The half of a transaction that edits inside tables: versions, streams and partitions, and the deltas in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.metastore.commit import table_parts
from headwater.metastore.commit.draft import AppendedDelta, DeltaRead, DroppedDelta
from headwater.metastore.commit.edits import ObjectEdits, locked
from headwater.metastore.commit.table_parts import DELTA_FORMAT, FIRST_VERSION
from headwater.metastore.records.disk_records import own_properties
from headwater.metastore.records.objects import (
    ACTIVE,
    DEPRECATED,
    LIFECYCLE,
    LIFECYCLES,
    UNRELEASED,
    Object,
    check_type,
    data_files,
    lifecycle_of,
)
from headwater.metastore.state.slot_views import Item, Place, object_of, part_of, resolve_table
from headwater.metastore.state.snapshot import Path
from headwater.names import object_id


class TableEdits(ObjectEdits):
    """The edits of a transaction inside tables."""

    @locked
    def create_table(
        self,
        path: Path,
        properties: Mapping[str, object] | None = None,
        version: str = FIRST_VERSION,
        formats: Sequence[str] = (DELTA_FORMAT,),
        id: str | None = None,
        stream_properties: Mapping[str, object] | None = None,
    ) -> Object:
        """Create a table with its first table version and one stream for each format.

        `id`: a fresh uuid of the caller's, who has written files for the table already.
        """
        table_parts.check_parts(version, formats)
        table = self._create(path, "table", properties, id)
        self._create_version(table, version, {}, formats, own_properties(stream_properties))
        return object_of(table)

    # Table versions

    @locked
    def create_table_version(
        self,
        path: Path,
        version: str,
        properties: Mapping[str, object] | None = None,
        formats: Sequence[str] = (DELTA_FORMAT,),
    ) -> Object:
        """Create a table version with its streams, beside the active one: it is unreleased until it is activated.

        Appends and reads go to the active version unless the caller names one.
        """
        table = resolve_table(self._ready(), object_id(path))
        table_parts.check_parts(version, formats)
        known = {**own_properties(properties), LIFECYCLE: UNRELEASED}
        return self._shown(table, self._create_version(table, version, known, formats))

    @locked
    def activate_table_version(self, path: Path, id: str) -> Object:
        """Make a version the active one, which readers and writers by the table's name get from the commit on.

        The version that was active becomes deprecated: it stays readable by its id, and can be made active again.
        """
        draft = self._ready()
        _, table, item = self._version(path, id)
        for other in list(draft.table_versions(table.key)):
            if other.node.key != item.node.key and lifecycle_of(other.revision.properties) == ACTIVE:
                self._set_lifecycle(table, other, DEPRECATED)
        if lifecycle_of(item.revision.properties) != ACTIVE:
            self._set_lifecycle(table, item, ACTIVE)
        return self._shown(table, item)

    def _set_lifecycle(self, table: Place, item: Item, lifecycle: str) -> None:
        table_parts.update_part(self.draft, table, item, {**item.revision.properties, LIFECYCLE: lifecycle})

    @locked
    def update_table_version(self, path: Path, id: str, properties: Mapping[str, object]) -> Object:
        """Replace its properties: afterwards they are exactly these, with its lifecycle if they name none."""
        _, table, item = self._version(path, id)
        known = item.revision.properties
        now, asked = lifecycle_of(known), properties.get(LIFECYCLE, lifecycle_of(known))
        if asked != now and (ACTIVE in (asked, now) or asked not in LIFECYCLES):
            raise InvalidInputError(
                f"The table version {id!r} of {object_id(path)} is {now!r} and cannot become {asked!r} like this: "
                "activate a version to change which one is active."
            )
        kept = {LIFECYCLE: now} if LIFECYCLE in known else {}
        return self._update(table, item, {**kept, **properties})

    @locked
    def drop_table_version(self, path: Path, id: str) -> None:
        """Drop it with all below it. Its id stays taken. The active one is refused: a table without one has no rows."""
        draft = self._ready()
        _, table, item = self._version(path, id)
        active = table_parts.find_active(draft.unnoted(), table)
        if active is not None and active.node.key == item.node.key:
            alone = len(list(draft.parts(table.key))) == 1
            instead = "drop the table" if alone else "activate another before you drop it"
            raise InvalidInputError(f"The table version {id!r} of {object_id(path)} is the active one: {instead}.")
        table_parts.drop_part(self.draft, table, item)

    # Streams

    @locked
    def create_stream(self, path: Path, format: str, version: str | None = None, id: str | None = None) -> Object:
        """Create a stream. Its id is the format unless one is chosen, so a version may have several of one format."""
        _, table, above = self._version(path, version)
        return self._shown(
            table, table_parts.create_part(self.draft, table, above, "stream", table_parts.stream_parts(format, id), {})
        )

    @locked
    def update_stream(
        self, path: Path, id: str, properties: Mapping[str, object], *, version: str | None = None
    ) -> Object:
        """Replace its properties. It conflicts with their readers and writers, never with appends to the stream."""
        _, table, item = self._stream(path, DELTA_FORMAT, version, id)
        return self._update(table, item, properties)

    @locked
    def drop_stream(self, path: Path, id: str, *, version: str | None = None) -> None:
        """Drop it with all below it. Its id stays taken."""
        _, table, item = self._stream(path, DELTA_FORMAT, version, id)
        table_parts.drop_part(self.draft, table, item)

    # Partitions, which appends create

    @locked
    def update_partition(
        self,
        path: Path,
        id: str,
        properties: Mapping[str, object],
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
    ) -> Object:
        """Replace its properties: afterwards they are exactly these."""
        _, table, item = self._partition(path, id, format, version, stream)
        return self._update(table, item, properties)

    @locked
    def drop_partition(
        self, path: Path, id: str, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> None:
        """Drop it with its deltas, each of which gets a deleting revision. A later append makes it again, empty."""
        _, table, item = self._partition(path, id, format, version, stream)
        key = item.revision.parent
        if any((append.stream, append.partition) == (key, id) for append in self.draft.appends):
            raise InvalidInputError(f"This transaction appends to the partition {id!r}: drop it in another one.")
        home = item.node.home.rsplit("/", 1)[0]
        for delta in self.draft.deltas(self._log.segments, key, 0, id):
            self.draft.dropped_deltas.append(DroppedDelta(key, home, table.path, id, delta.position))
        table_parts.drop_part(self.draft, table, item)

    # Deltas

    @locked
    def append_delta(
        self,
        path: Path,
        files: Iterable[object],
        type: str = "append",
        partition: Sequence[object] | None = None,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        properties: Mapping[str, object] | None = None,
        position: int | None = None,
        stream: str | None = None,
        partition_id: str | None = None,
        unsynced_files: Sequence[str] = (),
    ) -> AppendedDelta:
        """Append to a table's stream. The position is assigned at commit, so appends never conflict with each other;
        several in one transaction follow each other without a gap. The answer has the position once it is committed.

        `stream` is the id of one of several streams, `partition_id` an id of the caller's own for the partition.
        With `position` (a stream of format `lance`, whose positions are Lance versions) the delta stands exactly
        there, or Conflict (14) is raised at commit because that position is taken. The commit syncs `unsynced_files`;
        all other files are durable already.
        """
        _, table, item = self._stream(path, format, version, stream)
        if position is not None:
            self._check_position(item, position)
        values = table_parts.partition_values(partition)
        chosen = table_parts.chosen_partition(partition_id, values)
        self._check_partition(item, chosen, values)
        append = AppendedDelta(
            item.node.key,
            item.node.home,
            table.path,
            chosen,
            values,
            check_type(type),
            data_files(files),
            own_properties(properties),
            position,
            unsynced_files=tuple(unsynced_files),
        )
        self.draft.appends.append(append)
        return append

    @locked
    def drop_delta(
        self,
        path: Path,
        position: int,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
    ) -> None:
        """Drop one delta. It stays readable in the past; its files are collected once nothing shows them."""
        _, table, item = self._stream(path, format, version, stream)
        key = item.node.key
        self.draft.reads.add(DeltaRead(key, position))
        found = self.draft.base.delta(self._log.segments, key, position)
        if found is None or any((drop.stream, drop.position) == (key, position) for drop in self.draft.dropped_deltas):
            raise TableVersionNotFoundError(f"There is no delta {position} in {object_id(path)}.")
        self.draft.dropped_deltas.append(DroppedDelta(key, item.node.home, table.path, found.partition, position))

    # Finding

    def _create_version(
        self,
        table: Place,
        version: str,
        properties: dict[str, object],
        formats: Sequence[str],
        of_streams: dict[str, object] | None = None,
    ) -> Item:
        item = table_parts.create_part(self.draft, table, table.item, "table_version", (version,), properties)
        for format in formats:
            parts = table_parts.stream_parts(format)
            table_parts.create_part(self.draft, table, item, "stream", parts, dict(of_streams or {}))
        return item

    def _update(self, table: Place, item: Item, properties: Mapping[str, object]) -> Object:
        table_parts.update_part(self.draft, table, item, own_properties(properties))
        return self._shown(table, item)

    def _shown(self, table: Place, item: Item) -> Object:
        return part_of(self.draft, table, item.node.key)

    def _check_position(self, stream: Item, position: int) -> None:
        if position < 1:
            raise InvalidInputError(f"A position is 1 or more, not {position}.")
        following = self.draft.unnoted().last_position(self._log.segments, stream.node.key) + 1
        if position > following and stream.revision.parts[1] == DELTA_FORMAT:
            raise InvalidInputError(
                f"Position {position} would leave a gap: the next position of this stream is {following}. Only the "
                "versions of a Lance table may have gaps: append without a position."
            )

    def _check_partition(self, stream: Item, id: str, values: table_parts.Values) -> None:
        own = self.draft.items.get(f"{stream.node.key}/{id}")
        if own is not None and not own.revision.alive:
            raise InvalidInputError(f"This transaction drops the partition {id!r}: append to it in another one.")
        table_parts.check_values(self.draft, stream, id, values)
