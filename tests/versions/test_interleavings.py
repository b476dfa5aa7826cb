"""Every interleaving of a client's commit with what others commit: nothing acknowledged is lost, nothing is twice.

A client's change is a sequence of calls to the catalog. Before and after each of them another writer commits, once or
twice, or the answer is lost: all of it is enumerated, nothing is left to luck.
"""

from __future__ import annotations

import itertools
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headwater import Catalog, DirectoryNamespace, MetastoreNamespace
from headwater.errors import (
    ConcurrentModificationError,
    CorruptFileError,
    LanceNamespaceError,
    ServiceUnavailableError,
)
from headwater.model import Remove, Version
from headwater.names import ObjectId
from headwater.namespace.versions import writer_queue
from headwater.namespace.versions.managed import ManagedVersions, StagedVersion
from headwater.rest.server import start_in_thread
from headwater.tables.layout import manifest_name
from tests.versions.samples import KINDS

ID = ["t"]
SEED = {1: 0, 2: 0, 3: 0}
Rows = dict[int, int]


def rows(values: Rows) -> pa.Table:
    return pa.table({"id": pa.array(values.keys(), pa.int64()), "v": pa.array(values.values(), pa.int64())})


def found(namespace: Any) -> Rows:
    table = lance.dataset(namespace_client=namespace, table_id=ID).to_table()
    ids = table["id"].to_numpy().tolist()
    assert len(ids) == len(set(ids)), f"twice: {sorted(ids)}"
    return dict(zip(ids, table["v"].to_numpy().tolist(), strict=True))


class Interposed:
    """A catalog as a client sees it, that lets another act at one of the client's calls.

    `at`: before (even) or after (odd) call `at // 2`. `lost`: the client gets an error in place of that call's answer.
    """

    def __init__(self, namespace: Any, at: int | None, act: Callable[[], None], lost: bool) -> None:
        self._namespace = namespace
        self._at, self._act, self._lost = at, act, lost
        self.calls: list[str] = []

    def namespace_id(self) -> str:
        return str(self._namespace.namespace_id())

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._namespace, name)

        def call(request: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if self._at == 2 * number:
                self._interrupt()
            answer = inner(request)
            if self._at == 2 * number + 1:
                self._interrupt()
            return answer

        return call

    def _interrupt(self) -> None:
        thread = threading.Thread(target=self._act)  # pylance calls no pylance from the thread that it calls with
        thread.start()
        thread.join()
        if self._lost:
            raise ServiceUnavailableError("The answer was lost.")


def append(client: Any) -> None:
    lance.write_dataset(rows({10: 1}), namespace_client=client, table_id=ID, mode="append")


def delete(client: Any) -> None:
    lance.dataset(namespace_client=client, table_id=ID).delete("id = 1")


def update(client: Any) -> None:
    lance.dataset(namespace_client=client, table_id=ID).update({"v": "5"}, "id = 2")


def merge(client: Any) -> None:
    merging: Any = lance.dataset(namespace_client=client, table_id=ID).merge_insert("id")
    merging.when_matched_update_all().when_not_matched_insert_all().execute(rows({3: 7, 11: 7}))


CHANGES: dict[str, tuple[Callable[[Any], None], Rows, set[int]]] = {
    "append": (append, {10: 1}, set()),
    "delete": (delete, {}, {1}),
    "update": (update, {2: 5}, set()),
    "merge": (merge, {3: 7, 11: 7}, set()),
}
"""What a client does, the values that are there then, and the rows that are not."""


class Others:
    """Another writer: `kind` says how it commits, `count` how often. What it has committed is in `rows`."""

    def __init__(self, catalog: Catalog, kind: str, count: int) -> None:
        self.catalog, self.kind, self.count = catalog, kind, count
        self.rows: Rows = {}

    def __call__(self) -> None:
        for number in range(self.count):
            new = {100 + number: 0}
            if self.kind == "transaction":
                with self.catalog.transaction("beside") as tx:
                    tx["t"].append(rows(new))
            elif self.kind == "client":
                lance.write_dataset(rows(new), namespace_client=self.catalog.namespace, table_id=ID, mode="append")
            else:
                return
            self.rows |= new


@contextmanager
def opened(kind: str, root: Path) -> Iterator[tuple[Any, Catalog]]:
    """What the client asks, and the catalog of the other writer."""
    if kind.startswith("metastore"):
        catalog = Catalog(MetastoreNamespace(root=str(root)))
        if kind == "metastore":
            yield MetastoreNamespace(root=str(root)), catalog
            return
        server = start_in_thread(MetastoreNamespace(root=str(root)))
        try:
            yield Catalog(server.url).namespace, Catalog(server.url)
        finally:
            server.stop()
        return
    yield DirectoryNamespace(root=str(root), **KINDS[kind]), Catalog(DirectoryNamespace(root=str(root), **KINDS[kind]))


def one(kind: str, root: Path, change: str, at: int | None, others: str, count: int, lost: bool) -> list[str]:
    """One history, checked; the calls that the client made."""
    with opened(kind, root) as (namespace, catalog):
        beside = Others(catalog, others, count)
        client = Interposed(namespace, at, beside, lost)
        work, new, gone = CHANGES[change]
        done = True
        try:
            work(client)
        except (OSError, RuntimeError, ValueError, LanceNamespaceError):
            done = False
        there = found(namespace)
        told = f"{change}, {others} x {count} at {at}, lost: {lost}, acknowledged: {done}, calls: {client.calls}"
        with_it = {id: value for id, value in (SEED | new | beside.rows).items() if id not in gone}
        without = SEED | beside.rows
        assert there == with_it if done else there in (with_it, without), f"{told}\n{there}"
        assert {kind_of(each) for each in catalog.verify()} <= {"staged_leftover"}, told
        return client.calls


def kind_of(problem: Any) -> str:
    return str(problem["kind"] if isinstance(problem, dict) else problem.kind)


def enumerate_all(kind: str, tmp_path: Path, changes: list[str], others: list[tuple[str, int]]) -> int:
    """Every place between two calls of the client, with every other writer there; how many histories it were."""
    seed = tmp_path / "seed"
    with opened(kind, seed) as (_, catalog):
        catalog.create_table("t", rows(SEED))
    histories = 0
    for change in changes:
        calls = one(kind, _copy(seed, tmp_path), change, None, "nobody", 0, False)
        for at, (other, count) in itertools.product(range(2 * len(calls)), others):
            for lost in (False, True):
                one(kind, _copy(seed, tmp_path), change, at, other, count, lost)
                histories += 1
    return histories


def _copy(seed: Path, tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(seed, root)
    return root


@pytest.fixture
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are a courtesy: here everybody is to be overtaken."""
    for name in ("VALID_S", "UNKNOWN_S", "OVERTAKEN_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(writer_queue, name, 0.0)


@pytest.mark.usefixtures("nobody_waits")
def test_an_append_beside_transactions_is_there_once_if_it_is_acknowledged(tmp_path: Path) -> None:
    assert enumerate_all("metastore", tmp_path, ["append"], [("transaction", 2)]) >= 12


@pytest.mark.long
@pytest.mark.usefixtures("nobody_waits")
@pytest.mark.parametrize("kind", ["metastore", "metastore-server", "V2-managed"])
def test_a_change_of_a_client_is_there_once_if_it_is_acknowledged(tmp_path: Path, kind: str) -> None:
    kinds = ("client",) if kind == "V2-managed" else ("client", "transaction")
    others = [("nobody", 0), *itertools.product(kinds, (1, 2))]
    enumerate_all(kind, tmp_path, list(CHANGES), others)


def staged(namespace: Any, version: int, data: bytes) -> dict[str, Any]:
    """A request for a version, with a manifest as a client stages it."""
    folder = Path(namespace.describe_table({"id": ID}).location) / "_versions"
    file = folder / f"{manifest_name(version)}-{uuid.uuid4()}"
    file.write_bytes(data)
    status = file.stat()
    tag = f'"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"'
    path = str(file).lstrip("/")
    return {"id": ID, "version": version, "manifest_path": path, "manifest_size": len(data), "e_tag": tag}


def without(request: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in names}


LEFT_OUT: list[tuple[str, ...]] = [(), ("e_tag",), ("manifest_size",), ("e_tag", "manifest_size")]


def manifest(namespace: Any, version: int) -> Path:
    told = namespace.describe_table_version({"id": ID, "version": version}).version
    return Path("/" + told.manifest_path)


def listed_manifest(namespace: Any, version: int) -> Path:
    """The same from a list, which moves nothing: the description of a version points its record at the final name."""
    told = namespace.list_table_versions({"id": ID}).versions
    return next(Path("/" + each.manifest_path) for each in told if each.version == version)


def test_a_version_of_another_writer_is_not_ones_own_whatever_a_request_leaves_out(tmp_path: Path) -> None:
    """Two transactions take versions 2 and 3. A client asks for 2, with another manifest of the very same size."""
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    catalog = Catalog(namespace)
    catalog.create_table("t", rows(SEED))
    Others(catalog, "transaction", 2)()
    before = manifest(namespace, 2).read_bytes()
    assert namespace.describe_table_version({"id": ID, "version": 2}).version.e_tag  # type: ignore[arg-type]
    for number, left_out in enumerate(LEFT_OUT):
        asked = staged(namespace, 2, before[:10] + bytes([before[10] ^ (number + 1)]) + before[11:])
        with pytest.raises(ConcurrentModificationError):
            namespace.create_table_version(without(asked, left_out))  # type: ignore[arg-type]
        Path("/" + asked["manifest_path"]).unlink()
        with pytest.raises(ConcurrentModificationError):
            namespace.create_table_version(without(asked, left_out))  # type: ignore[arg-type]
    assert manifest(namespace, 2).read_bytes() == before


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_a_version_is_ones_own_by_its_bytes_and_without_them_by_all_that_is_known_of_it(
    tmp_path: Path, left_out: tuple[str, ...]
) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    Catalog(namespace).create_table("t", rows(SEED))
    asked = staged(namespace, 2, manifest(namespace, 1).read_bytes())
    first = namespace.create_table_version(asked)  # type: ignore[arg-type]
    file = Path("/" + asked["manifest_path"])
    assert file.exists()
    assert namespace.create_table_version(without(asked, left_out)) == first  # type: ignore[arg-type]
    file.unlink()
    again = MetastoreNamespace(root=str(tmp_path / "lake"))
    if not left_out:
        assert again.create_table_version(asked) == first  # type: ignore[arg-type]
        return
    with pytest.raises(ConcurrentModificationError):
        again.create_table_version(without(asked, left_out))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["metastore", "V2-managed"])
def test_verify_tells_of_a_manifest_that_is_not_the_recorded_one(tmp_path: Path, kind: str) -> None:
    with opened(kind, tmp_path / "lake") as (namespace, catalog):
        catalog.create_table("t", rows(SEED))
        append(namespace)
        append(namespace)
        older, newer = manifest(namespace, 2), manifest(namespace, 3)
        assert catalog.verify() == []
        data = newer.read_bytes()
        newer.unlink()  # its staged name is another name of the same file
        newer.write_bytes(older.read_bytes())
        told = [problem for problem in catalog.verify() if kind_of(problem) == "other_manifest"]
        assert [problem.key.rsplit("/", 1)[-1] for problem in told] == [newer.name]
        newer.write_bytes(data)
        assert catalog.verify() == []


@pytest.mark.parametrize("kind", ["metastore", "V2-managed"])
def test_another_manifest_under_the_final_name_is_not_taken_for_a_staged_one_that_is_gone(
    tmp_path: Path, kind: str
) -> None:
    with opened(kind, tmp_path / "lake") as (namespace, catalog):
        catalog.create_table("t", rows(SEED))
        append(namespace)
        append(namespace)
        older, newer = listed_manifest(namespace, 2), listed_manifest(namespace, 3)
        for left in newer.parent.glob(f"{newer.name}-*"):
            left.unlink()
        data = newer.read_bytes()
        newer.write_bytes(older.read_bytes())
    with opened(kind, tmp_path / "lake") as (namespace, _):
        with pytest.raises(CorruptFileError, match="not the manifest that was recorded"):
            manifest(namespace, 3)
        newer.write_bytes(data)
        assert manifest(namespace, 3) == newer


@pytest.mark.usefixtures("nobody_waits")
@pytest.mark.parametrize(("kind", "bypassed"), [("metastore", False), ("metastore", True), ("V2-managed", False)])
def test_a_writer_that_sleeps_before_its_manifest_is_final_keeps_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, bypassed: bool
) -> None:
    with opened(kind, tmp_path / "lake") as (namespace, catalog):
        catalog.create_table("t", rows(SEED))
        beside = Others(catalog, "client", 3)
        finish = ManagedVersions._finish
        slept = threading.Event()

        def sleeping(self: ManagedVersions, item: StagedVersion) -> Version:
            if not slept.is_set():
                slept.set()
                if bypassed:  # somebody who does not ask the catalog has taken the final name
                    data = manifest(namespace, 1).read_bytes()
                    (manifest(namespace, 1).parent / manifest_name(2)).write_bytes(data)
                thread = threading.Thread(target=beside)
                thread.start()
                thread.join()
                manifest(namespace, 3)  # another request of this process, which has seen the later versions
            return finish(self, item)

        monkeypatch.setattr(ManagedVersions, "_finish", sleeping)
        append(namespace)
        assert found(namespace) == SEED | {10: 1} | beside.rows
        assert len(beside.rows) == 3
        for version in range(1, 6):
            assert manifest(namespace, version).read_bytes()
        assert {kind_of(each) for each in catalog.verify()} <= {"staged_leftover"}


def test_the_record_of_a_version_is_not_removed_in_place_of_another_with_its_number(tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path))
    catalog, registry = Catalog(namespace), namespace.registry
    catalog.create_table("t", rows(SEED))
    append(catalog.namespace)
    id = ObjectId(("t", "2"))
    old = registry.find([id])[id]
    assert isinstance(old, Version)
    catalog.drop_table("t")
    catalog.create_table("t", rows(SEED))
    lance.write_dataset(rows({20: 1}), namespace_client=catalog.namespace, table_id=ID, mode="append")
    with pytest.raises(ConcurrentModificationError):
        registry.commit([Remove(old)])
    assert found(catalog.namespace) == SEED | {20: 1}
    new = registry.find([id])[id]
    assert isinstance(new, Version)
    registry.commit([Remove(replace(new, manifest_path="_versions/elsewhere"))])
    assert registry.find([id]) == {}
