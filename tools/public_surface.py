"""List everything that a user can call: Python names, routes with their fields, command line, SQL procedures.

python tools/public_surface.py > before.txt        (in the tree before a change)
python tools/public_surface.py --compare before.txt  (in the tree after it; exit 1 if something is lost)
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import headwater

PROJECT = Path(__file__).parents[1]


def surface() -> list[str]:
    """Return one line for each thing that a user can name, sorted."""
    return sorted({*_python(), *_routes(), *_command_line(), *_procedures()})


def _python() -> Iterator[str]:
    from headwater import catalog
    from headwater.catalog.table_parts import Branches, Indices, Tags
    from headwater.catalog.transactions import Batch

    for name in (*headwater.__all__, *catalog.__all__):
        yield f"python name {name}"
    stream = _remote_stream()
    kinds = (
        catalog.Catalog, catalog.CatalogStream, catalog.CatalogTable, stream, Batch, Tags, Branches,
        Indices, headwater.MetastoreNamespace, headwater.DirectoryNamespace,
    )  # fmt: skip
    for kind in kinds:
        for name in dir(kind):
            if not name.startswith("_"):
                yield from _member(kind, name)


def _remote_stream() -> Any:
    """Return the class of a stream table behind a server, which has moved."""
    client: Any = import_module("headwater.rest.client")
    return client.RemoteStream


def _member(kind: type, name: str) -> Iterator[str]:
    found = inspect.getattr_static(kind, name)
    yield f"python {kind.__name__}.{name}"
    if inspect.isfunction(found):
        for parameter in list(inspect.signature(found).parameters.values())[1:]:
            yield f"python {kind.__name__}.{name}({parameter.name})"


def _routes() -> Iterator[str]:
    from headwater.rest.openapi import openapi

    document = openapi()
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            route = f"route {verb.upper()} {path}"
            yield f"{route} {operation['operationId']}"
            for parameter in operation["parameters"]:
                yield f"{route} ?{parameter['name']}"
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                yield f"{route} takes {kind}"
                for field in content["schema"].get("properties", {}):
                    yield f"{route} field {field}"
            for status, response in operation["responses"].items():
                for kind in response.get("content", {}):
                    yield f"{route} answers {status} {kind}"


def _command_line() -> Iterator[str]:
    from headwater.cli.grammar import COMMANDS

    for name, command in COMMANDS.items():
        yield f"cli {name}"
        yield f"cli {name} prints {command.json}"
        for argument in command.args:
            yield f"cli {name} {' '.join(argument.names)}"


def _procedures() -> Iterator[str]:
    from headwater.spark.protocol import JobName

    yield from (f"procedure {name}" for name in get_args(JobName))


def main() -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--compare", help="a list of an earlier tree")
    earlier = given.parse_args().compare
    now = surface()
    if earlier is None:
        print("\n".join(now))
        return 0
    before = Path(earlier).read_text().splitlines()
    lost, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    for sign, lines in (("-", lost), ("+", new)):
        for line in lines:
            print(sign, line)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
