"""The mirror: plain pylance reads a metastore's tables, of one whole slot, and writes nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace as PylanceNamespace

from headwater import Catalog, DirectoryNamespace, MetastoreNamespace
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError
from headwater.metastore import Metastore
from headwater.moving import upgrade
from headwater.namespace.mirror import Mirror
from headwater.namespace.versions import TableVersions
from headwater.registries.layout import MIRROR_MARKER
from headwater.registries.metastore import MetastoreRegistry
from headwater.store import Crash, CrashesAtStore, LocalStore, Store
from tests.interop.roots import count, create, namespaces, tables

ROWS = pa.table({"n": [1, 2, 3]})


def theirs(root: Path) -> PylanceNamespace:
    return PylanceNamespace(root=str(root), dir_listing_enabled="false")


def fill(catalog: Catalog) -> None:
    catalog.create_table("t", ROWS)
    catalog.create_namespace("deep", {"owner": "me"})
    catalog.create_table("deep.er.u", ROWS)


def test_plain_pylance_reads_the_same_names_and_rows_and_writes_nothing(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    catalog.mirror = True
    assert catalog.mirror
    catalog["t"].append(ROWS)
    stream = catalog.create_stream_table("events", pa.schema([("id", pa.int64())]), keys="id")
    stream.upsert(pa.table({"id": [1, 2]}))
    stream.publish()
    catalog.rename_namespace("deep", "moved")
    with catalog.transaction() as tx:
        tx["t"].append(ROWS)
    catalog.close()
    assert catalog.mirror.slot == catalog.slot
    other = theirs(tmp_path)
    assert tables(other) == ["events", "t"]
    assert namespaces(other) == ["moved"]
    assert other.describe_namespace(api.DescribeNamespaceRequest(id=["moved"])).properties == {"owner": "me"}
    assert (count(other, "t"), count(other, "moved", "er", "u"), count(other, "events")) == (9, 3, 2)
    with pytest.raises(Exception, match="writer feature"):
        create(other, "mine")
    assert isinstance(catalog.namespace, MetastoreNamespace)
    assert catalog.namespace.verify() == []


def test_our_own_directory_class_does_not_take_a_mirror_for_a_catalog(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    catalog.mirror = True
    with pytest.raises(InvalidInputError, match="metastore"):
        DirectoryNamespace(root=str(tmp_path))
    assert isinstance(Catalog(str(tmp_path)).namespace, MetastoreNamespace)


def test_turned_off_it_is_read_by_nobody_and_turned_on_again_it_is_whole(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    catalog.mirror = True
    catalog.mirror = False
    assert not catalog.mirror
    with pytest.raises(Exception, match="reader feature"):
        tables(theirs(tmp_path))
    catalog.drop_table("t")
    catalog.mirror = True
    assert tables(theirs(tmp_path)) == []


def test_an_upgraded_root_can_be_mirrored(tmp_path: Path) -> None:
    fill(Catalog(str(tmp_path), impl="dir", table_version_management="true"))
    upgrade(str(tmp_path))
    Catalog(str(tmp_path)).mirror = True
    assert count(theirs(tmp_path), "deep", "er", "u") == 3


def test_the_end_of_a_process_brings_it_up_to_date(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    catalog.mirror = True
    catalog.close()
    code = "import headwater, sys; headwater.Catalog(sys.argv[1]).create_namespace('late')"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    assert namespaces(theirs(tmp_path)) == ["deep", "late"]


def test_the_next_opener_brings_it_up_to_date_when_a_writer_was_killed(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    catalog.mirror = True
    catalog.close()
    Metastore(str(tmp_path)).run(lambda tx: tx.create_namespace(["late"]))  # as a process that never got to its mirror
    assert namespaces(theirs(tmp_path)) == ["deep"]
    opened = MetastoreNamespace(root=str(tmp_path))
    thread = opened.mirror._thread
    assert thread is not None
    opened.mirror._ending.set()
    thread.join()
    assert namespaces(theirs(tmp_path)) == ["deep", "late"]


def mirror_over(store: Store, root: Path) -> Mirror:
    clock, metastore = SystemClock(), Metastore(store)
    registry = MetastoreRegistry(metastore, clock)
    return Mirror(metastore, TableVersions(registry, registry, store, str(root), clock), str(root), {}, clock)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_step_it_shows_one_whole_slot_and_the_next_update_the_newest(tmp_path: Path, after: bool) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    catalog.mirror = True
    catalog.close()
    store = LocalStore(tmp_path)
    old = ["deep"]
    for step in range(1, 40):
        names = [f"a{step}", f"b{step}"]

        def work(tx: object, names: list[str] = names) -> None:
            for name in names:
                tx.create_namespace([name])  # type: ignore[attr-defined]

        Metastore(store).run(work)
        crashing = CrashesAtStore(store, step, after)
        try:
            mirror_over(crashing, tmp_path).update()
        except Crash:
            assert namespaces(theirs(tmp_path)) in (old, sorted([*old, *names]))
        else:
            break
        mirror_over(store, tmp_path).update()
        old = sorted([*old, *names])
        assert namespaces(theirs(tmp_path)) == old
    assert 1 < step < 39


def test_commits_do_not_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    catalog.mirror = True
    catalog.close()
    monkeypatch.setattr(Mirror, "update", lambda self: None)
    for number in range(20):
        catalog.create_namespace(f"n{number}")
    assert len(namespaces(theirs(tmp_path))) == 1
    monkeypatch.undo()
    catalog.close()
    assert len(namespaces(theirs(tmp_path))) == 21


def test_a_mirror_on_an_object_store_is_read_by_plain_pylance(s3_root: str, s3_options: dict[str, str]) -> None:
    storage = {f"storage.{key}": value for key, value in s3_options.items()}
    catalog = Catalog(s3_root, **storage)
    catalog.create_table("a.t", ROWS)
    catalog.mirror = True
    catalog.create_namespace("later")
    catalog.close()
    other = PylanceNamespace(root=s3_root, dir_listing_enabled="false", **storage)
    assert (namespaces(other), count(other, "a", "t")) == (["a", "later"], 3)


def test_several_who_turn_it_on_at_once_all_succeed(tmp_path: Path) -> None:
    with Catalog(str(tmp_path)) as catalog:
        fill(catalog)
    openers = [Catalog(str(tmp_path)) for _ in range(6)]
    ready = threading.Barrier(len(openers))

    def turn_on(opener: Catalog) -> bool:
        ready.wait()
        opener.mirror = True
        return opener.mirror.on

    with ThreadPoolExecutor(len(openers)) as pool:
        assert all(pool.map(turn_on, openers))
    for opener in openers:
        opener.close()
    assert set(tables(theirs(tmp_path))) == {"t"}


def test_a_mirror_is_turned_on_and_off_by_a_transaction_or_not_at_all(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx.mirror = True
        raise ZeroDivisionError
    assert (bool(catalog.mirror), (tmp_path / MIRROR_MARKER).exists()) == (False, False)
    with catalog.transaction("show") as tx:
        tx.create_namespace("more")
        tx.mirror = True
        assert (bool(tx.mirror), bool(catalog.mirror)) == (True, False)
    assert (catalog.mirror.slot, namespaces(theirs(tmp_path))) == (catalog.slot, ["deep", "more"])
    shown = list(catalog.log())[-1]
    assert shown.message == "show"
    catalog.alter_namespace("", {"owner": "me"})
    assert catalog.mirror
    with catalog.transaction() as tx:
        tx.mirror = False
        assert not tx.mirror
        assert catalog.mirror
    assert not catalog.mirror
    catalog.undo(list(catalog.log())[-1])
    assert catalog.mirror.slot == catalog.slot
    assert not catalog.at(1).namespace_properties("")
    assert catalog.verify() == []


@pytest.mark.parametrize("on", [True, False])
def test_a_mirror_that_a_killed_process_turned_is_as_its_transaction_said_for_the_next_opener(
    tmp_path: Path, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    if not on:
        catalog.mirror = True
    with monkeypatch.context() as killed:
        killed.setattr(Mirror, "settle", lambda mirror: None)
        with catalog.transaction() as tx:
            tx.mirror = on
    again = Catalog(str(tmp_path))
    assert bool(again.mirror) is on
    again.close()
    if on:
        assert tables(theirs(tmp_path)) == ["t"]
    else:
        with pytest.raises(Exception, match="reader feature"):
            tables(theirs(tmp_path))


def test_a_mirror_that_is_turned_off_while_another_follows_it_stays_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has looked whether there is one, and writes what it was to show then."""
    catalog = Catalog(str(tmp_path))
    fill(catalog)
    catalog.mirror = True
    catalog.close()
    other: Any = Catalog(str(tmp_path)).namespace
    other.mirror.close()
    write = Mirror._write

    def overtaken(mirror: Mirror, base: Any) -> int:
        monkeypatch.undo()
        catalog.mirror = False
        return write(mirror, base)

    monkeypatch.setattr(Mirror, "_write", overtaken)
    other.mirror.update()
    assert not catalog.mirror
    with pytest.raises(Exception, match="reader feature"):
        tables(theirs(tmp_path))
