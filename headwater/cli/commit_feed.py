"""`headwater follow`: commits as they are made, for people, programs and webhooks.

A module of its own: it needs the transport of a catalog, which the other verbs about the past start without.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from headwater.catalog.transport import follow_log, transport_of
from headwater.cli.moments import entry_record
from headwater.cli.output import show_records
from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.metastore import LogEntry
from headwater.verbs.catalog import LogPage
from headwater.webhooks import Webhook, attempt, check_webhook, post


def follow(args: argparse.Namespace) -> int:
    """Print or send commits until the limit, or without end. A position moves when its commit was handled."""
    if args.secret and not args.to:
        raise InvalidInputError("--secret signs what is sent: write --to as well.")
    webhook = Webhook(args.to, args.secret or "", args.internal, "--internal") if args.to else None
    if webhook is not None:
        check_webhook(webhook, "--to", "--secret")
    names = args.name_of(args.name) if args.name else None
    transport, left = transport_of(args.target.namespace()), args.limit
    for page in follow_log(transport, start(args.position, args.after), tuple(names or ())):
        for entry in page.entries[:left]:
            if webhook is None:
                show_records([entry_record(entry, args.json)], args.json)
                sys.stdout.flush()
            else:
                send(webhook, entry, SystemClock())
        if args.position:
            keep(args.position, handled(page, left))
        left = None if left is None else left - len(page.entries)
        if left is not None and left <= 0:
            return 0
    return 0


def handled(page: LogPage, left: int | None) -> int:
    """Return the commit up to which all of a page is handled, of which `left` transactions are; None: all."""
    if left is None or left >= len(page.entries):
        return page.until
    return page.entries[left].slot - 1


def start(position: str | None, after: int | None) -> int | None:
    """Return the commit after which to begin: the kept one, or else `after`."""
    if not position:
        return after
    try:
        text = Path(position).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return after
    except OSError as error:
        raise InvalidInputError(f"The position {position} cannot be read: {error.strerror}.") from None
    if not (text.isascii() and text.isdigit()):
        raise InvalidInputError(f"The file {position} holds no commit: {text[:40]!r}.")
    return int(text)


def keep(position: str, slot: int) -> None:
    """Write a position, so that a reader finds the old or the new one."""
    new = f"{position}.new"
    with open(new, "w", encoding="utf-8") as file:
        file.write(f"{slot}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, position)


def send(webhook: Webhook, entry: LogEntry, clock: Clock) -> None:
    """Send a commit to a webhook, three times at most; ServiceUnavailable (17) if it was not taken."""
    body = json.dumps({"event": "commit", **entry_record(entry, True)}, default=str).encode()
    why = attempt(lambda: post(webhook, body, clock.now_ms() // 1000), clock)
    if why:
        raise ServiceUnavailableError(f"Commit {entry.slot} was not sent to {webhook.to.partition('?')[0]}: {why}.")
