"""Data from outside is decoded in `headwater/decoding` alone, where it is bounded and validated whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import headwater

ROOT = Path(headwater.__file__).parent
DOOR = "decoding"
READERS = {
    "ipc": ("open_stream", "open_file", "read_message", "read_record_batch", "read_schema", "read_tensor",
            "MessageReader", "RecordBatchStreamReader", "RecordBatchFileReader"),
    "parquet": ("ParquetFile", "ParquetDataset", "read_table", "read_metadata", "read_schema", "read_pandas"),
    "csv": ("read_csv", "open_csv", "CSVStreamingReader"),
    "json": ("read_json", "open_json"),
    "feather": ("read_table", "read_feather", "FeatherDataset"),
    "orc": ("ORCFile", "read_table"),
    "dataset": ("dataset", "FileSystemDataset", "make_fragment", "parquet_dataset", "ParquetFileFormat"),
}  # fmt: skip
TRUSTED = {
    "streams/log/stored_events.py": "the change log's own Parquet files",
    "streams/fold/tombstones.py": "the change log's own files of deleted keys",
    "streams/fold/events.py": "sequences in the properties of the log's own deltas",
    "streams/definition.py": "the schema in a table's own record in the metastore",
    "types.py": "a batch that this process has just written",
    "workers/channel.py": "rows from a worker of this process",
    "spark/worker.py": "rows from the Spark catalog of the same session, through its own socket",
    "streams/sources/intake.py": "rows that an executor of the same job has packed",
}
"""Readers of what Headwater itself has written, and of what."""


def readers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each use of a reader of pyarrow, however its module was imported."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (each.asname or each.name.partition(".")[0]): each.name if each.asname else "" for each in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            names |= {(each.asname or each.name): f"{node.module}.{each.name}" for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            first, dot, rest = _dotted(node).partition(".")
            full = f"{names.get(first) or first}{dot}{rest}".split(".")
            if full[0] == "pyarrow" and len(full) > 2 and full[-1] in READERS.get(full[-2], ()):
                yield node.lineno, ".".join(full)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def test_only_the_door_calls_readers_of_formats() -> None:
    found: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        if not name.startswith(f"{DOOR}/") and "pyarrow" in text:
            found |= {name: uses} if (uses := list(readers(ast.parse(text)))) else {}
    assert {name: uses for name, uses in found.items() if name not in TRUSTED} == {}
    assert set(TRUSTED) - set(found) == set(), "no longer readers: take them off the list"


def test_a_reader_is_seen_however_it_is_imported() -> None:
    for text in (
        "import pyarrow as pa\npa.ipc.open_stream(x)",
        "import pyarrow.parquet as pq\npq.read_table(x)",
        "import pyarrow\npyarrow.csv.read_csv(x)",
        "from pyarrow.feather import read_table\nread_table(x)",
        "from pyarrow import ipc as i\ni.open_file(x)",
        "import pyarrow.dataset\npyarrow.dataset.dataset(x)",
    ):
        assert list(readers(ast.parse(text))), text
    assert not list(readers(ast.parse("import json\njson.loads(x)\nimport csv\ncsv.reader(x)\nstream.open_stream(x)")))
