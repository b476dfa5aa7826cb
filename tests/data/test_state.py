"""Tables in a bad state: a named error, nothing lost, no path told. And conflicts between writers."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from lance_namespace import (
    CountTableRowsRequest,
    DeleteFromTableRequest,
    GetTableStatsRequest,
    InsertIntoTableRequest,
    ListTableTagsRequest,
)

from headwater.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
    TableSchemaValidationError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from headwater.names import ObjectId
from headwater.namespace import data
from headwater.tables.handle import TableHandle
from headwater.tables.translate import clean, kind_of
from tests.children import PROCESSES
from tests.data.samples import ID, ROWS, body, query, rows, snapshot


def nothing(uri: Path) -> None:
    shutil.rmtree(uri)


def an_empty_directory(uri: Path) -> None:
    shutil.rmtree(uri)
    uri.mkdir()


def a_plain_file(uri: Path) -> None:
    shutil.rmtree(uri)
    uri.write_text("not a table")


def a_foreign_directory(uri: Path) -> None:
    shutil.rmtree(uri)
    (uri / "_delta_log").mkdir(parents=True)
    (uri / "part-0.parquet").write_bytes(b"PAR1")


def a_cut_manifest(uri: Path) -> None:
    manifest = next((uri / "_versions").glob("*.manifest"))
    manifest.write_bytes(manifest.read_bytes()[:-20])


def a_manifest_of_junk(uri: Path) -> None:
    next((uri / "_versions").glob("*.manifest")).write_bytes(b"\x07" * 500)


def an_empty_manifest(uri: Path) -> None:
    next((uri / "_versions").glob("*.manifest")).write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [
        nothing,
        an_empty_directory,
        a_plain_file,
        a_foreign_directory,
        a_cut_manifest,
        a_manifest_of_junk,
        an_empty_manifest,
    ],
)
def test_a_place_without_a_readable_table_is_an_invalid_table_state(
    table: TableHandle, damage: Callable[[Path], None]
) -> None:
    damage(Path(table.uri))
    attempts: list[Callable[[], object]] = [
        lambda: data.count_table_rows(table, CountTableRowsRequest(id=ID)),
        lambda: data.insert_into_table(table, InsertIntoTableRequest(id=ID), body(rows(count=1))),
        lambda: data.delete_from_table(table, DeleteFromTableRequest(id=ID, predicate="true")),
        lambda: data.query_table(table, query()),
        lambda: data.get_table_stats(table, GetTableStatsRequest(id=ID)),
        lambda: data.list_table_tags(table, ListTableTagsRequest(id=ID)),
        lambda: data.describe_data(table),
    ]
    for attempt in attempts[:1] if damage is a_plain_file else attempts:  # pylance tries that one for seconds
        with pytest.raises(InvalidTableStateError) as caught:
            attempt()
        assert str(Path(table.uri).parent).lstrip("/") not in str(caught.value)
        assert ".rs" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"\x07" * 300], ids=["gone", "empty", "junk"])
def test_a_damaged_data_file_is_a_named_error_when_it_is_read(table: TableHandle, content: bytes | None) -> None:
    for file in (Path(table.uri) / "data").iterdir():
        file.unlink()
        if content is not None:
            file.write_bytes(content)
    with pytest.raises((InvalidTableStateError, InternalError)) as caught:
        data.query_table(table, query(k=0))
    assert str(Path(table.uri).parent).lstrip("/") not in str(caught.value)


def insert_on_a_full_disk(uri: str) -> None:
    """Insert more than a file may hold here; the exit status is 7 if that is an internal error without the path."""
    sent = body(rows(1000, 20000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        data.insert_into_table(TableHandle(ObjectId(("t",)), uri), InsertIntoTableRequest(id=ID), sent)
    except InternalError as error:
        sys.exit(7 if uri.lstrip("/") not in str(error) else 8)


def test_a_write_that_the_disk_refuses_is_an_internal_error_and_changes_nothing(table: TableHandle) -> None:
    before = snapshot(table.uri)
    process = PROCESSES.Process(target=insert_on_a_full_disk, args=(table.uri,))
    process.start()
    process.join(60)
    assert process.exitcode == 7
    assert snapshot(table.uri) == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere, so a refused permission cannot be made")
def test_a_place_that_may_not_be_written_is_permission_denied(table: TableHandle) -> None:
    versions = Path(table.uri) / "_versions"
    versions.chmod(0o555)
    try:
        with pytest.raises(PermissionDeniedError):
            data.delete_from_table(table, DeleteFromTableRequest(id=ID, predicate="id = 1"))
    finally:
        versions.chmod(0o755)
    assert snapshot(table.uri)[1] == ROWS


class Stale(TableHandle):
    """A handle whose dataset another writer has overtaken by the time it is used."""

    def open(
        self, version: int | str | None = None, branch: str | None = None, scattered: bool = False
    ) -> lance.LanceDataset:
        dataset = super().open(version, branch, scattered)
        lance.dataset(self.uri).insert(rows(0, 3), mode="overwrite")
        return dataset


def test_a_writer_that_was_overtaken_is_told_so_with_code_14(table: TableHandle) -> None:
    stale = Stale(table.id, table.uri)
    with pytest.raises(ConcurrentModificationError):
        data.delete_from_table(stale, DeleteFromTableRequest(id=ID, predicate="id = 1"))
    assert snapshot(table.uri)[1] == 3


def test_appends_that_race_all_land(table: TableHandle) -> None:
    first, second = table.open(), table.open()
    first.insert(rows(ROWS, 1))
    second.insert(rows(ROWS + 1, 1))
    assert snapshot(table.uri)[1] == ROWS + 2


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (OSError("IO: No space left on device (os error 28)"), InternalError),
        (OSError("LanceError(IO): Permission denied (os error 13)"), PermissionDeniedError),
        (OSError("Retryable commit conflict for version 2: preempted"), ConcurrentModificationError),
        (ValueError("Ref not found error: tag x does not exist"), TableTagNotFoundError),
        (ValueError("Ref conflict error: tag x already exists"), TableTagAlreadyExistsError),
        (ValueError("Not found: a/t.lance/tree/x/_versions"), TableBranchNotFoundError),
        (OSError("Dataset at path a/_versions/9.manifest was not found: x"), TableVersionNotFoundError),
        (RuntimeError("Lance index not found: name=x"), TableIndexNotFoundError),
        (RuntimeError("LanceError(Index): Index name 'x' already exists"), TableIndexAlreadyExistsError),
        (OSError("Append with different schema: x"), TableSchemaValidationError),
        (OSError("Invalid user input: Schema error: No field named x."), TableColumnNotFoundError),
        (OSError("Invalid user input: Error parsing statement"), InvalidInputError),
        (OSError("LanceError(Arrow): Compute error: concat requires input of at least one array"), InvalidInputError),
        (OSError("Query Execution error: Execution error: Cannot access field at argument 1"), InvalidInputError),
        (OSError("Execution error: LanceError(IO): Generic S3 error: the request failed"), InternalError),
        (NotImplementedError("anything"), UnsupportedOperationError),
        (OverflowError("int too big to convert"), InvalidInputError),
        (MemoryError(), InternalError),
        (RuntimeError("who knows"), InternalError),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_pylance_raises_has_its_code(raised: Exception, kind: type[LanceNamespaceError]) -> None:
    assert kind_of(raised) is kind


def test_a_message_tells_no_path_no_source_line_and_no_secret() -> None:
    table = TableHandle(ObjectId(("t",)), "file:///srv/lake/t.lance", {"aws_secret_access_key": "hunter2!"})
    text = "Not found: srv/lake/t.lance/x at file:///srv/lake/t.lance near /srv/lake/u hunter2!, /home/a/b.rs:1:2"
    shown = clean(table, text)
    assert shown == "Not found: <table>/x at <table> near <catalog>/u ***."
