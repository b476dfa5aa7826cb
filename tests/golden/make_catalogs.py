"""Makes the golden catalogs: one of each kind that release 0.1.0 writes, and unpacks them for tests.

Each later release must read them. So they are made once for a release and never again: a format that changes gets a
new archive beside these. `python -m tests.golden.make_catalogs FOLDER` makes the archives in a new folder.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from headwater import Catalog

FOLDER = Path(__file__).parent
KEYS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("seq", pa.int64())]
ORDERS = pa.schema([*KEYS, ("item", pa.string())])
WIDER = pa.schema([*KEYS, ("price", pa.float64())])
DIRECTORY = {
    "v1": {"impl": "dir", "manifest_enabled": "false"},
    "v2": {"impl": "dir", "dir_listing_enabled": "false"},
    "compat": {"impl": "dir"},
}
"""The properties of each kind of directory catalog."""


def unpack(name: str, folder: Path) -> Path:
    """Unpack a golden catalog of release 0.1.0 to a folder, and return its root."""
    with tarfile.open(FOLDER / f"{name}-0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def make_metastore(root: Path) -> None:
    """Make a metastore with tables, stream tables, table versions, tags, aliases, snapshots and a dropped table.

    It has no branch: Lance records the absolute path of the dataset in the manifests of a branch, so none can move.
    """
    with Catalog(str(root)) as catalog:
        catalog.create_namespace("shop", properties={"owner": "ann"})
        _make_table(catalog)
        _make_streams(catalog)
        with catalog.transaction("two tables at once") as tx:
            tx.create_table("shop.days", [{"day": "Monday"}])
            tx.create_table("shop.hours", [{"hour": 1}])
        catalog.drop_table("shop.hours")
        catalog.alias("shop.days", "weekdays")
        catalog.snapshot("released")
        catalog["shop.orders"].upsert([{"id": 9, "seq": 9, "item": "after the snapshot"}])
        catalog.undo(list(catalog.log())[-1])


def _make_table(catalog: Catalog) -> None:
    users = catalog.create_table("shop.users", [{"id": 1, "name": "Ada"}])
    users.append([{"id": 2, "name": "Grace"}])
    users.tags["both"] = 2
    users.delete("id = 1")
    vectors = catalog.create_table("shop.vectors", [{"id": 1, "v": [1.0, 0.0]}])
    vectors.table_versions.create("2", [{"id": 1, "v": [0.5, 0.5, 0.5]}])
    vectors.table_versions.activate("2")


def _make_streams(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("shop.orders", ORDERS, "id", "seq", properties={"history": "scd2"})
    orders.upsert([{"id": 1, "seq": 1, "item": "pen"}, {"id": 2, "seq": 1, "item": "ink"}], token="t1", source="till")
    orders.publish()
    orders.upsert([{"id": 1, "seq": 2, "item": "pencil"}])
    orders.ingest([{"id": 3, "seq": "no number", "item": "bad"}])
    orders.publish()
    orders.delete([{"id": 2, "seq": 3}])
    assert orders.changes(reader="billing").num_rows
    orders.commit_reader("billing")
    wider = orders.table_versions.create("2", schema=WIDER, keys="id", sequence="seq")
    wider.upsert([{"id": 1, "seq": 1, "price": 2.5}])
    clicks = catalog.create_stream_table("shop.clicks", pa.schema([("page", pa.string())]))
    clicks.append([{"page": "a"}, {"page": "b"}])


def make_directory(kind: str) -> Callable[[Path], None]:
    """Return the maker of a directory catalog."""

    def make(root: Path) -> None:
        with Catalog(str(root), **DIRECTORY[kind]) as catalog:
            name = "users" if kind == "v1" else "shop.users"
            users = catalog.create_table(name, [{"id": 1, "name": "Ada"}])
            users.append([{"id": 2, "name": "Grace"}])
            users.tags["first"] = 1
            users.delete("id = 1")

    return make


MAKERS = {"metastore": make_metastore, **{kind: make_directory(kind) for kind in DIRECTORY}}


def main(folder: str) -> None:
    for name, make in MAKERS.items():
        root = Path(folder, name)
        make(root)
        with tarfile.open(Path(folder, f"{name}-0.1.0.tar.xz"), "w:xz") as archive:
            archive.add(root, name, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(*sys.argv[1:])
