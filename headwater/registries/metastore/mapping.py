"""Between the catalog's words and the storage model's: a Lance version is the delta at that position of a lance stream.

A delta is never changed, so its record holds both names of a version's manifest: the final one as its file, and the one
it was staged under. `settled` in the newest record says up to which version the final ones are known to be there.
Tags and branches of a table are what its records and the files in its folder say together.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from headwater import streams
from headwater.errors import NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError
from headwater.metastore import DataFile, Delta, Object, Reading
from headwater.metastore.commit.table_parts import DELTA_FORMAT, ObjectRecord
from headwater.metastore.records.ref_record import REFS_FORMAT, KnownRefs, RefRecord, known_refs, parse_record
from headwater.metastore.records.serving_copy import LANCE_FORMAT, location_of
from headwater.model import CatalogObject, Namespace, RegistryFacts, Table, Version
from headwater.names import ObjectId
from headwater.store import Store
from headwater.streams.layout import HISTORY
from headwater.table_refs import applied_key, applied_marks, read_refs
from headwater.tables.layout import VERSIONS, manifest_name

SETTLED = "settled"
MANAGED = RegistryFacts(managed=True)
NOT_FOUND = (NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError)


def find_all(reader: Reading, ids: Iterable[ObjectId]) -> dict[ObjectId, CatalogObject]:
    """Return the objects that exist, by the id or alias in the request: each has its own id."""
    lines: dict[ObjectId, Line | None] = {}
    found = ((id, _find(reader, id, lines)) for id in ids)
    return {id: item for id, item in found if item is not None}


def find(reader: Reading, id: ObjectId) -> CatalogObject | None:
    """Return the namespace, table or version of an id."""
    return _find(reader, id, {})


def find_named(reader: Reading, id: ObjectId, newest: bool) -> tuple[str, Namespace | Table] | None:
    """Return the namespace or table of an id, with its key; with `newest`, also what is known of its versions."""
    facts = reader.find_with_stream(id, LANCE_FORMAT, newest)
    return None if facts is None else (facts.key, _named(facts))


class Line(NamedTuple):
    """A table whose versions are looked for, and up to which they are settled."""

    table: Table
    last_final_version: int


def _delta(reader: Reading, table: ObjectId, number: int) -> Delta:
    return reader.get_delta(table, number, format=LANCE_FORMAT, named=False)


def _find(reader: Reading, id: ObjectId, lines: dict[ObjectId, Line | None]) -> CatalogObject | None:
    """A table has no children but its versions, so what is below one is not looked for by its name."""
    if id.is_root:
        return None
    line = _line(reader, id.parent, lines) if is_number(id.name) else None
    if line is None:
        facts = reader.find_with_stream(id, LANCE_FORMAT)
        return None if facts is None else _named(facts)
    try:
        return version_of(line.table, _delta(reader, line.table.id, int(id.name)), line.last_final_version)
    except NOT_FOUND:
        return None


def is_number(name: str) -> bool:
    """Return True for a name that a version of a table may have."""
    return name.isascii() and name.isdigit() and len(name) < 20


def _line(reader: Reading, id: ObjectId, lines: dict[ObjectId, Line | None]) -> Line | None:
    """Return the table of an id with its versions, None if the id is no table. `lines` caches each look-up."""
    if id.is_root:
        return None
    if id not in lines:
        lines[id] = _looked_up_line(reader, id)
    return lines[id]


def _looked_up_line(reader: Reading, id: ObjectId) -> Line | None:
    facts = reader.find_with_stream(id, LANCE_FORMAT)
    found = None if facts is None else _named(facts)
    if not isinstance(found, Table):
        return None
    try:
        return Line(found, last_final_version(reader.newest_delta(found.id, format=LANCE_FORMAT, named=False)))
    except NOT_FOUND:
        return None


def _named(facts: ObjectRecord) -> Namespace | Table:
    id, properties = ObjectId(facts.path), texts(facts.properties)
    if facts.kind == "namespace":
        return Namespace(id, properties)
    home, known = facts.stream if facts.stream is not None else (f"{facts.home}/1/{LANCE_FORMAT}", {})
    return Table(id, location_of(known, home), properties, _known(facts.newest))


def _known(newest: Delta | None) -> RegistryFacts:
    if newest is None:
        return MANAGED
    return RegistryFacts(managed=True, newest=newest.position, digest=newest.properties.get("manifest_digest"))


def catalog_object(reader: Reading, found: Object) -> Namespace | Table:
    if found.kind == "namespace":
        return Namespace(ObjectId(found.path), texts(found.properties))
    return table_of(reader, found)


def table_of(reader: Reading, found: Object) -> Table:
    facts = reader.find_with_stream(found.path, LANCE_FORMAT)
    made = None if facts is None else _named(facts)
    assert isinstance(made, Table)
    return made


def has_stream(reader: Reading, table: ObjectId, format: str) -> bool:
    try:
        reader.get_stream(table, format=format)
    except NOT_FOUND:
        return False
    return True


def is_fed(reader: Reading, table: ObjectId) -> bool:
    """Return True if publishes alone write its rows: it has a change log, or is the history of a table that has."""
    if has_stream(reader, table, DELTA_FORMAT):
        return True
    is_history = bool(table.names) and table.names[-1].endswith(HISTORY) and has_stream(reader, table, LANCE_FORMAT)
    return is_history and streams.from_properties(reader.get_table_version(table).properties) is not None


def kept_columns(reader: Reading, table: ObjectId) -> set[str]:
    """Return the columns that a stream table's log fills: as its definition has them, and as the last publish had."""
    defined = streams.from_properties(reader.get_table_version(table).properties)
    names = set(defined.shown) if defined is not None else set()
    number = newest_version(reader, table)
    while number > 0:
        try:
            known = _delta(reader, table, number).properties
        except NOT_FOUND:
            known = {}
        if "columns" in known:
            return {*names, *(name for _, name in known["columns"]), *(each[0] for each in known["derived"])}
        number -= 1
    return names


def texts(properties: Mapping[str, object]) -> dict[str, str]:
    """Properties as the Lance protocol has them; what the storage model's own users keep in others is left out."""
    return {key: value for key, value in properties.items() if isinstance(value, str)}


def with_newest(reader: Reading, item: CatalogObject) -> CatalogObject:
    """A table with what is known of its versions."""
    if not isinstance(item, Table):
        return item
    return replace(item, known=_known(_newest(reader, item.id)))


def newest_version(reader: Reading, table: ObjectId) -> int:
    newest = _newest(reader, table)
    return newest.position if newest is not None else 0


def _newest(reader: Reading, table: ObjectId) -> Delta | None:
    try:
        return reader.newest_delta(table, format=LANCE_FORMAT, named=False)
    except NOT_FOUND:
        return None


def last_final_version(newest: Delta | None) -> int:
    """Return the last version up to which every manifest has its final name, by the newest record."""
    return int(newest.properties.get(SETTLED, 0)) if newest is not None else 0


def version_of(table: Table, delta: Delta, settled: int) -> Version:
    known = delta.properties
    scheme = str(known.get("scheme", "V2"))
    final = f"{VERSIONS}/{manifest_name(delta.position, scheme)}"
    recorded = delta.files[0].path.removeprefix(f"{table.location}/")
    return Version(
        table.id.child(str(delta.position)),
        final if delta.position <= settled else str(known.get("staged") or recorded),
        delta.files[0].bytes,
        known.get("e_tag"),
        scheme,
        known.get("time", delta.time_ms),
        dict(known.get("metadata", {})),
        known.get("manifest_digest"),
        known.get("change"),
    )


def record_of(location: str, version: Version, settled: int) -> tuple[DataFile, dict[str, Any]]:
    """Return the file and the properties of the delta that is this version."""
    final = f"{VERSIONS}/{manifest_name(version.number, version.naming_scheme)}"
    staged = version.manifest_path if version.manifest_path != final else None
    properties = {
        "staged": staged,
        "e_tag": version.e_tag,
        "scheme": version.naming_scheme if version.naming_scheme != "V2" else None,
        "time": version.timestamp_ms,
        "metadata": dict(version.metadata) or None,
        "manifest_digest": version.digest,
        "change": version.change,
        SETTLED: settled if staged else version.number,
    }
    kept = {key: value for key, value in properties.items() if value is not None}
    return DataFile(f"{location}/{final}", 0, version.manifest_size or 0), kept


REMEMBERED = 10_000


def ref_record_of(state: Reading, table: ObjectId) -> RefRecord | None:
    """Return the record of a table's tags and branches; None if none was changed through the catalog."""
    try:
        return parse_record(state.get_stream(table, format=REFS_FORMAT).properties)
    except NOT_FOUND:
        return None


class RecordedRefs:
    """Looks at folders. What was seen to be applied is remembered: it stays so."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._applied: OrderedDict[str, int] = OrderedDict()

    def read(self, table: Table, record: RefRecord) -> KnownRefs:
        """Return the refs. It reads the mark first, so that a change is either seen or still due."""
        applied = self.applied(table, record)
        files = {(ref.kind, ref.name): ref for ref in read_refs(self.store, table.location)}
        return known_refs(files, record, applied)

    def applied(self, table: Table, record: RefRecord) -> int:
        """Return the number of changes of the record that the files have."""
        with self._lock:
            known = self._applied.get(record.id, 0)
        if known < record.count:
            known = max(known, *applied_marks(self.store, table.location, record.id).values(), 0)
            self._remember(record, known)
        return known

    def mark(self, table: Table, record: RefRecord) -> None:
        """The files are as the record says."""
        if self.applied(table, record) < record.count:
            before = applied_marks(self.store, table.location, record.id)
            self.store.put(applied_key(table.location, record.id, record.count), b"")
            for key, number in before.items():
                if number < record.count:
                    self.store.delete(key)
            self._remember(record, record.count)

    def _remember(self, record: RefRecord, applied: int) -> None:
        with self._lock:
            self._applied[record.id] = max(applied, self._applied.get(record.id, 0))
            while len(self._applied) > REMEMBERED:
                self._applied.popitem(last=False)
