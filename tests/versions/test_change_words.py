"""The log says what a Lance client did to a table, read from the transaction inside the manifest."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headwater import Catalog
from headwater.cli.main import main
from headwater.lance_manifest import change_made
from headwater.rest.server import start_in_thread

ROWS = pa.table({"id": [1, 2, 3], "mail": ["a", "b", "c"]})


def test_each_version_is_told_by_the_change_that_made_it(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_table("prod.users", ROWS)
    table.append(pa.table({"id": [4], "mail": ["d"]}))
    table.delete("id = 2")
    table.update({"mail": "'z'"}, where="id = 1")
    table.upsert(pa.table({"id": [1, 9], "mail": ["m", "n"]}), on="id")
    table.create_index("id", "BTREE")
    assert [entry.message for entry in catalog.log()][1:] == [
        "create table prod.users",
        "append 1 row to prod.users (version 2)",
        "delete 1 row from prod.users where id = 2 (version 3)",
        "change 1 row of prod.users (version 4)",
        "change 2 rows of prod.users (1 row more) (version 5)",
        "create index id_idx of prod.users (version 6)",
    ]


@pytest.mark.parametrize("kind", [{}, {"impl": "dir", "table_version_management": "true"}])
def test_the_list_of_versions_says_what_each_changed_and_no_old_name_or_value(
    tmp_path: Path, kind: dict[str, str]
) -> None:
    catalog = Catalog(str(tmp_path / "lake"), **kind)
    table = catalog.create_table("prod.users", ROWS)
    table.append(pa.table({"id": [4], "mail": ["d"]}))
    table.delete("mail = 'a'")
    table.create_index("id", "BTREE")
    catalog.rename_table("prod.users", "prod.people")
    told = ["create with 3 rows", "append 1 row", "delete 1 row", "create index id_idx"]
    assert [version.change for version in catalog["prod.people"].versions()] == told
    server = start_in_thread(catalog.namespace)
    try:
        assert [version.change for version in Catalog(server.url)["prod.people"].versions()] == told
        assert [line["change"] for line in lines("versions", server.url, "prod.people")] == told
    finally:
        server.stop()
    assert [line["change"] for line in lines("versions", str(tmp_path / "lake"), "prod.people")] == told


def lines(*arguments: str) -> list[dict[str, Any]]:
    with redirect_stdout(io.StringIO()) as out:
        assert main([*arguments, "--json"]) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_every_operation_of_pylance_has_its_words(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, str(tmp_path / "t"))
    dataset.add_columns({"more": "id + 1"})
    dataset.drop_columns(["more"])
    dataset.delete(f"mail = '{'x' * 200}' or id = 1")
    dataset.optimize.compact_files()
    dataset.checkout_version(1).restore()
    lance.write_dataset(ROWS, str(tmp_path / "t"), mode="overwrite")
    files = sorted((tmp_path / "t" / "_versions").glob("*.manifest"), reverse=True)
    manifests = [file.read_bytes() for file in files]
    told = [change_made(data, "t", before)[1] for data, before in zip(manifests, [None, *manifests], strict=False)]
    assert [change_made(data, "t")[1] for data in manifests[1:4]] == [
        "change columns of t",
        "change columns of t",
        f"delete rows from t where mail = '{'x' * 72}...",
    ]
    assert told == [
        "create t with 3 rows",
        "add column more to t",
        "drop column more from t",
        f"delete 1 row from t where mail = '{'x' * 72}...",
        "reserve fragments of t",
        "compact t",
        "restore an earlier version of t",
        "overwrite t with 3 rows",
    ]


@pytest.mark.parametrize("cut", [0, 1, 16, 40])
def test_a_damaged_manifest_has_no_words(tmp_path: Path, cut: int) -> None:
    lance.write_dataset(ROWS, str(tmp_path / "t"))
    (file,) = (tmp_path / "t" / "_versions").glob("*.manifest")
    data = file.read_bytes()
    assert change_made(data[:cut], "t") == (None, None)
    assert change_made(data[:4] + bytes(len(data) - 20) + data[-16:], "t") == (None, None)
