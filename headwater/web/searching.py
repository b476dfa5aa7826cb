"""Search over everything: names, properties, columns and comments.

A metastore answers by itself. Other kinds of catalog are walked, so far and no further, and the page says how far.
"""

from __future__ import annotations

from collections import deque

from headwater.errors import LanceNamespaceError
from headwater.names import ROOT, ObjectId
from headwater.rest.page.page_facts import Hit, SearchFacts
from headwater.web.children import NAMESPACES, TABLES, first_names
from headwater.web.visit import Visit

MAX_FOUND = 200
MAX_LOOKED = 5_000
MAX_DESCRIBED = 300
PER_NAMESPACE = 2_000


def search(visit: Visit, word: str) -> SearchFacts:
    """Objects whose name, properties or comment hold the word: those that are called so first."""
    low = word.casefold()
    found: SearchFacts = visit.question("PageSearch", word=word) if visit.served.has_history else _walked(visit, low)
    found.hits.sort(key=lambda hit: (hit.where != "name", low != hit.path[-1].casefold(), hit.path))
    found.more = found.more or len(found.hits) > MAX_FOUND
    del found.hits[MAX_FOUND:]
    return found


def _walked(visit: Visit, low: str) -> SearchFacts:
    """Names as far as one looks, then the properties of the first of those that are not called so."""
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
        if low in _properties(visit, hit):
            found.hits.append(Hit(hit.path, hit.kind, "properties"))
    return found


def _properties(visit: Visit, hit: Hit) -> str:
    """What the properties of an object say, in small letters; nothing where they cannot be asked for."""
    try:
        told = visit.ask("DescribeTable" if hit.kind == "table" else "DescribeNamespace", ObjectId(hit.path)).get(
            "properties"
        )
    except LanceNamespaceError:
        return ""
    return "\n".join(f"{key}\n{value}" for key, value in (told or {}).items()).casefold()
