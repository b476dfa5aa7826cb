"""Questions of the page about SQL: the tables of a query, its rows, and its plan. A worker parses and runs the query.

The page asks for the tables first, and names them in the second question: the rights on each are checked, and noted in
the audit log, before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.names import ObjectId
from headwater.namespace.abilities import abilities_of
from headwater.rest.call import Call
from headwater.rest.page.page_facts import QueryFacts, QueryTables
from headwater.rest.page.row_questions import handle_of
from headwater.streams.stream_lookup import is_stream_table
from headwater.tables.write.arrow import to_file
from headwater.verbs.streams import NO_STREAMS
from headwater.verbs.verb import require

queries = when_used("headwater.sql.embedded")
MAX_RESULT_BYTES = 8 << 20


def query_tables(namespace: LanceNamespace, call: Call) -> QueryTables:
    """Return the names of the tables that a query reads, as it writes them."""
    return QueryTables(queries.tables_of(call.request.word))


def query(namespace: LanceNamespace, call: Call) -> QueryFacts:
    """Return the first rows of a query, or its plan if `details` is set. All tables are read at one commit."""
    asked = call.request
    if queries.tables_of(asked.word) != sorted(tuple(names) for names in asked.tables):
        raise InvalidInputError("The query reads other tables than those that the rights were checked for.")
    can = abilities_of(namespace)
    slot = can.metastore.slot if can.metastore is not None else None
    moment = _Moment(namespace if slot is None or can.at is None else can.at(slot))
    if asked.details:
        return QueryFacts(plan=queries.plan(asked.word, moment), slot=slot)
    found = queries.run(asked.word, moment, True, asked.limit + 1, is_fixed=True)
    if found.nbytes > MAX_RESULT_BYTES:
        raise InvalidInputError(
            f"The rows hold more than {MAX_RESULT_BYTES >> 20} MiB, more than a page shows: select fewer columns."
        )
    rows = found.slice(0, asked.limit)
    return QueryFacts(to_file(rows.to_reader()).hex(), found.num_rows > asked.limit, slot=slot)


@dataclass(frozen=True)
class _Moment:
    """A catalog at one commit, as the embedded engine reads it."""

    namespace: LanceNamespace

    def __getitem__(self, names: tuple[str, ...]) -> _Table:
        return _Table(self.namespace, ObjectId(names))


@dataclass(frozen=True)
class _Table:
    """A table of a query: the dataset of a plain table, the rows of a stream table."""

    namespace: LanceNamespace
    id: ObjectId

    @property
    def is_stream(self) -> bool:
        session = abilities_of(self.namespace).session
        return session is not None and is_stream_table(session.state(), self.id.names)

    def dataset(self) -> Any:
        return handle_of(self.namespace, self.id).open()

    def to_arrow(self) -> pa.Table:
        return require(abilities_of(self.namespace).stream, NO_STREAMS)(self.id).to_arrow()
