"""The command line: read a line, run its verb, and end as the error table says. And its completion in shells.

`headwater completion bash|zsh|fish` prints a script, which asks `headwater __complete WORDS...`. Names are looked up as
lightly as `ls` does, and answered as the shell must read them: quoted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

from headwater.cli.grammar import COMMANDS, SHOWN, Command
from headwater.cli.lookups import names_of, nearest
from headwater.cli.output import NotAgreedError, visible
from headwater.cli.parsing import parser_of, read
from headwater.cli.target import Target
from headwater.config import default_target, profile_names
from headwater.errors import ERRORS, ErrorCode, LanceNamespaceError
from headwater.imports import import_little
from headwater.names import format_name, parse_name
from headwater.wording import MEANT, suggests

INTERNAL_EXIT = 1
MALFORMED_EXIT = 2
INTERRUPTED_EXIT = 130
READS = "look"
"""The group of verbs that only read, and so call no function of a user."""
FEWER_COLLECTIONS = 100_000
"""Objects between two garbage collections of a program that only reads; Python's default is 700."""
INVALID_INPUT = int(ErrorCode.INVALID_INPUT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is 0, 2 for a line that is malformed or not agreed to, or the error table's."""
    args = argparse.Namespace(json=False)
    line = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if line[:1] == [COMPLETE]:
            return answer(line[1:])
        args = read(line)
        if arguments is None:
            import_little(pandas=args.command.group != READS)
            if args.command.group == READS:
                gc.set_threshold(FEWER_COLLECTIONS)  # most of what a short program makes are modules, which stay
        run = runner(args.command.runner)
        if arguments is None:
            gc.freeze()  # modules go with the process: to collect them at its end takes half a second
        status = int(run(args) or 0)
        sys.stdout.flush()
        return status
    except LanceNamespaceError as error:
        _complain(args, meant(args, error), int(error.code))
        return ERRORS[int(error.code)].exit
    except NotAgreedError as error:
        _complain(args, str(error), INVALID_INPUT)
        return MALFORMED_EXIT
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except BrokenPipeError:
        _leave_pipe()
        return 0
    except Exception as error:
        _complain(args, f"unexpected failure ({type(error).__name__}): {error}", int(ErrorCode.INTERNAL))
        return INTERNAL_EXIT


def runner(name: str) -> Callable[[argparse.Namespace], int | None]:
    """Return the function of a verb, imported when it is run: `module:function` in this package."""
    module, _, function = name.partition(":")
    found: Callable[[argparse.Namespace], int | None] = getattr(
        importlib.import_module(f"headwater.cli.{module}"), function
    )
    return found


def meant(args: argparse.Namespace, error: LanceNamespaceError) -> str:
    """Return the message, with the nearest right name where a wrong one was given."""
    knows = getattr(error, "meant", None) is not None or suggests(error)  # the library or a server found it
    near = None if knows else nearest(args, error)
    return f"{error} {MEANT} {near}?" if near else str(error)


def _complain(args: argparse.Namespace, text: str, code: int) -> None:
    """Print an error as one line on stderr: a sentence for people, an object for programs."""
    if getattr(args, "json", False):
        line = msgspec.json.encode({"error": text, "code": code}).decode()
    else:
        line = f"headwater: {visible(' '.join(text.splitlines()))}"
    with contextlib.suppress(BrokenPipeError):
        print(line, file=sys.stderr)


def _leave_pipe() -> None:
    """Redirect stdout to nothing after its reader is gone, so that Python ends without a complaint."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


COMPLETE = "__complete"
BASH = """_headwater() {
    local IFS=$'\\n'
    COMPREPLY=($(headwater __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == */ || ${COMPREPLY[0]} == *. ]] && compopt -o nospace
}
complete -o default -F _headwater headwater
"""
ZSH = """#compdef headwater
_headwater() {
    local -a found
    found=("${(@f)$(headwater __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n $found ]] && compadd -Q -S '' -- $found || _files
}
compdef _headwater headwater
"""
FISH = """function __headwater
    set -l words (commandline -opc) (commandline -ct)
    headwater __complete $words[2..-1] 2>/dev/null
end
complete -c headwater -a '(__headwater)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def script(args: argparse.Namespace) -> int:
    print(SCRIPTS[args.shell], end="")
    return 0


def answer(words: Sequence[str]) -> int:
    """One candidate a line. A catalog that cannot be read has none: completion never complains."""
    try:
        for candidate in candidates(list(words) or [""]):
            print(candidate)
    except (LanceNamespaceError, SystemExit, OSError):
        pass
    return 0


def candidates(words: list[str]) -> Iterator[str]:
    """Return the completions of the last word."""
    *before, last = words
    last = _unquoted(last)
    command = _command(before)
    if command is None:
        start = f"{' '.join(before)} " if before and any(c.name.startswith(f"{before[0]} ") for c in SHOWN) else ""
        names = dict.fromkeys(c.name.removeprefix(start).split()[0] for c in SHOWN if c.name.startswith(start))
        yield from (name for name in names if name.startswith(last))
        return
    if last.startswith("-"):
        options = (name for action in parser_of(command)._actions for name in action.option_strings)
        yield from (name for name in options if name.startswith(last) and name.startswith("--"))
        return
    yield from _values(command, before[len(command.name.split()) :], last)


def _command(before: list[str]) -> Command | None:
    return COMMANDS.get(" ".join(before[:2])) or (COMMANDS.get(before[0]) if before else None)


def _values(command: Command, words: list[str], last: str) -> Iterator[str]:
    """Choices of an option, profiles for -c, or names of the catalog."""
    if words and words[-1] in ("-c", "--catalog"):
        yield from (name for name in profile_names() if name.startswith(last))
        return
    if words and words[-1].startswith("-"):
        chosen = [action for action in parser_of(command)._actions if words[-1] in action.option_strings]
        if chosen and chosen[0].nargs != 0:
            yield from (str(choice) for choice in chosen[0].choices or () if str(choice).startswith(last))
            return
    named, plain = _split(words)
    if named is None:
        if plain or default_target() is None or "/" in last:
            named = plain.pop(0) if plain and ("/" in plain[0] or default_target() is None) else None
        if named is None and default_target() is None:
            yield from (name for name in profile_names() if name.startswith(last))
            return
    slot = command.words[min(len(plain), len(command.words) - 1)] if command.words else None
    if slot is None or not command.catalog:
        return
    if slot.options.get("choices"):
        yield from (choice for choice in slot.options["choices"] if choice.startswith(last))
    elif slot.names[0] in command.like:
        yield from _names(Target(named or default_target()), last)


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the catalog given as an option, and the words that are no options (nor their values)."""
    named, plain, at = None, list[str](), 0
    while at < len(words):
        word = words[at]
        if word in ("-c", "--catalog") and at + 1 < len(words):
            named, at = _unquoted(words[at + 1]), at + 1
        elif word.startswith("--catalog="):
            named = word.partition("=")[2]
        elif not word.startswith("-"):
            plain.append(_unquoted(word))
        at += 1
    return named, plain


def _names(target: Target, last: str) -> Iterator[str]:
    """Yield the children of the namespace that is written so far; a namespace ends in the dot that comes next."""
    above = last[: last.rfind(".") + 1]
    try:
        parent = parse_name(above.removesuffix(".")) if above else ()
    except LanceNamespaceError:
        return
    for child in names_of(target).children(parent):
        full = format_name((*parent, child.name)) + ("" if child.is_table else ".")
        if full.startswith(last) and visible(full) == full:
            yield shlex.quote(full)


def _unquoted(word: str) -> str:
    """Return a word as the shell would hand it over, also one whose quote is still open."""
    for closed in (word, f"{word}'", f'{word}"'):
        try:
            parts = shlex.split(closed)
        except ValueError:
            continue
        return parts[0] if parts else ""
    return word
