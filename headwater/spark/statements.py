"""A statement that reads tables and writes one is a serializable transaction, where the catalog has transactions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from headwater.catalog.transactions import metastore_of
from headwater.names import format_name
from headwater.namespace.transactions.appended_rows import session_of
from headwater.spark.catalog import Connection
from headwater.spark.fresh import opened
from headwater.spark.protocol import Append, Commit
from headwater.spark.stream_ddl import catalog_at
from headwater.spark.stream_writes import check_reads
from headwater.tables.commit.committer import TableCommitter

Answer = TypeVar("Answer")


def committed(connection: Connection, call: Commit, act: Callable[[TableCommitter], Answer]) -> Answer:
    """Commit to a Lance table. If others were read, all of it is one transaction: they are as they were, or it is 14.

    A statement that has read its own table alone needs none: its commit is pinned to the version that was read.
    """
    target, is_append = call.table.id, isinstance(call, Append)
    others = [each for each in call.reads if is_append or each.id != target]
    if not others or connection.lake is None:
        return act(connection.committer)
    with catalog_at(connection.lake).transaction(f"write {format_name(target)}") as inside:
        namespace = metastore_of(inside.namespace)
        session = session_of(namespace)
        check_reads(session.tx, opened(connection.lake).uri, others)
        is_blind = is_append and all(each.id != target for each in others)
        with session.appending() if is_blind else nullcontext():
            return act(TableCommitter(namespace))
