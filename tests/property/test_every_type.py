"""Every Arrow type, every door: what can be written in one way can be written in all, whatever the number of rows."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pyarrow.types as kinds
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headwater import Catalog, DirectoryNamespace
from headwater.cli import main
from headwater.names import ObjectId
from headwater.rest.server import start_in_thread
from headwater.tables.handle import TableHandle
from headwater.tables.write.arrow import to_stream
from headwater.tables.write.data_files import write
from tests.property.every_type import TYPES, choices, table

ID = "t"
Write = Callable[[str, pa.Table], None]
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
KEYS: dict[str, Any] = {"on": ["id"], "when_matched_update_all": True, "when_not_matched_insert_all": True}


def by_catalog(catalog: Catalog) -> Write:
    def write(verb: str, rows: pa.Table) -> None:
        if verb == "create":
            catalog.create_table(ID, rows, mode="overwrite")
        elif verb == "append":
            catalog[ID].append(rows)
        else:
            catalog[ID].upsert(rows, on="id")

    return write


def from_a_stream(catalog: Catalog) -> Write:
    """Rows that the application itself read from an IPC stream lie where that put them."""
    write = by_catalog(catalog)
    return lambda verb, rows: write(verb, pa.ipc.open_stream(to_stream(rows.to_reader())).read_all())


def by_namespace(namespace: Any) -> Write:
    def write(verb: str, rows: pa.Table) -> None:
        body = to_stream(rows.to_reader())
        if verb == "create":
            namespace.create_table(api.CreateTableRequest(id=[ID], mode="overwrite"), body)
        elif verb == "append":
            namespace.insert_into_table(api.InsertIntoTableRequest(id=[ID]), body)
        else:
            namespace.merge_insert_into_table(api.MergeInsertIntoTableRequest(id=[ID], **KEYS), body)

    return write


def by_command_line(root: str) -> Write:
    verbs = {
        "create": ["create", root, ID, "--mode", "overwrite"],
        "append": ["insert", root, ID],
        "merge": ["upsert", root, ID, "--on", "id"],
    }

    def write(verb: str, rows: pa.Table) -> None:
        file = Path(root).with_suffix(".arrow")
        file.write_bytes(to_stream(rows.to_reader()))
        with redirect_stdout(io.StringIO()):
            assert main([*verbs[verb][:3], str(file), *verbs[verb][3:]]) == 0

    return write


@contextmanager
def door(name: str, root: str) -> Iterator[Write]:
    if name == "REST":
        with start_in_thread(DirectoryNamespace(root=root)) as server:
            yield by_catalog(Catalog(server.url))
    elif name == "command line":
        yield by_command_line(root)
    elif name == "namespace":
        yield by_namespace(DirectoryNamespace(root=root))
    else:
        yield (by_catalog if name == "catalog" else from_a_stream)(Catalog(root))


@pytest.mark.parametrize("name", ["catalog", "catalog, from a stream", "namespace", "REST", "command line"])
def test_rows_of_every_type_come_back_as_they_were_written(name: str, tmp_path: Path) -> None:
    root = str(tmp_path / "lake")

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
    @given(choices(), st.tuples(*(st.integers(0, 40) for _ in range(3))))
    def check(chosen: list[int], counts: tuple[int, int, int]) -> None:
        shutil.rmtree(root, ignore_errors=True)
        first, second, third = counts
        parts = [table(chosen, 0, first), table(chosen, first, second), table(chosen, first, second + third)]
        with door(name, root) as write:
            for verb, rows in zip(("create", "append", "merge"), parts, strict=True):
                write(verb, rows)
        found = Catalog(root)[ID].to_arrow().sort_by("id")
        wanted = table(chosen, 0, first + second + third)
        assert found.column_names == wanted.column_names
        for column in wanted.column_names:
            assert found[column].to_pylist() == wanted[column].to_pylist(), (column, wanted.schema.field(column).type)

    check()


@pytest.mark.parametrize("count", [1, 7, 13])
def test_what_spark_sends_to_an_executor_is_written_whatever_the_number_of_rows(count: int, tmp_path: Path) -> None:
    """The executor's door without a Spark session: batches of a socket's stream become fragments."""
    chosen = [index for index, kind in enumerate(TYPES) if not kinds.is_null(kind)]
    made = Catalog(str(tmp_path / "lake")).create_table(ID, table(chosen, 0, 0))
    handle = TableHandle(ObjectId((ID,)), str(made.dataset().uri))
    fragments = write(handle, pa.ipc.open_stream(to_stream(table(chosen, 1, count).to_reader())))
    assert sum(fragment["physical_rows"] for fragment in fragments) == count


@pytest.mark.parametrize("count", [1, 7, 10, 13])
def test_every_type_at_once_comes_over_the_wire(count: int, tmp_path: Path) -> None:
    """The counts for which an IPC stream leaves wide values where Lance cannot read them."""
    namespace = DirectoryNamespace(root=str(tmp_path))
    for verb in ("create", "append", "merge"):
        by_namespace(namespace)(verb, table(list(range(len(TYPES))), 0 if verb == "create" else count, count))
    assert Catalog(namespace)[ID].count() == 2 * count
