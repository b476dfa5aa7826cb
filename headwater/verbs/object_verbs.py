"""Verbs about the objects of the DeltaCAT model: found by locator or immutable id, and listed.

Namespaces, tables, table versions, streams, partitions and deltas are one kind of answer (`DescribedObject`). All of it
is in the index of the metastore: only a delta may take a request to the storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from headwater.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError
from headwater.metastore import DataFile, Delta, Locator, Object, Reading
from headwater.metastore.records.objects import time_of
from headwater.metastore.state.slot_views import part_text
from headwater.paging import page
from headwater.streams.definition import STREAM, Definition, from_properties
from headwater.streams.serving.derived_columns import without_folders
from headwater.verbs.verb import (
    NOTHING,
    ObjectRequest,
    Permission,
    SessionKind,
    VerbRequest,
    VerbSession,
    WorkPlace,
    require,
    verb,
)

NO_IDS = "has no immutable ids: a metastore catalog has"
NOT_THERE = (1, 4, 11, 13)
"""Codes of look-ups that find nothing; 13 for a locator of a form that no object has."""
MAX_OBJECTS = 10_000


class DescribedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the DeltaCAT model: a namespace, table, table_version, stream, partition or delta (`kind`).

    `id`: its Immutable ID. `key`: that of a namespace or table; of any other object the ids from its table down, joined
    by `/`. `locator`: its Canonical String. `parts`: its own elements of that. `path`: the names of the namespace or
    table. `values`: of a partition and a delta, the partition values as SHOW PARTITIONS has them; values without a
    column have numbers from 1. `type` and `files`: of a delta. `slot` and `time`: the commit of its newest revision.
    """

    kind: str
    id: str
    key: str
    name: str
    path: tuple[str, ...]
    locator: str
    parts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    values: dict[str, str | None] = {}
    type: str = ""
    files: tuple[DataFile, ...] = ()
    properties: dict[str, Any] = {}
    revision: int = 0
    slot: int = 0
    time: datetime | None = None


class FindObject(VerbRequest, frozen=True, kw_only=True):
    """Arguments of FindObject, one of them. `locator`: a Canonical String; `key`: an immutable id, or a part's key."""

    locator: str | None = None
    key: str | None = None


class ListObjects(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of ListObjects. `limit`: objects of a page, at most 10,000."""

    limit: int = 1000
    page_token: str | None = None


class ObjectPage(msgspec.Struct, frozen=True):
    """Objects in order, and the token of the next page."""

    objects: list[DescribedObject]
    page_token: str | None = None


LEARNT = msgspec.json.Decoder(ObjectPage)
"""Known to msgspec from here on, as in `metastore/records/objects.py`."""


@verb("find", NOTHING, WorkPlace.SERVER, SessionKind.ANY)
def find_object(session: VerbSession, request: FindObject) -> DescribedObject:
    """Return the object of a locator, or of an immutable id. What the caller may not describe is not found (4)."""
    if (request.locator is None) == (request.key is None):
        raise InvalidInputError("FindObject takes a `locator` or a `key`, one of them.")
    state = require(session.can.session, NO_IDS).state()
    locator = None if request.locator is None else Locator.parse(request.locator)
    try:
        found = state.by_id(request.key or "") if locator is None else state.find(locator)
    except LanceNamespaceError as error:
        if int(error.code) not in NOT_THERE:
            raise
        raise no_object(request) from None
    return next(describe_objects(state, [found]))


def no_object(request: FindObject) -> TableNotFoundError:
    """Return the error of an object that does not exist, or that the caller may not describe."""
    if request.locator is None:
        return TableNotFoundError(f"No object has the id {(request.key or '')[:200]!r} now.")
    return TableNotFoundError(
        f"No object has the locator {request.locator[:200]!r}. A locator joins the names of a table by |, "
        "then its version, the id and format of a stream, the id and values of a partition, and a position."
    )


@verb("object/{id}/objects", Permission.DESCRIBE, WorkPlace.SERVER, SessionKind.ANY)
def list_objects(session: VerbSession, request: ListObjects) -> ObjectPage:
    """Return the namespaces and tables of a namespace, or the versions, streams and partitions of a table."""
    state = require(session.can.session, NO_IDS).state()
    if state.get(request.id).kind == "namespace":
        found = state.list(request.id)
        ordered = {each.name: each for each in found if session.sees(each.path, each.key)}  # before they are paged
    else:
        ordered = {each.key.replace("/", "\0"): each for each in _parts(state, request.id)}  # each before its parts
    chosen, token = page(sorted(ordered), request.page_token, min(request.limit, MAX_OBJECTS))
    return ObjectPage(list(describe_objects(state, (ordered[name] for name in chosen))), token)


def _parts(state: Reading, path: tuple[str, ...]) -> Iterator[Object]:
    for version in state.versions(path):
        yield version
        for stream in state.streams(path, version.id):
            yield stream
            yield from state.partitions(path, version=version.id, stream=stream.id)


def describe_objects(state: Reading, found: Iterable[Object | Delta]) -> Iterator[DescribedObject]:
    """Yield objects as answers. The definition of a table version names the values of its partitions."""
    definitions: dict[str, Definition | None] = {}

    def texts(path: tuple[str, ...], key: str, values: Any) -> dict[str, str | None]:
        if values is None:
            return {}
        version = key.split("/")[1]
        if version not in definitions:
            definitions[version] = from_properties(state.get_table_version(path, version).properties)
        definition = definitions[version]
        if definition is not None and len(definition.partition_by) == len(values):
            return definition.partition_texts(values)
        return {str(place): None if value is None else str(value) for place, value in enumerate(values, 1)}

    for each in found:
        if isinstance(each, Delta):
            table = state.by_id(each.key.partition("/")[0])
            assert isinstance(table, Object)
            more: dict[str, Any] = {"path": table.path, "parts": (each.id,), "type": each.type, "files": each.files}
            values = each.values
        else:
            more = {"path": each.path, "parts": tuple(map(part_text, each.parts)), "aliases": each.aliases}
            values = each.parts[1] if each.kind == "partition" else None
        properties = without_folders(each.properties) if STREAM in each.properties else each.properties
        yield DescribedObject(
            kind=each.kind,
            id=each.id,
            key=each.key,
            name=each.name,
            locator=each.locator,
            values=texts(more["path"], each.key, values),
            properties=properties,
            revision=each.revision,
            slot=each.slot,
            time=time_of(each.time_ms) if each.time_ms else None,
            **more,
        )
