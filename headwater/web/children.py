"""The names in a namespace that a visitor may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import LanceNamespaceError
from headwater.names import ObjectId
from headwater.rest.page.page_facts import NameFacts
from headwater.web.visit import Visit

NAMESPACES, TABLES = "namespaces", "tables"
OPERATIONS = {NAMESPACES: "ListNamespaces", TABLES: "ListTables"}
KINDS = {NAMESPACES: "namespace", TABLES: "table"}
MAX_NAMES = 20_000
PER_REQUEST = 5_000
NAMESPACE_NOT_FOUND, UNSUPPORTED = 1, 0


@dataclass(frozen=True)
class Names:
    """Names in order; not `complete` when there are more than were looked at."""

    names: Sequence[str]
    complete: bool = True


def child_names(visit: Visit, id: ObjectId, what: str) -> Names:
    """All names of a kind. A metastore has them in memory; others are asked for so many at most."""
    visit.ask("NamespaceExists", id)
    if visit.served.has_history:
        told: NameFacts = visit.question("PageNames", id, word=KINDS[what])
        return Names(told.names)
    found: list[str] = []
    token: str | None = None
    while len(found) < MAX_NAMES:
        answer = visit.ask(OPERATIONS[what], id, limit=PER_REQUEST, page_token=token)
        found += answer.get(what) or ()
        token = answer.get("page_token")
        if not token:
            return Names(found)
    return Names(found, complete=False)


def first_names(visit: Visit, id: ObjectId, what: str, count: int) -> tuple[list[str], bool]:
    """The first names of a kind, and whether there are more."""
    try:
        answer = visit.ask(OPERATIONS[what], id, limit=count + 1)
    except LanceNamespaceError as error:
        if int(error.code) in (NAMESPACE_NOT_FOUND, UNSUPPORTED):
            return [], False
        raise
    names = list(answer.get(what) or ())
    return names[:count], len(names) > count
