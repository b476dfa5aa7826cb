"""The pages of the catalog and its namespaces, search, log, snapshots and server, by the first part of the address.

Search in a metastore is one request. Other catalogs are walked up to a limit, which the page shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

import headwater
from headwater.cells import size
from headwater.errors import LanceNamespaceError
from headwater.metastore.records.objects import time_of, words_of
from headwater.names import ROOT, ObjectId, format_name
from headwater.rest.page.overview_facts import CommitFact, Growth, LogFacts, OverviewFacts, TableState
from headwater.rest.page.page_facts import (
    QUARANTINE,
    RUNS,
    DroppedFacts,
    Hit,
    NameFacts,
    PinnedFact,
    SearchFacts,
    ServerFacts,
    SnapshotFacts,
)
from headwater.rest.routes import Permission
from headwater.web import access_pages, queries, table_pages, work_pages
from headwater.web.drawings import BARS, LINE, number, small
from headwater.web.visit import NAMESPACE, TABLE, Page, RequestContext

MAX_FOUND = 200
MAX_LOOKED = 5_000
MAX_DESCRIBED = 300
PER_NAMESPACE = 2_000


def search(visit: RequestContext, word: str) -> SearchFacts:
    """Return the objects whose name, properties or comment contain the word; matches by name come first.

    A locator or an immutable id finds its object alone.
    """
    if (named := visit.identified(word)) is not None:
        path, kind = tuple(named["path"]), "namespace" if named["kind"] == "namespace" else "table"
        return SearchFacts([Hit(path, kind, "locator" if "|" in word else "id")])
    low = word.casefold()
    found: SearchFacts = visit.question("PageSearch", word=word) if visit.served.has_history else _walked(visit, low)
    found.hits.sort(key=lambda hit: (hit.where != "name", low != hit.path[-1].casefold(), hit.path))
    found.more = found.more or len(found.hits) > MAX_FOUND
    del found.hits[MAX_FOUND:]
    return found


def _walked(visit: RequestContext, low: str) -> SearchFacts:
    """Return names as far as one looks, then the properties of the first of those that are not called so."""
    found, waiting, others = SearchFacts([]), deque([ROOT]), list[Hit]()
    complete, looked = True, 0
    while waiting and looked < MAX_LOOKED:
        parent = waiting.popleft()
        for what, kind in ((NAMESPACES, "namespace"), (TABLES, "table")):
            names, more = first_names(visit, parent, what, min(PER_NAMESPACE, MAX_LOOKED - looked))
            complete = complete and not more
            looked += len(names)
            for name in names:
                hit = Hit((*parent.names, name), kind, "name")
                if kind == "namespace":
                    waiting.append(ObjectId(hit.path))
                (found.hits if low in name.casefold() else others).append(hit)
    found.looked = None if complete and not waiting else looked
    found.described = len(others[:MAX_DESCRIBED]) if len(others) > MAX_DESCRIBED else None
    for hit in others[:MAX_DESCRIBED]:
        if low in _property_text(visit, hit):
            found.hits.append(Hit(hit.path, hit.kind, "properties"))
    return found


def _property_text(visit: RequestContext, hit: Hit) -> str:
    """Return the properties of an object as lower-case text; an empty text if they cannot be read."""
    try:
        told = visit.ask("DescribeTable" if hit.kind == "table" else "DescribeNamespace", ObjectId(hit.path)).get(
            "properties"
        )
    except LanceNamespaceError:
        return ""
    return "\n".join(f"{key}\n{value}" for key, value in (told or {}).items()).casefold()


NAMESPACES, TABLES = "namespaces", "tables"
OPERATIONS = {NAMESPACES: "ListNamespaces", TABLES: "ListTables"}
MAX_NAMES = 20_000
PER_REQUEST = 5_000
NAMESPACE_NOT_FOUND, UNSUPPORTED = 1, 0


@dataclass(frozen=True)
class Children:
    """The names of a namespace that a page lists. `complete`: False if there are more than were looked at."""

    facts: NameFacts
    complete: bool = True


def children(visit: RequestContext, id: ObjectId, first: int) -> Children:
    """Return the names from a place on that match the filter box. Only a metastore has all of them in memory."""
    visit.ask("NamespaceExists", id)
    if visit.served.has_history:
        return Children(visit.question("PageNames", id, word=visit.wanted, since=first, limit=LISTED))
    every = [_all_names(visit, id, what) for what in (NAMESPACES, TABLES)]
    found = [[name for name in names if visit.keeps(name)] for names, _ in every]
    folders = found[0][first : first + LISTED]
    after = max(0, first - len(found[0]))
    leaves = found[1][after : after + LISTED - len(folders)]
    total = sum(len(names) for names, _ in every)
    return Children(
        NameFacts(folders, leaves, (len(found[0]), len(found[1])), total), all(complete for _, complete in every)
    )


def _all_names(visit: RequestContext, id: ObjectId, what: str) -> tuple[list[str], bool]:
    """Return at most MAX_NAMES names of a kind, and True if those are all."""
    found: list[str] = []
    token: str | None = None
    while len(found) < MAX_NAMES:
        answer = visit.ask(OPERATIONS[what], id, limit=PER_REQUEST, page_token=token)
        found += answer.get(what) or ()
        token = answer.get("page_token")
        if not token:
            return found, True
    return found, False


def first_names(visit: RequestContext, id: ObjectId, what: str, count: int) -> tuple[list[str], bool]:
    """Return the first `count` names of a kind, and True if there are more."""
    try:
        answer = visit.ask(OPERATIONS[what], id, limit=count + 1)
    except LanceNamespaceError as error:
        if int(error.code) in (NAMESPACE_NOT_FOUND, UNSUPPORTED):
            return [], False
        raise
    names = list(answer.get(what) or ())
    return names[:count], len(names) > count


LISTED = 200
IN_TREE = 60
LOG_SLOTS = 50
NEWEST = 8
"""Most lines of a list on the front page."""
METRICS_SHOWN = 40_000


def catalog(visit: RequestContext) -> Page:
    """Return the page of a namespace: its namespaces and tables."""
    id = visit.id if visit.names else ROOT
    if visit.query.get("view") == "drop":
        return confirm_drop(visit, id)
    start = ((visit.number("page", 1) or 1) - 1) * LISTED
    listed = children(visit, id, start)
    found = listed.facts
    total = sum(found.found)
    values = {
        "id": id,
        "filter": visit.wanted,
        "items": [*_items(visit, id, "namespace", found.namespaces), *_items(visit, id, "table", found.tables)],
        "total": total,
        "all": found.total,
        "cut": not listed.complete,
        "page": start // LISTED + 1,
        "pages": -(-total // LISTED) or 1,
        "properties": _properties(visit, id),
        "identity": visit.identity(id),
        "may_drop": not id.is_root and visit.may(Permission.DROP, id),
        "title": id.name or "Catalog",
        "overview": None,
    }
    if id.is_root and visit.served.has_history and not visit.is_part:
        values |= _overview(visit)
    return Page("part/children.html" if visit.is_part else "namespace.html", values)


def _overview(visit: RequestContext) -> dict[str, object]:
    """Return the front page's facts: how much there is, what waits for somebody, and what was done last."""
    found: OverviewFacts = visit.question("PageOverview", limit=NEWEST)
    commits = [commit for commit in reversed(found.log.commits) if not _is_bookkeeping(commit)]
    return {
        "overview": found,
        "growth": growth_charts(found.growth) if found.growth is not None else "",
        "newest": commits[:NEWEST],
        "failing": work_pages.failing(visit) if found.runs else [],
        "table": lambda state, view=None: visit.links.table(ObjectId(state.path), view=view),
        "name": lambda state: format_name(state.path),
        "rejected": _rejecting,
        "quarantine": lambda state: visit.links.table(ObjectId(_rejecting(state)), view="quarantine"),
    }


def _is_bookkeeping(commit: CommitFact) -> bool:
    """Return True for a commit that only notes the run of a pipeline, or something beside rows and names."""
    return all(change.path == RUNS.names for change in commit.entry.changes)


SPAN_WORDS = {1_000: "second", 60_000: "minute", 3_600_000: "hour", 86_400_000: "day", 604_800_000: "week"}


def growth_charts(growth: Growth) -> Markup:
    """Return the drawings of rows, bytes and commits over time."""
    whole = next(each for each in reversed(SPAN_WORDS) if growth.span_ms % each == 0)
    count, word = growth.span_ms // whole, SPAN_WORDS[whole]
    title = f"Commits per {word}" if count == 1 else f"Commits in spans of {count} {word}s"
    form = "%Y-%m-%d" if growth.span_ms >= 86_400_000 else "%m-%d %H:%M" if growth.span_ms >= 60_000 else "%H:%M:%S"
    labels = [time_of(start).strftime(form) for start in growth.starts]

    def drawn(title: str, values: Sequence[int], kind: str, told: Callable[[float], str]) -> Markup:
        return small(title, list(zip(labels, map(float, values), strict=True)), kind, told)

    drawings = [drawn(title, growth.commits, BARS, number)]
    if any(growth.rows):
        drawings = [drawn("Rows", growth.rows, LINE, number), drawn("Data", growth.bytes, LINE, size), *drawings]
    return Markup('<div class="plots">{}</div>').format(Markup("").join(drawings))


def _rejecting(state: TableState) -> tuple[str, ...]:
    """Return the table that a quarantine belongs to."""
    return (*state.path[:-1], state.path[-1].removesuffix(QUARANTINE))


def _items(visit: RequestContext, id: ObjectId, kind: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
    for name in names:
        yield {"name": name, "kind": kind, "href": visit.links.of(id.child(name), kind)}


def _properties(visit: RequestContext, id: ObjectId) -> dict[str, str]:
    if not visit.caller.may(Permission.DESCRIBE, id):
        return {}
    return dict(visit.ask("DescribeNamespace", id).get("properties") or {})


def confirm_drop(visit: RequestContext, id: ObjectId) -> Page:
    visit.ask("NamespaceExists", id)
    inside = len(first_names(visit, id, NAMESPACES, 1)[0]) + len(first_names(visit, id, TABLES, 1)[0])
    values = {"id": id, "kind": "namespace", "inside": inside, "title": f"Drop {id.name}?"}
    return Page("confirm.html", {**values, "action": visit.links.to("do", "drop-namespace", *id.names)})


# The tree


@dataclass
class TreeLine:
    """One line of the tree. `children`: None for a closed node."""

    name: str
    kind: str
    href: str
    current: bool = False
    children: list[TreeLine] | None = None
    more: bool = field(default=False)


def tree_of(visit: RequestContext) -> list[TreeLine] | None:
    """Return the tree, open on the path to the current object; None if the root cannot be listed."""
    at = visit.names[1:] if visit.names and visit.names[0] in (NAMESPACE, TABLE, "cell") else ()
    try:
        return _level(visit, ROOT, at)
    except LanceNamespaceError:
        return None


def _level(visit: RequestContext, parent: ObjectId, onward: tuple[str, ...]) -> list[TreeLine]:
    found: list[TreeLine] = []
    following = onward[0] if onward else None
    for kind, operation in (("namespace", NAMESPACES), ("table", TABLES)):
        names, more = first_names(visit, parent, operation, IN_TREE)
        is_here = kind == "table" if visit.names[:1] == (TABLE,) and len(onward) == 1 else kind == "namespace"
        if following is not None and is_here and following not in names and more:
            names = [*names, following]
        for name in names:
            id = parent.child(name)
            node = TreeLine(name, kind, visit.links.of(id, kind))
            if name == following and is_here:
                node.current = len(onward) == 1
                if kind == "namespace":
                    node.children = _level(visit, id, onward[1:])
            found.append(node)
        if more:
            found.append(TreeLine(f"more {operation}…", "more", visit.links.namespace(parent)))
    return found


# Search, time, server


def search_page(visit: RequestContext) -> Page:
    word = visit.query.get("q", "").strip()[:200]
    found = search(visit, word) if word else None
    values = {"word": word, "found": found, "title": "Search"}
    return Page("part/found.html" if visit.is_part else "search.html", values)


def log_page(visit: RequestContext) -> Page:
    """Return the page of committed transactions, newest first, with the changes that the visitor may see."""
    until = visit.number("until")
    found: LogFacts = visit.question("PageLog", until=until, limit=LOG_SLOTS, word=visit.wanted)
    values = {
        "commits": list(reversed(found.commits)),
        "older": found.first if found.first > found.oldest else None,
        "live": until is None or until >= found.newest,
        "until": until,
        "title": "Changes",
        "words": words_of,
        "to": lambda change: visit.links.of(ObjectId(change.path), change.kind) if change.path in found.there else "",
    }
    return Page("part/log.html" if visit.is_part else "log.html", values)


def deleted_page(visit: RequestContext) -> Page:
    found: DroppedFacts = visit.question("PageDropped", limit=LISTED)
    seen = [one for one in found.objects if visit.keeps(" / ".join(one.path), one.kind, one.author)]
    items = [
        {"dropped": one, "id": ObjectId(one.path), "may": visit.may(Permission.WRITE, ObjectId(one.path[:-1]))}
        for one in seen[:LISTED]
    ]
    return Page("deleted.html", {"items": items, "total": len(seen), "title": "Deleted objects"})


def snapshots_page(visit: RequestContext) -> Page:
    """Return the page of named snapshots, with the tables that the visitor may see."""
    found: SnapshotFacts = visit.question("PageSnapshots")
    items = [
        {"snapshot": one, "tables": [_pinned(visit, table) for table in one.tables[:LISTED]]}
        for one in found.snapshots
        if visit.keeps(one.name, *(" / ".join(each.table.path) for each in one.tables))
    ]
    return Page("snapshots.html", {"items": items, "title": "Snapshots"})


def _pinned(visit: RequestContext, found: PinnedFact) -> dict[str, object]:
    """Return a table of a snapshot: it leads to the rows it had, if it is still called so and they may be seen."""
    table, id, href = found.table, ObjectId(found.table.path), ""
    if found.there:
        shows = table.version is not None and visit.caller.may(Permission.SELECT, id)
        href = visit.links.table(id, view="rows", version=table.version) if shows else visit.links.table(id)
    return {"id": id, "version": table.version, "position": table.position, "href": href}


def server_page(visit: RequestContext) -> Page:
    found: ServerFacts = visit.question("PageServer")
    text = visit.served.metrics().decode()
    lines = [line for line in text[:METRICS_SHOWN].splitlines() if line and not line.startswith("#")]
    values = {
        "ready": found.ready,
        "version": headwater.__version__,
        "slot": found.slot,
        "level": visit.level(),
        "metrics": [
            line.rpartition(" ")[::2]
            for line in lines
            if not line.startswith("headwater_request_seconds_bucket") and visit.keeps(line)
        ],
        "grants": visit.caller.grants,
        "title": "Server",
    }
    return Page("server.html", values)


VIEWS: dict[str, Callable[[RequestContext], Page]] = {
    "": catalog,
    NAMESPACE: catalog,
    TABLE: table_pages.table,
    "cell": table_pages.image,
    "search": search_page,
    "log": log_page,
    "deleted": deleted_page,
    "snapshots": snapshots_page,
    "server": server_page,
    "access": access_pages.access_page,
    "sql": queries.sql_page,
    "runs": work_pages.runs_page,
    "lineage": work_pages.lineage_page,
}
