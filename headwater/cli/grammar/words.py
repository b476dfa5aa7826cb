"""The grammar of the command line: verbs in groups, with their arguments. It opens nothing.

grammar ── parsing: line -> verb, catalog, arguments ── the verb's function, imported when it is run
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field
from typing import Any

GROUPS = {
    "look": "see what is there",
    "change": "change tables and names",
    "time": "go back and forth (metastore catalogs)",
    "pipeline": "feed and publish stream tables",
    "run": "set up, serve and keep house",
    "protocol": "call one operation of the Lance protocol",
}
FORMATS = ("table", "jsonl", "csv", "arrow", "parquet")


@dataclass(frozen=True)
class Arg:
    """One argument of a verb, as argparse takes it; a name with dashes is an option."""

    names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_option(self) -> bool:
        return self.names[0].startswith("-")


@dataclass(frozen=True)
class Command:
    """One verb: where it stands in the help, what it takes, what runs it, and what it prints with --json.

    `runner` is `module:function` in `headwater.cli`.
    `like` are positional arguments that are completed with names of the catalog.
    """

    name: str
    group: str
    about: str
    runner: str
    args: tuple[Arg, ...] = ()
    json: str = ""
    catalog: bool = True
    like: tuple[str, ...] = ("table", "name", "namespace", "id")
    fixed: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> tuple[Arg, ...]:
        return tuple(arg for arg in self.args if not arg.is_option)

    @property
    def required(self) -> int:
        return sum(arg.options.get("nargs") not in ("?", "*") for arg in self.words)

    @property
    def most(self) -> int | None:
        """The largest number of words; None without a limit."""
        return None if any(arg.options.get("nargs") == "*" for arg in self.words) else len(self.words)


def arg(*names: str, about: str, **options: object) -> Arg:
    return Arg(names, {"help": about, **options})


def number(text: str) -> int:
    """A whole number."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def seconds(text: str) -> float:
    """Return a time in seconds, or with its unit: 90, 30s, 5m, 1h."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", text, re.ASCII)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: one is 30s, 5m or 1h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def port(text: str) -> int:
    """A port to listen on; 0 picks one."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: one is a whole number from 0 to 65535")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """`key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key, value


COMMON = (
    arg("-c", "--catalog", about="a path, a URI, or the name of a profile (HEADWATER_CATALOG, headwater.toml)"),
    arg("--property", about="a property of the catalog (repeatable)", action="append", default=[], metavar="KEY=VALUE"),
    arg("--delimiter", about='between names, instead of a dot and quotes as in prod."a.b"'),
    arg("--json", about="print JSON", action="store_true"),
)
TABLE = arg("table", about="a table, such as prod.users")
NAME = arg("name", about="a table or namespace, such as prod.users")
YES = arg("-y", "--yes", about="do not ask for confirmation", action="store_true")
FILE = arg("file", about="rows: .parquet, .csv, .jsonl, .arrow, a .lance folder, or - for Arrow or JSON lines on stdin")
VERSION = arg("--version", about="at this version", type=number)
TAG = arg("--tag", about="at this tag")
AT = arg("--at", about="at a commit, a snapshot, an ISO time, or an age (2h ago)", metavar="WHEN")
BRANCH = arg("--branch", about="on this branch")
WHERE = arg("--where", about="only rows where this SQL holds")
COLUMN = arg("--column", about="only this column (repeatable)", action="append")
PAST = (VERSION, TAG, AT, BRANCH)
OUT = (
    arg("--out", about="write the rows to this file, by its suffix: .parquet, .csv, .jsonl, .arrow"),
    arg("--format", about="how rows are printed: table, jsonl, csv, arrow or parquet", choices=FORMATS),
)
SET = arg("--set", about="a property, key=value (repeatable)", action="append", type=pair, default=[])
KEEP = (
    arg("--keep-versions", about="keep this many of the newest versions", type=number),
    arg("--keep-days", about="keep the versions of this many days", type=float),
    arg("--grace-seconds", about="keep versions replaced in the last seconds (600)", type=float),
)
"""The fields of the verbs CleanUpTableVersions and OptimizeTable; a test compares the two."""
MODE = arg("--mode", about="what to do when it exists: create, exist_ok or overwrite")


def limit(count: int | None, about: str = "at most this many") -> Arg:
    shown = f"{about} ({count})" if count is not None else about
    return arg("--limit", about=shown, type=number, default=count)


ENGINES = ("spark", "embedded")
"""The engines of a pipeline; a test compares it with the pipeline's own list."""
ENGINE = (
    arg("--engine", about="where the work runs: Spark, or embedded in this process", choices=ENGINES),
    arg("--master", about="the Spark that runs it: local[*], spark://..., k8s://..., yarn, sc://...", metavar="MASTER"),
)
