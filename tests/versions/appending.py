"""A writer that says which appends were acknowledged, a line of JSON for each."""

from __future__ import annotations

import json
from pathlib import Path

from headwater.namespace.directory import DirectoryNamespace
from tests.versions.samples import append


def write(said: Path, root: Path, table: str, first: int, count: int) -> None:
    catalog = DirectoryNamespace(root=str(root))
    with said.open("a", buffering=1) as file:
        for value in range(first, first + count):
            line: dict[str, object] = {"value": value}
            try:
                append(catalog, table, value)
            except OSError as error:
                line["error"] = str(error)
            file.write(json.dumps(line) + "\n")
