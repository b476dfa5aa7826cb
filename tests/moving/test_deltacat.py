"""A root that the released DeltaCAT wrote comes in: names, schemas, deltas, history. Hostile ones do not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater import Catalog
from headwater.errors import ConcurrentModificationError, InvalidInputError, UnsupportedOperationError
from headwater.moving import import_deltacat
from headwater.moving.deltacat import replay
from tests.cli.running import Cli
from tests.moving.deltacat_root import unpack

ORDERS = [
    {"id": 1, "v": "a", "extra": None},
    {"id": 2, "v": "B", "extra": None},
    {"id": 4, "v": "d", "extra": None},
    {"id": 5, "v": "e", "extra": 1.5},
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return unpack(tmp_path / "theirs")


def rows(catalog: Catalog, name: str) -> list[dict[str, Any]]:
    return sorted(catalog[name].to_arrow().to_pylist(), key=lambda row: str(next(iter(row.values()))))


def test_names_schemas_deltas_and_history_come_in(tmp_path: Path, root: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    done = import_deltacat(catalog, str(root))
    assert (done.namespaces, done.tables, done.stream_tables, done.unreadable) == (3, 6, 1, ())
    assert list(catalog) == [
        *("raw.bare", "raw.events", "raw.new", "raw.replaced", "raw.versioned", "raw.versioned__v1", "shop.orders")
    ]
    assert catalog.namespace_properties("shop") == {"owner": "me"}
    events = catalog["raw.events"]
    assert [row["n"] for row in rows(catalog, "raw.events")] == [1, 2, 3, 4, 7, 8]
    assert [(each.name, str(each.type)) for each in events.schema] == [("n", "int64"), ("s", "string")]
    assert [events.at(each.version).count() for each in events.versions()] == [3, 4, 6]
    assert (rows(catalog, "raw.replaced"), rows(catalog, "raw.versioned")) == ([{"a": 2}], [{"b": "q"}])
    orders = catalog["shop.orders"]
    assert (rows(catalog, "shop.orders"), orders.definition.keys) == (ORDERS, ("id",))
    assert orders.definition.properties["description"] == "of the shop"
    assert [orders.count(position) for position in range(5)] == [0, 3, 4, 3, 4]
    assert orders.published.position == 4
    messages = [entry.message for entry in catalog.log()]
    assert any(message.endswith(": two at once") for message in messages)
    named = {name for slot in range(1, catalog.slot + 1) for name in catalog.at(slot)}
    assert {"raw.old", "raw.gone"} <= named
    assert "raw.failed" not in named
    assert catalog.verify() == []
    again = import_deltacat(catalog, str(root))
    assert (again.transactions, again.slot, again.tables) == (0, done.slot, 6)


def test_it_goes_on_where_it_was(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Catalog(str(tmp_path / "whole"))
    steps = import_deltacat(whole, str(root), into="a.b").transactions
    real: Callable[..., None] = replay._Replay._rows
    left = list(range(9))

    def dies(self: Any, *args: Any) -> None:
        left.pop()
        real(self, *args)

    monkeypatch.setattr(replay._Replay, "_rows", dies)
    catalog = Catalog(str(tmp_path / "lake"))
    with pytest.raises(IndexError):
        import_deltacat(catalog, str(root), into="a.b")
    monkeypatch.undo()
    begun = len([each for each in catalog.log() if each.message.startswith(replay.MESSAGE)])
    done = import_deltacat(catalog, str(root), into="a.b")
    assert 0 < done.transactions < steps
    assert done.transactions + begun == steps
    assert list(catalog) == list(whole)
    assert [rows(catalog, name) for name in catalog] == [rows(whole, name) for name in whole]


def test_a_transaction_that_met_another_writer_is_made_again_whole(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, seen = Catalog(str(tmp_path / "lake")), set[Any]()
    real: Callable[..., None] = replay._Replay._replay

    def disturbed(self: Any, tx: Any, step: Any) -> None:
        real(self, tx, step)
        if step.txn not in seen:  # as if a commit had found what was read changed
            seen.add(step.txn)
            raise ConcurrentModificationError("somebody was faster")

    monkeypatch.setattr(replay._Replay, "_replay", disturbed)
    import_deltacat(catalog, str(root))
    assert [row["n"] for row in rows(catalog, "raw.events")] == [1, 2, 3, 4, 7, 8]
    assert rows(catalog, "shop.orders") == ORDERS


def test_merge_keys_may_be_left_aside(tmp_path: Path, root: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    assert import_deltacat(catalog, str(root), keyed=False).stream_tables == 0
    assert rows(catalog, "shop.orders") == ORDERS
    assert [catalog["shop.orders"].at(n).count() for n in (1, 2, 3, 4, 5)] == [0, 3, 4, 3, 4]


def test_a_merge_key_that_is_there_twice_is_told_before_anything_is_made(tmp_path: Path, root: Path) -> None:
    file = _data_file(root, "orders", -1)
    with file.open("rb") as data:
        rows = pq.read_table(data)
    pq.write_table(pa.concat_tables([rows, rows]), file)
    catalog = Catalog(str(tmp_path / "lake"))
    with pytest.raises(InvalidInputError, match=r"shop\.orders has rows with one merge key more than once"):
        import_deltacat(catalog, str(root))
    assert not catalog.is_there
    assert import_deltacat(catalog, str(root), keyed=False).stream_tables == 0


def test_what_cannot_be_read_is_named_and_left_out_only_when_told(tmp_path: Path, root: Path) -> None:
    newest = _data_file(root, "events", -1)
    newest.write_bytes(b"PAR1 no more")
    older = _data_file(root, "orders", 0)
    older.unlink()
    catalog = Catalog(str(tmp_path / "lake"))
    with pytest.raises(InvalidInputError, match=f"{older.name} is missing"):
        import_deltacat(catalog, str(root))
    assert not catalog.is_there
    done = import_deltacat(catalog, str(root), skip_unreadable=True)
    assert {newest.name, older.name} <= {text.split(" ")[0].rsplit("/", 1)[-1] for text in done.unreadable}
    assert [row["n"] for row in rows(catalog, "raw.events")] == [1, 2, 3, 4]
    assert rows(catalog, "raw.replaced") == [{"a": 2}]


def test_a_path_that_leads_out_of_the_root_is_refused(tmp_path: Path, root: Path) -> None:
    (tmp_path / "secret.pq").write_bytes(b"secret")
    for place, hostile in enumerate(("../secret.pq", str(tmp_path / "secret.pq"), "file:///etc/x", "data/../../x", "")):
        copy = Path(shutil.copytree(root, tmp_path / f"hostile{place}"))
        for delta in copy.glob("*/*/*/*/*/*/rev/*/*/*.mpk"):
            body = msgspec.msgpack.decode(delta.read_bytes())
            body["manifest"]["entries"][0]["url"] = hostile
            delta.write_bytes(msgspec.msgpack.encode(body))
        _refused(tmp_path, copy, "not inside this root")
    record = next(iter(sorted((root / "txn").rglob("*_*/*"))))
    body = msgspec.msgpack.decode(record.read_bytes())
    kept = record.read_bytes()
    body["operations"] = [{"type": "create", "metafile_write_paths": ["../rev/1/1/1_create_1_x.mpk"]}]
    record.write_bytes(msgspec.msgpack.encode(body))
    _refused(tmp_path, root, "not inside this root")
    record.write_bytes(kept)
    target = _data_file(root, "events", 0)
    target.unlink()
    os.symlink(tmp_path / "secret.pq", target)
    _refused(tmp_path, root, "leads out of the root")


def test_other_folders_names_that_are_taken_and_other_catalogs_are_refused(tmp_path: Path, root: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    with pytest.raises(InvalidInputError, match="no folder"):
        import_deltacat(catalog, str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInputError, match="no DeltaCAT"):
        import_deltacat(catalog, str(tmp_path))
    catalog.create_table("raw.new", pa.table({"a": [0]}))
    with pytest.raises(InvalidInputError, match=r"raw\.new already"):
        import_deltacat(catalog, str(root))
    with pytest.raises(UnsupportedOperationError):
        import_deltacat(Catalog(str(tmp_path / "dir"), impl="dir"), str(root))


def _refused(tmp_path: Path, root: Path, why: str) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    for skip in (False, True):
        with pytest.raises(InvalidInputError, match=why):
            import_deltacat(catalog, str(root), skip_unreadable=skip)
    assert not catalog.is_there


def _data_file(root: Path, table: str, place: int) -> Path:
    """A data file of a table, in the order of its transactions."""
    found: list[str] = []
    for record in sorted((root / "txn/success").rglob("*_*/*"), key=lambda path: int(path.name)):
        for operation in msgspec.msgpack.decode(record.read_bytes())["operations"]:
            for path in operation.get("metafile_write_paths") or ():
                body = msgspec.msgpack.decode((root / path).read_bytes())
                if "manifest" in body and body["type"] in ("add", "append"):
                    ids = path.split("/")
                    named = next((root / ids[0] / ids[1]).glob("rev/*/*/*_create_*"))
                    if msgspec.msgpack.decode(named.read_bytes())["tableLocator"]["tableName"] == table:
                        found += [entry["url"] for entry in body["manifest"]["entries"]]
    return root / found[place]


def test_the_verb(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(str(tmp_path / "lake"), capsys)
    done = cli.json("from-deltacat", str(root), "--into", "old")
    assert (done["tables"], done["stream_tables"], done["unreadable"]) == (6, 1, [])
    assert "old.shop.orders" in Catalog(cli.root)
