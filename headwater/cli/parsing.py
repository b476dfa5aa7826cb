"""From a line to a verb, its catalog and its arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import headwater
from headwater.cli.grammar import COMMANDS, COMMON, GROUPS, HERE, SHOWN, Arg, Command
from headwater.cli.target import Target
from headwater.config import default_target
from headwater.errors import InvalidInputError
from headwater.names import parse_name
from headwater.wording import closest

USAGE = "usage: headwater [-c CATALOG] VERB [CATALOG] ..."
COLUMNS = 80
"""The width of a terminal that every line of help fits."""
NO_CATALOG = "no catalog is named, and there is no default: give a path, a URI or a profile, or set HEADWATER_CATALOG"


class LineParser(argparse.ArgumentParser):
    """The parser of one verb; a malformed line ends with 2, and names the option that was meant."""

    def __init__(self, command: Command) -> None:
        self.command = command
        words = ("[CATALOG]" if command.catalog else "", *(_shown(arg) for arg in command.words), "[options]")
        is_short = len(f"usage: headwater {command.name} {' '.join(words)}") <= COLUMNS
        shown = " ".join(words if is_short else (*words[:2], "..."))
        super().__init__(
            prog=f"headwater {command.name}",
            usage=f"headwater {command.name} {shown.strip()}",
            description=f"{command.about[0].upper()}{command.about[1:]}.",
            epilog=f"With --json: {command.json}." if command.json else None,
            allow_abbrev=False,
        )

    def add(self, args: Sequence[Arg]) -> LineParser:
        for arg in args:
            self.add_argument(*arg.names, **arg.options)
        return self

    def unknown(self, word: str) -> NoReturn:
        known = [name for action in self._actions for name in action.option_strings]
        near = closest(word.partition("=")[0], known)
        self.error(f"there is no option {word[:200]}" + (f": did you mean {near}?" if near else ""))


def _shown(arg: Arg) -> str:
    name = arg.names[0].upper()
    return {"?": f"[{name}]", "*": f"[{name} ...]"}.get(arg.options.get("nargs", ""), name)


def parser_of(command: Command) -> LineParser:
    """Everything a verb takes, for its help and for completion."""
    return LineParser(command).add(command.args).add(_common(command))


def _common(command: Command) -> tuple[Arg, ...]:
    taken = {name for arg in command.args for name in arg.names}
    return tuple(arg for arg in COMMON if command.catalog and not taken.intersection(arg.names))


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """The verb and its arguments. Exits with 0 after a help or the version, and with 2 after a malformed line."""
    command, catalog, rest = find_command(list(arguments))
    parser = parser_of(command)
    if "-h" in _options_of(rest) or "--help" in _options_of(rest):
        parser.print_help()
        sys.exit(0)
    args, words = _options(command, rest)
    if command.catalog:
        named = args.catalog or catalog
        free = command.name in ("serve", "doctor", HERE.name) or getattr(args, "keys", None) is not None
        is_told = getattr(args, "impl", None) is not None and command.name == "serve"
        args.catalog, words = _catalog(parser, named, words, free, is_told)
        args.target = Target(args.catalog, args.property)
        delimiter = args.delimiter
        args.name_of = lambda text: parse_name(text, delimiter)
    else:
        args.json = getattr(args, "json", False)
    _words(command, parser, words, args)
    for key, value in command.fixed.items():
        setattr(args, key, value)
    args.command = command
    return args


def find_command(rest: list[str]) -> tuple[Command, str | None, list[str]]:
    """Return the verb of a line, the catalog named before it, and what follows it."""
    catalog = None
    while rest and rest[0].startswith("-"):
        option, _, value = rest.pop(0).partition("=")
        if option in ("-c", "--catalog") and (value or rest):
            catalog = value or rest.pop(0)
        elif option == "--version":
            print(f"headwater {headwater.__version__}")
            sys.exit(0)
        elif option in ("-h", "--help"):
            print(overview())
            sys.exit(0)
        else:
            fail(f"there is no option {option[:200]} before a verb")
    if not rest:
        return HERE, catalog, []
    two = " ".join(rest[:2])
    for name, length in ((two, 2), (rest[0], 1)):
        if name in COMMANDS:
            return COMMANDS[name], catalog, rest[length:]
    return _no_verb(rest)


def _no_verb(rest: list[str]) -> NoReturn:
    below = [name.split()[1] for name in COMMANDS if name.startswith(f"{rest[0]} ")]
    if below:
        if any(word in ("-h", "--help") for word in rest[1:]):
            print("\n".join(_line(command) for command in SHOWN if command.name.startswith(f"{rest[0]} ")))
            sys.exit(0)
        fail(f"`headwater {rest[0]}` is followed by one of {', '.join(below)}")
    if rest[0] in GROUPS:
        print("\n".join(_group(rest[0])))
        sys.exit(0)
    near = closest(rest[0], [name.split()[0] for name in COMMANDS])
    fail(f"there is no verb {rest[0][:200]!r}" + (f": did you mean {near}?" if near else ""))


def fail(text: str) -> NoReturn:
    """End with 2 and the usage."""
    print(f"{USAGE}\nheadwater: {text} (headwater --help lists every verb)", file=sys.stderr)
    sys.exit(2)


def overview() -> str:
    """Return the help of the whole: verbs by what people do."""
    lines = [
        USAGE,
        "",
        "One catalog for Lance tables and change streams, on plain storage.",
        "CATALOG is a path, a URI or a profile. Without it: HEADWATER_CATALOG, or the",
        "default of headwater.toml. `headwater` alone says what is here.",
    ]
    for group in GROUPS:
        lines += ["", *_group(group)]
    lines += ["", "headwater VERB --help explains a verb; headwater GROUP lists one group."]
    return "\n".join(lines)


def _group(name: str) -> list[str]:
    """Return the help of one group of verbs."""
    return [f"{name}: {GROUPS[name]}", *(_line(command) for command in SHOWN if command.group == name)]


def _line(command: Command) -> str:
    return f"  {command.name:<17} {command.about}"


def _options_of(rest: Sequence[str]) -> Sequence[str]:
    return rest[: rest.index("--")] if "--" in rest else rest


def _options(command: Command, rest: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, wherever they stand, and the words between them."""
    own = tuple(arg for arg in command.args if arg.is_option)
    parser = LineParser(command).add(own).add(_common(command))
    before = list(_options_of(rest))
    args, words = parser.parse_known_args(before)
    for word in words:
        if word.startswith("-") and len(word) > 1 and not word[1:2].isdigit():
            parser.unknown(word)
    return args, words + rest[len(before) + 1 :]


def _catalog(
    parser: LineParser, named: str | None, words: list[str], free: bool, is_told: bool
) -> tuple[str | None, list[str]]:
    """Return the catalog: an option; the first word if it is a place, is one too many, or nothing is set; the default.

    A verb that is `free` does without one, and one that is told otherwise which (serve --impl) takes no default.
    """
    if named is not None:
        return named, words
    default = None if is_told else _default(parser)
    most = parser.command.most
    spare = len(words) > parser.command.required
    if words and spare and (default is None or "/" in words[0] or (most is not None and len(words) > most)):
        return words[0], words[1:]
    if default is None:
        if free:
            return None, words
        parser.error(NO_CATALOG)
    return default, words


def _default(parser: LineParser) -> str | None:
    try:
        return default_target()
    except InvalidInputError as error:
        parser.error(str(error))


def _words(command: Command, parser: LineParser, words: list[str], args: argparse.Namespace) -> None:
    most = command.most
    if most is not None and len(words) > most:
        parser.error(f"{words[most][:200]!r} is one word too many: {parser.command.name} takes {_count(most)}")
    positional = LineParser(command).add(command.words)
    positional.parse_args(["--", *words] if words else [], args)


def _count(most: int) -> str:
    return f"at most {most} word{'' if most == 1 else 's'} beside the catalog"
