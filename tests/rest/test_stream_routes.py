"""Who may do what with stream tables and the log through a server, and what a hostile caller cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.clock import SystemClock
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    PermissionDeniedError,
    UnsupportedOperationError,
)
from headwater.rest.auth.keys import create_key
from headwater.rest.server import RunningServer, start_in_thread
from headwater.rest.settings import Limits, Settings
from headwater.streams.log.statements import StatementRows
from headwater.streams.rows.input_rows import TEXT
from headwater.tables.write.arrow import to_stream
from headwater.verbs.stream_requests import ApplyToStreamTable

FIELDS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("name", pa.string())]
SCHEMA = pa.schema(FIELDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    namespace = MetastoreNamespace(root=str(tmp_path_factory.mktemp("lake") / "root"))
    catalog = Catalog(namespace)
    for name in ("a.t", "b.t"):
        catalog.create_stream_table(name, SCHEMA, keys="id").upsert([{"id": 1, "name": name}])
    create_key(namespace.store, SystemClock(), "admin", [])
    running = start_in_thread(namespace)
    running.namespace = namespace  # type: ignore[attr-defined]
    yield running
    running.stop()


def opened(server: Any, role: str, *scope: str) -> Catalog:
    key = create_key(server.namespace.store, SystemClock(), role, list(scope))[1]
    return Catalog(server.url, **{"headers.x-api-key": key})


def test_each_route_needs_its_permission(server: RunningServer) -> None:
    viewer, reader, editor = (opened(server, role, "a") for role in ("viewer", "reader", "editor"))
    assert viewer["a.t"].position >= 1
    with pytest.raises(PermissionDeniedError):
        viewer["a.t"].to_arrow()
    assert reader["a.t"].count() >= 1
    assert len(reader["a.t"].changes()) >= 1
    refused: list[Any] = [
        lambda: reader["a.t"].upsert([{"id": 2, "name": "x"}]),
        lambda: reader["a.t"].changes(reader="me"),
        lambda: reader["a.t"].publish(),
        lambda: reader.undrop("a.x"),
        lambda: reader.publish(["a.t"]),
        lambda: editor.publish(["a.t", "b.t"]),
        lambda: editor["b.t"],
        lambda: editor.diff(1, 2),
        lambda: editor.verify(),
        lambda: editor.collect(),
        lambda: editor.history("b.t"),
    ]
    for call in refused:
        with pytest.raises(PermissionDeniedError):
            call()
    editor["a.t"].upsert([{"id": 2, "name": "x"}])
    assert editor.publish(["a.t"])[0].rows == 2


def part(kind: str, **columns: Any) -> StatementRows:
    return StatementRows(kind, pa.table(columns))


def test_a_statement_is_all_or_nothing_and_stands_on_what_it_has_read(server: RunningServer) -> None:
    admin = opened(server, "admin")
    table = admin.create_stream_table("a.changed", SCHEMA, keys="id")
    table.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    parts = [part("deleted", id=[1]), part("upserted", id=[2]), part("inserted", id=[3], name=["c"])]
    assert table.apply(parts, position=1) == 4
    assert table.to_arrow().sort_by("id").to_pylist() == [{"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    assert table.apply([]) == 4
    with pytest.raises(ConcurrentModificationError):
        table.apply([part("deleted", id=[3])], position=1)
    for wrong in (part("inserted", id=[2], name=["x"]), part("upserted", id=[None], name=["x"]), part("other", id=[1])):
        with pytest.raises(InvalidInputError):
            table.apply([part("deleted", id=[3]), wrong])
    with pytest.raises(PermissionDeniedError):
        opened(server, "reader", "a")["a.changed"].apply(parts)
    for body in (pa.table({"kind": ["deleted"], "rows": [b"x"]}), pa.table({"kind": ["deleted"]})):
        with pytest.raises(InvalidInputError):
            table._send(ApplyToStreamTable(id=table.id.names), body)
    assert table.position == 4
    with admin.transaction("both") as tx:
        tx["a.changed"].apply([part("deleted", id=[3])], position=4)
        tx.create_stream_table("a.made", SCHEMA, keys="id").apply([part("upserted", id=[7], name=["g"])])
    assert (table.count(), admin["a.made"].count()) == (1, 1)


def test_a_statement_of_a_transaction_sees_what_the_transaction_has_done(server: RunningServer) -> None:
    admin = opened(server, "admin")
    for near, name in ((True, "a.own1"), (False, "a.own2")):
        catalog = Catalog(server.namespace) if near else admin  # type: ignore[attr-defined]
        columns = {"id": "bigint", "at": "bigint"}
        catalog.create_stream_table(name, columns, keys="id", sequence="at").upsert([{"id": 1, "at": 1}])
        with catalog.transaction() as tx:
            table = tx[name]
            table.upsert([{"id": 2, "at": 5}])
            for wrong in (part("inserted", id=[2], at=[6]), part("upserted", id=[2], at=[4])):
                with pytest.raises(InvalidInputError, match=r"already|late"):
                    table.apply([wrong])
            table.apply([part("deleted", id=[1], at=[7])], position=table.position)
            tx.rename_table(name, f"{name}_moved")
            catalog["a.t"].publish()  # no state is changed by that
            tx[f"{name}_moved"].apply([part("inserted", id=[1], at=[8])])
        assert catalog[f"{name}_moved"].to_arrow().sort_by("id").to_pylist() == [
            {"id": 1, "at": 8},
            {"id": 2, "at": 5},
        ]


def test_a_statement_that_is_none_is_refused_for_what_it_is(server: RunningServer) -> None:
    admin = opened(server, "admin")
    keyed = admin.create_stream_table("a.ordered", {"id": "bigint", "at": "bigint"}, keys="id", sequence="at")
    runs: Any = pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([9]))
    wrong = [part("upserted", id=[1], at=at) for at in ([[1]], [{"x": 1}], runs)]
    for each in (part("upserted", id=[1]), part("deleted", id=[1]), *wrong):
        with pytest.raises(InvalidInputError, match="at"):
            keyed.apply([each])
    keyed.apply([part("upserted", id=[1, 1], at=pa.array([7, 6]).dictionary_encode())])
    assert keyed.to_arrow().to_pylist() == [{"id": 1, "at": 7}]
    log = admin.create_stream_table("a.log", SCHEMA)
    with pytest.raises(InvalidInputError, match="takes no deletes"):
        log.apply([part("deleted", id=[1], name=["a"])])
    with pytest.raises(InvalidInputError, match="for each kind"):
        log.apply([part("upserted", id=[1], name=["a"])] * 4)
    assert log.count() == 0


def test_the_parts_of_a_statement_are_counted_together(server: Any) -> None:
    def rows(kind: str, *ids: int) -> StatementRows:
        return part(kind, id=list(range(*ids)), name=["x" * 50] * len(range(*ids)))

    with start_in_thread(server.namespace, settings=Settings(limits=Limits(arrow_body=3_000_000))) as small:
        key = create_key(server.namespace.store, SystemClock(), "admin", [])[1]
        table = Catalog(small.url, **{"headers.x-api-key": key})["b.t"]
        before = table.position
        sent = [rows("deleted", 10_000), rows("upserted", 10_000, 20_000), rows("inserted", 20_000, 30_000)]
        with pytest.raises(InvalidInputError, match="bytes"):
            table.apply(sent)
        assert table.apply(sent[1:2]) == before + 1


def test_a_caller_with_a_scope_gets_every_slot_and_the_changes_it_may_see(server: RunningServer) -> None:
    Catalog(server.namespace).run(lambda tx: tx["b.t"].upsert([{"id": 9, "name": "y"}]), "a secret")  # type: ignore[attr-defined]
    mine, all = list(opened(server, "viewer", "a").log(after=0)), list(opened(server, "admin").log(after=0))
    assert [entry.slot for entry in mine] == [entry.slot for entry in all]
    assert {change.path[:1] for entry in mine for change in entry.changes} == {("a",)}
    assert "a secret" in {entry.message for entry in all} - {entry.message for entry in mine}


def test_a_message_is_for_who_sees_all_that_its_transaction_changed(server: RunningServer) -> None:
    def work(tx: Any) -> None:
        tx["a.t"].upsert([{"id": 10, "name": "x"}])
        tx["b.t"].upsert([{"id": 10, "name": "y"}])

    Catalog(server.namespace).run(work, "beside b.t")  # type: ignore[attr-defined]
    scoped, admin = opened(server, "viewer", "a"), opened(server, "admin")
    for told in (lambda who: list(who.log(after=0)), lambda who: who.history("a.t")):
        assert told(admin)[-1].message == "beside b.t"
        assert told(scoped)[-1].message == ""
        assert {change.path[:1] for change in told(scoped)[-1].changes} == {("a",)}


def test_the_log_waits_for_the_next_slot(server: RunningServer) -> None:
    admin = opened(server, "admin")
    now = admin.slot
    assert list(admin.log(after=now, wait=0.01)) == []
    admin["b.t"].upsert([{"id": 3, "name": "z"}])
    assert [entry.slot for entry in admin.log(after=now, wait=20)] == [now + 1]


def test_a_text_in_a_body_is_never_the_name_of_a_file_of_the_server(server: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"id": 77, "name": "secret"}')
    key = create_key(server.namespace.store, SystemClock(), "admin", [])[1]
    body = to_stream(pa.table({TEXT: pa.array([str(secret).encode()], pa.large_binary())}).to_reader())
    with httpx.Client(base_url=server.url, headers={"x-api-key": key}, timeout=60) as http:
        for query in ("", "?format=snapshot", "?format=op"):
            answer = http.post(f"/headwater/v1/table/a$t/stream/ingest{query}", content=body)
            assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.text
        for data in (b"", b"no arrow", to_stream(pa.table({"__hw_has_x": [True]}).to_reader())):
            answer = http.post("/headwater/v1/table/a$t/stream/upsert", content=data)
            assert (answer.status_code, answer.json()["code"]) == (400, 13)
    assert 77 not in opened(server, "admin")["a.t"].to_arrow().column("id").to_pylist()


def test_a_function_is_not_set_from_afar(server: RunningServer) -> None:
    admin = opened(server, "admin")
    derived = {"column.x": '{"function": "os:system", "inputs": ["name"], "type": "int64", "version": "1"}'}
    with pytest.raises(InvalidInputError, match="runs a function"):
        admin["a.t"].set_properties(derived)
    with pytest.raises(InvalidInputError, match="runs a function"):
        admin.create_stream_table("a.f", SCHEMA, keys="id", properties=derived)


def test_undo_needs_write_on_all_that_a_transaction_touched(server: Any) -> None:
    catalog, editor = Catalog(server.namespace), opened(server, "editor", "a")

    def both(tx: Catalog) -> None:
        tx["a.t"].upsert([{"id": 5, "name": "five"}])
        tx["b.t"].upsert([{"id": 5, "name": "five"}])

    start = catalog.slot
    catalog.run(both)
    editor["a.t"].upsert([{"id": 6, "name": "six"}])
    shared, own = catalog.log(after=start)
    for txn in (shared, "nobody"):
        with pytest.raises(PermissionDeniedError):
            editor.undo(txn)
    with pytest.raises(PermissionDeniedError):
        opened(server, "reader", "a").undo(own)
    editor.undo(own)
    assert 6 not in catalog["a.t"].to_arrow().column("id").to_pylist()


def test_a_server_that_is_read_only_undoes_nothing_and_keeps_no_reader(server: Any) -> None:
    entry = list(Catalog(server.namespace).log(after=0))[-1]
    with start_in_thread(server.namespace, settings=Settings(read_only=True)) as reading:
        key = create_key(server.namespace.store, SystemClock(), "admin", [])[1]
        catalog = Catalog(reading.url, **{"headers.x-api-key": key})
        assert len(catalog["a.t"]) >= 1
        for call in (lambda: catalog.undo(entry), lambda: catalog["a.t"].publish()):
            with pytest.raises(UnsupportedOperationError, match="read-only"):
                call()
        with pytest.raises(InvalidInputError, match="reader"):
            catalog["a.t"].changes(reader="me")
