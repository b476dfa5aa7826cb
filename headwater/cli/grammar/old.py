"""One verb per operation of the protocol: the early spelling, kept for scripts and not shown."""

from __future__ import annotations

import argparse
from typing import Any

from headwater.cli.grammar.operations import VERBS, Verb
from headwater.cli.grammar.operations import FieldArg as Field
from headwater.cli.grammar.words import YES, Arg, Command, arg

ASKS = frozenset(("drop-namespace", "drop-columns", "delete-versions"))
"""Old spellings that destroy something: they ask, as the new ones do."""


def old_commands(known: frozenset[str]) -> tuple[Command, ...]:
    """Those whose name is not taken by a verb of today, which does the same and more."""
    return tuple(_command(verb) for verb in VERBS if verb.name not in known)


def _command(verb: Verb) -> Command:
    args: list[Arg] = []
    if not verb.without_id:
        optional = {"nargs": "?", "default": ""} if verb.operation in ("ListNamespaces", "ListTables") else {}
        args.append(arg("id", about="names joined by dots, such as prod.users", **optional))
    if verb.data:
        args.append(arg("file", about="rows: .parquet, .csv, .jsonl, .arrow, or - for stdin"))
    args += [_arg(field) for field in verb.args]
    if verb.name in ASKS:
        args.append(YES)
    return Command(verb.name, "", f"{verb.operation}: {verb.about}", "operations:run", tuple(args), fixed={"old": verb})


def _arg(field: Field) -> Arg:
    options: dict[str, Any] = {"help": field.about or argparse.SUPPRESS}
    if field.flag:
        options["action"] = "store_true"
    elif field.repeat:
        options["action"] = "append"
    if field.convert is not None and not field.flag:
        options["type"] = field.convert
    if field.required:
        options["required"] = True
    return Arg((field.name,), options)
