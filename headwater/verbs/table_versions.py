"""Verbs of table versions: those that a table has, one more beside the active one, and which one is active.

These are the Table Versions of the DeltaCAT document, each with a dataset of its own. The numbered versions of a Lance
dataset are another thing (`ListTableVersions` of the protocol).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import lance_namespace as api
import msgspec
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.errors import InvalidInputError, NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError
from headwater.metastore import Transaction
from headwater.metastore.commit.table_parts import DELTA_FORMAT
from headwater.metastore.records.objects import lifecycle_of, time_of
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.names import ObjectId, format_name
from headwater.namespace.abilities import abilities_of
from headwater.namespace.requests import build
from headwater.streams.definition import Definition, from_properties, to_properties
from headwater.streams.log.checks import try_checks
from headwater.streams.stream_lookup import activate_version
from headwater.verbs.stream_requests import CreateStreamTable
from headwater.verbs.streams import defined
from headwater.verbs.verb import ObjectRequest, Permission, SessionKind, VerbSession, WorkPlace, require, verb

_PATH = "table/{id}/named_version/"
NO_VERSIONS = "has no table versions: a metastore catalog has"


class NamedVersion(msgspec.Struct, frozen=True):
    """A table version. `lifecycle`: unreleased, active or deprecated. `time`: when it was made or changed last.

    `is_stream`: its rows come from a change log.
    """

    id: str
    lifecycle: str
    is_stream: bool
    time: datetime
    locator: str


class ListNamedVersions(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of ListNamedVersions."""


class CreateNamedVersion(CreateStreamTable, frozen=True, kw_only=True):
    """Arguments of CreateNamedVersion. `version`: the id of the new version; the others are those of a stream table."""

    version: str


class ActivateNamedVersion(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of ActivateNamedVersion."""

    version: str


class DropNamedVersion(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of DropNamedVersion."""

    version: str


@verb(f"{_PATH}list", Permission.DESCRIBE, WorkPlace.SERVER, SessionKind.ANY, "versions")
def list_versions(session: VerbSession, request: ListNamedVersions) -> Sequence[NamedVersion]:
    """Return the table versions of a table in the order of their creation, each with its lifecycle."""
    try:
        found = require(session.can.session, NO_VERSIONS).state().versions(request.id)
    except NamespaceNotFoundError:
        raise TableNotFoundError(f"Table {ObjectId(request.id)} does not exist.") from None
    return [
        NamedVersion(
            each.id,
            lifecycle_of(each.properties),
            from_properties(each.properties) is not None,
            time_of(each.time_ms),
            each.locator,
        )
        for each in found
    ]


@verb(f"{_PATH}create", Permission.WRITE, sessions=SessionKind.TRANSACTION)
def create(session: VerbSession, request: CreateNamedVersion) -> None:
    """Create a table version beside the active one, unreleased, with the columns of the Arrow body.

    That of a stream table has a change log, and rows are landed there. That of a Lance table has the rows of the body.
    """
    assert session.rows is not None
    rows = session.rows()
    make_version(session.namespace, ObjectId(request.id), request.version, rows, lambda: defined(request, rows.schema))


def make_version(
    namespace: LanceNamespace, id: ObjectId, version: str, rows: pa.RecordBatchReader, define: Callable[[], Definition]
) -> None:
    """Create a version of a stream table by a definition, or of a Lance table, whose first rows these are."""
    can = abilities_of(namespace)
    here = require(can.session, NO_VERSIONS)
    try:
        is_stream = from_properties(here.state().get_table_version(id).properties) is not None
    except NamespaceNotFoundError:
        raise TableNotFoundError(f"Table {id} does not exist.") from None
    if can.in_transaction and not is_stream:
        raise InvalidInputError(
            f"{id} is a Lance table: make a version of it, and write it, outside of a transaction; activate it in one."
        )
    definition = define() if is_stream else None
    if definition is not None:
        try_checks(definition.checks, definition.schema)
    formats = (DELTA_FORMAT, LANCE_FORMAT) if is_stream else (LANCE_FORMAT,)
    properties = None if definition is None else to_properties(definition)

    def work(tx: Transaction) -> None:
        tx.create_table_version(id, version, properties, formats)

    here.change(work, f"create table version {version} of {format_name(id.names)}")
    if not is_stream:
        there = abilities_of(require(can.table_version)(id, version))
        require(there.insert_rows)(build(api.InsertIntoTableRequest, id=list(id.names), mode="append"), rows)


def definition_fields(made: Definition) -> dict[str, Any]:
    """Return a definition as the fields of a request; its columns are those of the body."""
    return {
        "keys": list(made.keys),
        "sequence": list(made.sequence),
        "partition_by": [json.dumps([each.column, each.transform, each.width]) for each in made.partition_by],
        "properties": dict(made.properties),
    }


@verb(f"{_PATH}activate", Permission.WRITE, WorkPlace.SERVER, SessionKind.TRANSACTION)
def activate(session: VerbSession, request: ActivateNamedVersion) -> None:
    """Make a table version the active one, in one commit: readers and writers by the table's name get it from then on.

    The version that was active becomes deprecated, stays readable, and can be activated again.
    """
    here = require(session.can.session, NO_VERSIONS)
    if here.transaction is not None:  # rows that wait for the commit are of the version that is active before it
        with suppress(TableNotFoundError, TableVersionNotFoundError):
            here.state().last_position(request.id, format=LANCE_FORMAT)
    message = f"activate table version {request.version} of {format_name(request.id)}"
    here.change(lambda tx: activate_version(tx, request.id, request.version), message)


@verb(f"{_PATH}drop", Permission.DROP, WorkPlace.SERVER, SessionKind.TRANSACTION)
def drop(session: VerbSession, request: DropNamedVersion) -> None:
    """Drop a table version that is not the active one. A collection deletes its files once it is past retention."""
    message = f"drop table version {request.version} of {format_name(request.id)}"
    here = require(session.can.session, NO_VERSIONS)
    here.change(lambda tx: tx.drop_table_version(request.id, request.version), message)
