"""A writer that says which appends were acknowledged: `python -m tests.versions.appending ROOT TABLE FIRST N`."""

from __future__ import annotations

import json
import sys

from headwater.namespace.directory import DirectoryNamespace
from tests.versions.samples import append

if __name__ == "__main__":
    root, table, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    catalog = DirectoryNamespace(root=root)
    for value in range(first, first + count):
        try:
            append(catalog, table, value)
            print(json.dumps({"value": value}), flush=True)
        except OSError as error:
            print(json.dumps({"value": value, "error": str(error)}), flush=True)
