"""The walks of docs/architecture.md are what happens: each hop is called, one after the other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from lance_namespace import CreateTableRequest

from headwater import Catalog, DirectoryNamespace
from headwater.metastore import Metastore
from headwater.namespace.metastore import MetastoreNamespace
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.rest.server import start_in_thread
from headwater.tables.write.arrow import to_stream
from tests.unit.test_walks import HOP, PROJECT, walks
from tests.versions.samples import call, make, stage

ROWS = pa.table({"a": [1]})


@contextmanager
def followed() -> Iterator[list[tuple[str, str]]]:
    """Every call of a function of the package in any thread that begins meanwhile: its file, and its name."""
    seen: list[tuple[str, str]] = []
    package = f"{PROJECT}/headwater/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(package):
            seen.append((file.removeprefix(f"{PROJECT}/"), frame.f_code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def hops(title: str) -> list[tuple[str, str]]:
    found = [HOP.match(line) for line in walks()[title]]
    return [(hop[1], hop[2]) for hop in found if hop is not None]


def assert_walked(seen: list[tuple[str, str]], title: str, reached: int | None = None) -> None:
    """The hops (the first of them, so many) are among the calls, in their order."""
    at = 0
    for file, name in hops(title)[:reached]:
        places = [
            place
            for place, call in enumerate(seen[at:], at)
            if call[0] == file and (call[1] == name or call[1].endswith(f".{name}"))
        ]
        assert places, f"{title}: {name} of {file} is not called after the hop before it"
        at = places[0]


def managed(tmp_path: Path) -> DirectoryNamespace:
    return DirectoryNamespace(root=str(tmp_path), table_version_management="true")


def test_a_table_is_created_as_its_walk_says(tmp_path: Path) -> None:
    """Where versions are records, the last hop is called on a thread of pylance's, which nobody can follow."""
    kinds = ((DirectoryNamespace, 6), (MetastoreNamespace, 5))
    for kind, reached in kinds:
        catalog = kind(root=f"{tmp_path}/{kind.__name__}")
        with followed() as seen:
            catalog.create_table(CreateTableRequest(id=["t"]), to_stream(ROWS.to_reader()))
        assert_walked(seen, "Create a table", reached)


def test_a_managed_commit_goes_as_its_walk_says(tmp_path: Path) -> None:
    catalog = managed(tmp_path)
    make(catalog)
    request = stage(catalog, "t", 2)
    with followed() as seen:
        call(catalog, "create_table_version", **request)
    assert_walked(seen, "A managed commit")


def test_a_describe_over_rest_goes_as_its_walk_says(tmp_path: Path) -> None:
    catalog = managed(tmp_path)
    Catalog(catalog).create_table("t", ROWS)
    with followed() as seen:
        server = start_in_thread(catalog)
        Catalog(server.url)["t"].describe()
        server.stop()
    assert_walked(seen, "Describe over REST")


def test_a_delta_is_committed_as_its_walk_says(tmp_path: Path) -> None:
    metastore = Metastore(tmp_path / "lake")
    with metastore.transaction() as tx:
        tx.create_table(("t",), formats=("delta",))
    with followed() as seen, metastore.transaction() as tx:
        tx.append_delta(("t",), [])
    assert_walked(seen, "A delta commit")


def test_a_publish_and_an_undo_go_as_their_walks_say(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    stream = catalog.create_stream_table("t", ROWS.schema, keys=["a"])
    stream.upsert(ROWS)
    landed = list(catalog.log())[-1]
    with followed() as seen:
        stream.publish()
    assert_walked(seen, "A publish")
    with followed() as seen:
        catalog.undo(landed)
    assert_walked(seen, "An undo, by whatever face")


def test_a_pipeline_runs_as_its_walk_says(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "pipeline.toml").write_text(
        '[pipeline]\nname = "walk"\ncatalog = "./lake"\nengine = "embedded"\n'
        '[[source]]\nname = "files"\npath = "*.jsonl"\ninto = "t"\n'
        '[table.t]\nkeys = ["a"]\n[publish]\ntables = ["t"]\n'
    )
    with followed() as seen:
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
    assert_walked(seen, "A pipeline run")
