"""The storage fails under the catalog: crashes at each write, lost answers, a full disk, and how often it is asked."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest

from headwater import DirectoryNamespace
from headwater.clock import SystemClock
from headwater.errors import (
    CommitStateUnknownError,
    InternalError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from headwater.model import Namespace
from headwater.names import ROOT, ObjectId
from headwater.namespace.operations import Operations
from headwater.namespace.plans import CreateMode, DropBehavior, DropMode
from headwater.registries.compat import CompatRegistry
from headwater.registries.listing import ListingRegistry
from headwater.registries.manifest import ManifestRegistry
from headwater.registry import Registry
from headwater.store import (
    CountingStore,
    Crash,
    CrashesAtStore,
    LocalStore,
    LosesAnswerStore,
    PlainStore,
    PutMode,
    Store,
    WrappedStore,
)
from headwater.store.wrappers import WRITES
from headwater.testing.namespace_suite import ROWS, ipc
from tests.children import PROCESSES
from tests.faults.processes import MODES, call, check_sound, perform, rows_of_manifest

A, T, U, NEW = ObjectId(("a",)), ObjectId(("a", "t")), ObjectId(("u",)), ObjectId(("new",))


def operations(store: Store, root: str, mode: str) -> Operations:
    """The catalog over a wrapped store: with the abilities of local disk, or plain, as on an object store."""
    clock = SystemClock()
    manifest = ManifestRegistry(store, root, {}, clock)
    registry: Registry = manifest if mode == "V2" else CompatRegistry(manifest, ListingRegistry(store, clock))
    return Operations(registry, store, root, clock)


def prepared(root: str, mode: str) -> DirectoryNamespace:
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    for what in (
        call("create_namespace", "a"),
        call("create_table", "a", "t", rows=3),
        call("create_table", "r", rows=3),
    ):
        assert perform(namespace, what) is None
    return namespace


BRANCHES: dict[str, Callable[[str], Store]] = {
    "local disk": LocalStore,
    "object store": lambda root: PlainStore(LocalStore(root)),
}
"""What production runs on local disk, and what it runs elsewhere, on the same folder."""

STEPS: dict[str, Callable[[Operations], Any]] = {
    "create_namespace": lambda it: it.create_namespace(ObjectId(("new",)), CreateMode.CREATE, {}),
    "declare_table": lambda it: it.declare_table(ObjectId(("new",)), None, {}),
    "rename_table": lambda it: it.rename_table(T, U),
    "deregister_table": lambda it: it.deregister_table(ObjectId(("r",))),
    "drop_table": lambda it: it.drop_table(ObjectId(("r",))),
    "drop_namespace": lambda it: it.drop_namespace(A, DropMode.FAIL, DropBehavior.CASCADE),
}


@pytest.mark.parametrize("mode", ["V2", "compat"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("branch", BRANCHES)
def test_a_crash_at_any_write_leaves_a_state_that_the_next_writer_can_go_on_from(
    tmp_path: Path, step: str, mode: str, branch: str
) -> None:
    for write in range(1, 20):
        for after in (False, True):
            root = str(tmp_path / f"{write}-{after}")
            prepared(root, mode)
            store = CrashesAtStore(BRANCHES[branch](root), write, after)
            with suppress(Crash, LanceNamespaceError):  # pylance wraps what is raised under it
                STEPS[step](operations(store, root, mode))
            if not store.dead:
                return
            check_sound(root, mode, rows=3, leaks=True)
            _finish(DirectoryNamespace(root=root, **MODES[mode]).operations, STEPS[step])
            check_sound(root, mode, rows=3, leaks=True)
    pytest.fail("the operation never came to its end")


def _finish(again: Operations, step: Callable[[Operations], Any]) -> None:
    """The next writer does the same: it succeeds, or finds it done. It is never told to try again for ever."""
    with suppress(NamespaceNotFoundError, NamespaceAlreadyExistsError, TableNotFoundError, TableAlreadyExistsError):
        step(again)


@pytest.mark.parametrize("mode", ["V2", "compat"])
def test_a_commit_whose_answer_is_lost_is_applied_once_and_reported_as_done(tmp_path: Path, mode: str) -> None:
    root = str(tmp_path)
    prepared(root, mode)
    lost: list[str] = []

    def loses(key: str) -> bool:
        lost.append(key)
        return key.startswith("__manifest/_versions/")

    catalog = operations(LosesAnswerStore(LocalStore(root), loses), root, mode)
    catalog.create_namespace(ObjectId(("new",)), CreateMode.CREATE, {})
    catalog.rename_table(T, U)
    catalog.drop_namespace(A, DropMode.FAIL, DropBehavior.RESTRICT)
    assert sorted(row["object_id"] for row in rows_of_manifest(root)) == ["new", "r", "u"]
    assert any(key.startswith("__manifest/_versions/") for key in lost)
    check_sound(root, mode, rows=3)


class Dark(WrappedStore):
    """Does not answer a commit, whether it landed or not, and cannot be asked."""

    def __init__(self, inner: Store, lands: bool) -> None:
        super().__init__(inner)
        self.lands = lands
        self.dark = False

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        self.dark = key.startswith("__manifest/_versions/")
        if self.lands or not self.dark:
            super().put(key, data, mode, durable)
        if self.dark:
            raise ServiceUnavailableError("no answer")

    def get(self, key: str) -> bytes:
        if self.dark:
            raise ServiceUnavailableError("no answer")
        return super().get(key)


def test_a_commit_that_landed_in_the_dark_is_done_or_unknown_and_its_files_are_kept(tmp_path: Path) -> None:
    root = str(tmp_path)
    prepared(root, "V2")
    with suppress(CommitStateUnknownError):
        operations(Dark(LocalStore(root), lands=True), root, "V2").create_namespace(NEW, CreateMode.CREATE, {})
    assert operations(LocalStore(root), root, "V2").describe_namespace(NEW) == Namespace(NEW)
    check_sound(root, "V2", rows=3)


def test_a_commit_that_may_have_landed_is_called_unknown_and_not_failed(tmp_path: Path) -> None:
    root = str(tmp_path)
    prepared(root, "V2")
    before = set((tmp_path / "__manifest" / "data").iterdir())
    with pytest.raises(CommitStateUnknownError, match="look before repeating"):
        operations(Dark(LocalStore(root), lands=False), root, "V2").create_namespace(NEW, CreateMode.CREATE, {})
    assert set((tmp_path / "__manifest" / "data").iterdir()) > before
    operations(LocalStore(root), root, "V2").create_namespace(NEW, CreateMode.CREATE, {})
    check_sound(root, "V2", rows=3)


@pytest.mark.parametrize(
    ("mode", "ask", "requests"),
    [
        ("V2", lambda it: it.find_table(T), 1),
        ("V2", lambda it: it.describe_namespace(A), 1),
        ("V2", lambda it: it.list_tables(A, None, 10), 1),
        ("V2", lambda it: it.list_namespaces(ROOT, None, 10), 1),
        ("compat", lambda it: it.find_table(T), 1),
        ("compat", lambda it: it.find_table(ObjectId(("r",))), 1),
    ],
)
def test_a_look_up_asks_the_storage_once_when_nothing_changed(
    tmp_path: Path, mode: str, ask: Callable[[Operations], Any], requests: int
) -> None:
    root = str(tmp_path)
    prepared(root, mode)
    store = CountingStore(PlainStore(LocalStore(root)))
    catalog = operations(store, root, mode)
    ask(catalog)
    store.reset()
    ask(catalog)
    assert store.counts.total() == requests, store.requests


@pytest.mark.parametrize(("branch", "writes"), [("local disk", {"fill": 1, "put": 1}), ("object store", {"put": 2})])
def test_a_commit_asks_the_storage_a_bounded_number_of_times(
    tmp_path: Path, branch: str, writes: dict[str, int]
) -> None:
    root = str(tmp_path)
    prepared(root, "V2")
    store = CountingStore(BRANCHES[branch](root))
    catalog = operations(store, root, "V2")
    catalog.create_namespace(ObjectId(("first",)), CreateMode.CREATE, {})
    store.reset()
    catalog.create_namespace(ObjectId(("second",)), CreateMode.CREATE, {})
    found = {verb: count for verb, count in store.counts.items() if verb in WRITES}
    assert found == writes, "a data file and a manifest"
    assert store.counts.total() <= 8, store.requests


def _fill(root: str, mode: str, limit: int, answers: Any) -> None:
    """A process that may not write a file larger than `limit`, as on a full disk."""
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    namespace.list_all_tables(api.ListTablesRequest())
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    codes: list[str] = []
    for operation, body in (
        ("create_namespace", ()),
        ("declare_table", ()),
        ("create_table", (ipc(ROWS),)),
        ("insert_into_table", (ipc(pa.table({"n": list(range(1000))})),)),
        ("create_table", (ipc(pa.table({"n": list(range(20000))})),)),
    ):
        name = "r" if operation == "insert_into_table" else f"new{len(codes)}"
        try:
            getattr(namespace, operation)({"id": [name]}, *body)
            codes.append("done")
        except LanceNamespaceError as error:
            codes.append(str(int(error.code)))
        except BaseException as error:
            codes.append(f"{type(error).__name__}: {error}")
    answers.put(codes)


@pytest.mark.xdist_group("disk")
@pytest.mark.parametrize("limit", [0, 300, 2000])
@pytest.mark.parametrize("mode", MODES)
def test_a_full_disk_is_a_named_error_and_nothing_is_lost(tmp_path: Path, mode: str, limit: int) -> None:
    root = str(tmp_path / "lake")
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    assert perform(namespace, call("create_table", "r", rows=3)) is None
    answers = PROCESSES.Queue()
    process = PROCESSES.Process(target=_fill, args=(root, mode, limit, answers))
    process.start()
    codes = answers.get(timeout=120)
    process.join(60)
    assert all(code in ("done", "0", "17", "18", "19") for code in codes), codes
    assert limit or codes[2] != "done"
    check_sound(root, mode, leaks=limit > 0)
    for number, code in enumerate(codes):
        if code != "done":
            assert perform(namespace, call("create_table", f"new{number}", rows=3)) is None
    check_sound(root, mode, leaks=limit > 0)


class DropsFirst(WrappedStore):
    """Right before the marker of a declared table is written, another writer drops that table; and its folder again,
    which the marker was to be in, if `twice`."""

    twice = False

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        if key.endswith("/.lance-reserved"):
            root = str(getattr(self.inner, "root", ""))
            assert perform(DirectoryNamespace(root=root), call("drop_table", "new")) is None
            if self.twice:
                raise InternalError(f"The storage failed at {key!r}: No such file or directory.")
        super().put(key, data, mode, durable)


@pytest.mark.parametrize("twice", [False, True])
def test_a_declared_table_that_is_dropped_at_once_does_not_come_back_as_a_folder(tmp_path: Path, twice: bool) -> None:
    root = str(tmp_path)
    prepared(root, "compat")
    store = DropsFirst(LocalStore(root))
    store.twice = twice
    operations(store, root, "compat").declare_table(NEW, None, {})
    assert DirectoryNamespace(root=root).list_tables(api.ListTablesRequest(id=[])).tables == ["r"]
    assert not (tmp_path / "new.lance" / ".lance-reserved").exists()
