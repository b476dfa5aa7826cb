"""docs/formats/metastore.md cannot lie: its example is made anew and compared, its tables with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgpack  # type: ignore[import-untyped]

from headwater.clock import SeededClock
from headwater.metastore import Metastore
from headwater.metastore.records import disk_records as records
from headwater.metastore.records import layout

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "metastore.md"
N, T = "795b929e-9a9a-40fd-aa7b-5bf55eb561a4", "9b08923d-10c6-4fd9-94b2-b8fda02f34a6"


def example_listing(root: str) -> tuple[str, str]:
    """The files of the page's example, with its abbreviations, and the content of the namespace's first revision."""
    store = Metastore(root, clock=SeededClock(3, start_ms=1737070822188), author="ann")
    with store.transaction("first") as tx:
        tx.create_namespace(["MyNamespace"], {"owner": "ml"})
        tx.create_table(["MyNamespace", "MyTable"])
        tx.append_delta(["MyNamespace", "MyTable"], [("part-0.parquet", 3, 1024)])
    with store.transaction("rename") as tx:
        tx.rename(["MyNamespace"], ["prod"])
    files = sorted(path for path in Path(root).rglob("*") if path.is_file())
    lines = [f"{path.stat().st_size:4}  {short(path.relative_to(root).as_posix())}" for path in files]
    (first,) = Path(root, N, "rev").glob("*_create_*")
    body = json.dumps(msgpack.unpackb(first.read_bytes()), indent=1)
    return "\n".join(line for line in lines if ".headwater/" not in line), body


def short(key: str) -> str:
    return re.sub(r"0{19}(\d)_", r"\1_", key.replace(N, "N").replace(T, "T"))


def test_the_example_of_the_format_page_is_what_the_code_writes(tmp_path: Path) -> None:
    listing, body = example_listing(str(tmp_path))
    page = PAGE.read_text()
    assert listing in page
    assert body in page


def test_the_format_page_names_every_key_of_a_revision_and_every_private_file() -> None:
    page = PAGE.read_text()
    for key in {*records.Body.__struct_fields__, *records.DeltaBody.__struct_fields__}:
        assert f"`{key}`" in page, key
    for text in (layout.FORMAT_KEY, layout.CHECKPOINTS, ".headwater/slots/", ".headwater/segments/", "`HWMS`"):
        assert text in page, text
    for folder in (layout.LAYERS, layout.SNAPSHOTS, layout.PENDING_DELETES, layout.SNAPSHOT_RECORDS):
        assert f"{folder}/" in page, folder
    sealed = (records.SLOT, records.COLLECTED, records.SEGMENT, records.CATALOG, records.PINNED)
    for kind in (*sealed, records.PENDING_MARK, records.LAYERED, records.LAYER):
        assert f"| `{kind.decode()}` |" in page, kind
