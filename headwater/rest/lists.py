"""Lists, filtered by what the caller may see *before* paging, over any catalog's own paging.

The catalog's page token is opaque, so a page that must end in the middle of the catalog's page is asked for
again with exactly that many entries: the token that comes back then continues after the last entry shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lance_namespace import LanceNamespace

from headwater.names import ObjectId
from headwater.namespace.abilities import CatalogAbilities
from headwater.rest.auth.object_rights import ObjectNames
from headwater.rest.call import Call

SCAN = 1000


def list_visible(namespace: LanceNamespace, call: Call, can: CatalogAbilities) -> Any:
    """One page of ListNamespaces, ListTables or ListAllTables, holding only what the caller may see."""
    field = "namespaces" if call.route.operation == "ListNamespaces" else "tables"
    fetch = getattr(namespace, call.route.method)
    sees = _seer(call, can)
    wanted: int = call.request.limit
    shown: list[str] = []
    token = call.request.page_token
    while True:
        scan = max(SCAN, wanted - len(shown))
        page = fetch(call.request.model_copy(update={"limit": scan, "page_token": token}))
        names = list(getattr(page, field) or ())
        end = _end(names, sees, wanted - len(shown))
        if end < len(names):
            page = fetch(call.request.model_copy(update={"limit": end, "page_token": token}))
            names = list(getattr(page, field) or ())
        shown.extend(name for name in names if sees(name))
        token = page.page_token or None
        if token is None or len(shown) >= wanted:
            return page.model_copy(update={field: shown, "page_token": token})


def _end(names: list[str], sees: Callable[[str], bool], room: int) -> int:
    """Return the number of names that fit on the page."""
    for position, name in enumerate(names):
        if room == 0:
            return position
        room -= sees(name)
    return len(names)


def _seer(call: Call, can: CatalogAbilities) -> Callable[[str], bool]:
    """Return True if a name of the list may be shown. Lists of the present have no other names of their objects."""
    caller = call.asker
    elsewhere = can.moment is not None or can.in_transaction
    found = ObjectNames(can) if elsewhere and can.identify is not None else None

    def sees(name: str) -> bool:
        is_path = call.route.operation == "ListAllTables"
        id = ObjectId(tuple(name.split(can.delimiter))) if is_path else call.id.child(name)
        others = () if found is None or not caller.may_see(id) else found.others(id)
        return all(caller.may_see(each) for each in (id, *others))

    return sees
