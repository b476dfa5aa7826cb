"""Answers from memory: decided on what a request means, however it is written; and bounded in bytes."""

from __future__ import annotations

import httpx
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.names import ObjectId
from headwater.rest import endpoint
from headwater.rest.call import Call
from headwater.rest.endpoint import NameLookups
from headwater.rest.reply import Reply
from headwater.rest.routes import BY_OPERATION
from tests.rest.samples import PEOPLE, ipc


@pytest.fixture
def table(catalog: DirectoryNamespace) -> None:
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(PEOPLE))


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("load_detailed_metadata=TRUE", b"{}"),
        ("load_detailed_metadata=%74rue", b"{}"),
        ("x=1&load_detailed_metadata=true", b"{}"),
        ("", b'{"load_detailed_metadata": true}'),
        ("", b'{"\\u006coad_detailed_metadata": true}'),
        ("", b'{"v\\u0065rsion": 1}'),
    ],
)
def test_a_request_for_more_than_names_is_understood_however_it_is_written(
    http: httpx.Client, catalog: DirectoryNamespace, query: str, body: bytes
) -> None:
    """The answer tells a version, so the table was opened; after a write it tells another, or refuses the old one."""
    for _ in range(2):
        found = http.post(f"/v1/table/t/describe?{query}", content=body).json()
        assert found["version"] == 1
    catalog.insert_into_table(api.InsertIntoTableRequest(id=["t"]), ipc(PEOPLE))
    again = http.post(f"/v1/table/t/describe?{query}", content=body).json()
    assert again["version"] == (1 if b"rsion" in body else 2)


@pytest.mark.usefixtures("table")
def test_parameters_that_mean_nothing_change_nothing(http: httpx.Client) -> None:
    plain = http.post("/v1/table/t/describe", json={})
    for query in ("x=true", "true=version", "delimiter=%24", "branch=side&tag=x", "with_table_uri=FALSE"):
        assert http.post(f"/v1/table/t/describe?{query}", json={}).json() == plain.json()


def test_what_is_kept_is_bounded_in_bytes(catalog: DirectoryNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_BYTES", 10_000)
    kept = NameLookups(catalog.abilities())
    calls = [
        Call(BY_OPERATION["TableExists"], request=api.TableExistsRequest(id=[str(n)], context={"n": str(n)}))
        for n in range(100)
    ]
    for number, call in enumerate(calls):
        call.id = ObjectId((str(number),))
        kept.keep(call, "state", Reply(200, b"x" * 1000, ()))
    found = [call for call in calls if kept.find(call, "state") is not None]
    assert 1 <= len(found) < 10
    kept.keep(calls[0], "state", Reply(200, b"x" * (endpoint.MAX_ANSWER + 1), ()))
    kept.keep(calls[0], "later", Reply(200, b"x", ()))
    assert [call for call in calls if kept.find(call, "later") is not None] == [calls[0]]
