"""The table of the page's questions, as `rest/extensions.py` is that of the routes of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headwater.rest.extensions import HANDLERS, Handler
from headwater.rest.page import catalog_questions as catalog
from headwater.rest.page import catalog_questions as search_texts
from headwater.rest.page import table_questions as datasets
from headwater.rest.page import table_questions as lineage
from headwater.rest.page import table_questions as streams
from headwater.rest.page.page_facts import (
    DroppedFacts,
    FragmentFacts,
    HistoryFacts,
    LineageFacts,
    LogFacts,
    NameFacts,
    SearchFacts,
    ServerFacts,
    SnapshotFacts,
    StreamFacts,
    TableFacts,
    VersionFacts,
)
from headwater.rest.routes import NOTHING, Permission, Route, RouteTarget


@dataclass(frozen=True)
class Question:
    """A question of the page: the row that the dispatcher and the audit log read, its handler, how its answer is read.

    Decoders are made here and not where they are used: threads that are first at once crash the process.
    """

    route: Route
    handler: Handler
    decoder: msgspec.json.Decoder[Any]


def _question(operation: str, needs: Permission, handler: Handler, answer: type[Any]) -> Question:
    target = RouteTarget.NONE if needs == NOTHING else RouteTarget.TABLE
    route = Route(operation, "PAGE", "", needs, target, extension=True, request="PageRequest")
    return Question(route, handler, msgspec.json.Decoder(answer))


QUESTIONS: dict[str, Question] = {
    question.route.operation: question
    for question in (
        _question("PageLog", NOTHING, catalog.log, LogFacts),
        _question("PageDropped", NOTHING, catalog.dropped, DroppedFacts),
        _question("PageSnapshots", NOTHING, catalog.snapshots, SnapshotFacts),
        _question("PageSearch", NOTHING, search_texts.search, SearchFacts),
        _question("PageServer", NOTHING, catalog.server, ServerFacts),
        _question("PageNames", Permission.DESCRIBE, catalog.names, NameFacts),
        _question("PageHistory", Permission.DESCRIBE, catalog.history, HistoryFacts),
        _question("PageTable", Permission.DESCRIBE, streams.table, TableFacts),
        _question("PageStreams", Permission.DESCRIBE, streams.streams, StreamFacts),
        _question("PageLineage", Permission.DESCRIBE, lineage.lineage, LineageFacts),
        _question("PageVersions", Permission.DESCRIBE, datasets.versions, VersionFacts),
        _question("PageFragments", Permission.DESCRIBE, datasets.fragments, FragmentFacts),
    )
}
"""Those that name no object need nothing: each is answered as far as its caller may be told."""
ALL_HANDLERS: dict[str, Handler] = {
    **HANDLERS,
    **{operation: question.handler for operation, question in QUESTIONS.items()},
}
"""Handlers of our own routes and of the page's questions."""
