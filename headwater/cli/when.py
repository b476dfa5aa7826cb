"""Moments as people say them: a slot, a snapshot, an ISO time, `2h ago`."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta

from headwater.errors import InvalidInputError

_AGO = re.compile(r"(\d{1,9})\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)\s+ago", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime | None = None) -> int | datetime:
    """A slot, or a time; a time without a zone is a local one. InvalidInput (13) for anything else."""
    said = text.strip().lower()
    if said.isascii() and said.isdigit() and len(said) < 12:
        return int(said)
    if said == "now":
        return now or datetime.now(UTC)
    ago = _AGO.fullmatch(said)
    if ago:
        return (now or datetime.now(UTC)) - timedelta(**{_UNITS[ago[2][0]]: int(ago[1])})
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except ValueError:
        raise InvalidInputError(
            f"{text[:200]!r} is no moment: give a slot, an ISO time such as 2026-05-01T12:00, or 2h ago."
        ) from None


def check_one(given: argparse.Namespace) -> None:
    """At most one of --version, --tag and --at."""
    said = [name for name in ("version", "tag", "at") if getattr(given, name, None) is not None]
    if len(said) > 1:
        raise InvalidInputError(f"Say one of {' and '.join(f'--{name}' for name in said)}.")
