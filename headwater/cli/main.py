"""The command line: read a line, run its verb, and end as the error table says."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence

import msgspec

from headwater.cli.completion import ASK as COMPLETE
from headwater.cli.completion import answer
from headwater.cli.output import NotAgreedError, visible
from headwater.cli.parsing import read
from headwater.errors import ERRORS, ErrorCode, LanceNamespaceError
from headwater.imports import import_little, when_used
from headwater.wording import MEANT

lookups = when_used("headwater.cli.lookups")
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
            atexit.register(gc.freeze)  # what is left at the end goes with the process: half a second of collecting
        status = int(runner(args.command.runner)(args) or 0)
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
    """The function of a verb, imported when it is run: `module:function` in this package."""
    module, _, function = name.partition(":")
    found: Callable[[argparse.Namespace], int | None] = getattr(
        importlib.import_module(f"headwater.cli.{module}"), function
    )
    return found


def meant(args: argparse.Namespace, error: LanceNamespaceError) -> str:
    """The message, with the nearest right name where a wrong one was given."""
    knows = getattr(error, "meant", None) is not None  # the library may know it already
    near = None if knows else lookups.nearest(args, error)
    return f"{error} {MEANT} {near}?" if near else str(error)


def _complain(args: argparse.Namespace, text: str, code: int) -> None:
    """One line on stderr; the sentence for people, an object for programs."""
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
