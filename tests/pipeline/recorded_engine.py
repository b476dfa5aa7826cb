"""Stands in for the process of Debezium's engine: gives recorded batches after the offset that it is ordered to.

`recorded_engine.py <file of batches> <file of acknowledgements> <dies after so many batches of one life, or 0>`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(batches: list[list[list[str | None]]], acknowledged: Path, dies_after: int) -> None:
    orders = json.loads(sys.stdin.readline())
    begin = 0 if orders["offset"] is None else int(orders["offset"][1]["lsn"])
    with Path(orders["offset_file"]).with_name("log").open("a") as log:
        log.write(json.dumps({"begin": begin, "history": orders["history"]}) + "\n")
    write({"started": 1})
    for given, records in enumerate(batches[begin:], 1):
        at = begin + given
        offset = [{"server": "headwater"}, {"lsn": at}]
        write({"batch": {"records": records, "offset": offset, "lines": [f"ddl {at}"], "caught_up": False}})
        if given == dies_after or not sys.stdin.readline():
            sys.exit(3)
        with acknowledged.open("a") as file:
            file.write(f"{at}\n")
    write({"caught_up": True})
    sys.stdin.read()


def write(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), int(sys.argv[3]))
