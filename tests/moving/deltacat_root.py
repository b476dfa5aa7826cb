"""How `deltacat_root.tar.xz` was made, and how tests unpack it.

The archive is a root that the released DeltaCAT wrote; it is committed because DeltaCAT needs Ray and minutes. To make
it again, in an environment of its own (Python 3.11, `deltacat==2.0.0.post4` with `numpy<2`):

    python tests/moving/deltacat_root.py /srv/lake
    tar -C /srv/lake -cJf tests/moving/deltacat_root.tar.xz --exclude compute .
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa

ARCHIVE = Path(__file__).with_name("deltacat_root.tar.xz")


def unpack(folder: Path) -> Path:
    """The root, in a new folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main(root: str) -> None:
    import deltacat as dc  # type: ignore[import-not-found,unused-ignore]

    def put(name: str, namespace: str, mode: str, **columns: Any) -> None:
        mode = dc.TableWriteMode(mode)
        dc.write_to_table(pa.table(columns), name, namespace=namespace, mode=mode, content_type=dc.ContentType.PARQUET)

    dc.init_local(root)
    dc.create_namespace("raw")
    dc.create_namespace("shop", properties={"owner": "me"})
    put("events", "raw", "create", n=[1, 2, 3], s=["a", "b", None])
    put("events", "raw", "add", n=[4], s=["d"])
    id, value = dc.Field.of(pa.field("id", pa.int64()), is_merge_key=True), dc.Field.of(pa.field("v", pa.string()))
    evolving = {dc.TableProperty.SCHEMA_EVOLUTION_MODE: dc.SchemaEvolutionMode.AUTO}
    schema = dc.Schema.of([id, value])
    dc.create_table(
        "orders", namespace="shop", schema=schema, table_properties=evolving, table_description="of the shop"
    )
    put("orders", "shop", "merge", id=[1, 2, 3], v=["a", "b", "c"])
    put("orders", "shop", "merge", id=[2, 4], v=["B", "d"])
    put("orders", "shop", "delete", id=[3])
    put("orders", "shop", "merge", id=[5], v=["e"], extra=[1.5])
    put("replaced", "raw", "create", a=[1])
    put("replaced", "raw", "replace", a=[2])
    put("old", "raw", "create", a=[1])
    dc.rename_table("old", "new", namespace="raw")
    put("gone", "raw", "create", a=[1])
    dc.drop_table("gone", namespace="raw")
    try:  # a transaction that failed, and left revisions that do not count
        dc.write_to_table(
            pa.table({"a": [1]}),
            "failed",
            namespace="raw",
            mode=dc.TableWriteMode.CREATE,
            content_type=dc.ContentType.CSV,
        )
    except Exception as error:
        print("as it should:", error)
    put("versioned", "raw", "create", a=[1])
    second = dc.Schema.of([dc.Field.of(pa.field("b", pa.string()))])
    dc.create_table("versioned", namespace="raw", table_version="2", schema=second)
    dc.write_to_table(pa.table({"b": ["q"]}), "versioned", namespace="raw", table_version="2")
    dc.write_to_table(pa.table({"a": [1]}), "bare", namespace="raw", mode=dc.TableWriteMode.CREATE, schema=None)
    with dc.transaction(commit_message="two at once"):
        put("events", "raw", "add", n=[7], s=["z"])
        put("events", "raw", "add", n=[8], s=["z"])


if __name__ == "__main__":
    main(sys.argv[1])
