"""Filtering before paging, over every catalog and every set of grants: pages are full, complete and in order."""

from __future__ import annotations

from typing import Any

import lance_namespace as api
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.names import ROOT, ObjectId
from headwater.namespace.abilities import CatalogAbilities
from headwater.paging import page
from headwater.rest.auth import object_rights
from headwater.rest.auth.access import Caller, Grant
from headwater.rest.auth.object_rights import list_visible
from headwater.rest.call import Call
from headwater.rest.routes import BY_OPERATION, READS


class Names(api.LanceNamespace):
    """A catalog that has names in its root, and counts how often it is asked."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.asked = 0

    def namespace_id(self) -> str:
        return "names"

    def list_namespaces(self, request: api.ListNamespacesRequest) -> api.ListNamespacesResponse:
        self.asked += 1
        found, token = page(self.names, request.page_token, request.limit)
        return api.ListNamespacesResponse(namespaces=found, page_token=token)


def ask(namespace: Names, caller: Caller, limit: int, token: str | None) -> Any:
    request = api.ListNamespacesRequest(id=[], limit=limit, page_token=token)
    call = Call(BY_OPERATION["ListNamespaces"], ROOT, "$", request, caller)
    return list_visible(namespace, call, CatalogAbilities())


names = st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True, max_size=40).map(sorted)


@settings(deadline=None, max_examples=200)
@given(names=names, seen=st.sets(st.text("abcdef", min_size=1, max_size=3), max_size=15), limit=st.integers(1, 12),
       scan=st.integers(1, 9))  # fmt: skip
def test_pages_hold_exactly_what_the_caller_may_see(names: list[str], seen: set[str], limit: int, scan: int) -> None:
    caller = Caller("c", tuple(Grant(READS, ObjectId((name, "below"))) for name in sorted(seen)))
    before, object_rights.SCAN = object_rights.SCAN, scan
    try:
        expected = [name for name in names if name in seen]
        found: list[str] = []
        token = None
        while True:
            answer = ask(Names(names), caller, limit, token)
            found += answer.namespaces
            token = answer.page_token
            if token is None:
                break
            assert len(answer.namespaces) == limit
        assert found == expected
    finally:
        object_rights.SCAN = before


def test_a_page_among_many_hidden_names_takes_few_questions() -> None:
    namespace = Names([f"n{number:05}" for number in range(10_000)])
    caller = Caller("c", (Grant(READS, ObjectId(("n09999",))),))
    assert ask(namespace, caller, 1, None).namespaces == ["n09999"]
    assert namespace.asked <= 11
