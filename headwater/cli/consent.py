"""Verbs that destroy something ask first."""

from __future__ import annotations

import argparse
import sys


class NotAgreedError(Exception):
    """Nobody said yes: nothing was changed."""


def ask(args: argparse.Namespace, what: str) -> None:
    """Go on if --yes was given, or somebody at a terminal says yes; else NotAgreed, which ends with 2."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise NotAgreedError(f"{what} Nothing was changed: without a terminal, confirm with --yes.")
    print(f"headwater: {what} Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotAgreedError("Nothing was changed.")
