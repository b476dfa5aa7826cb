"""How long the deltas of a change log stay: `log_retention` after the publish that covers them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from headwater.errors import InvalidInputError

LOG_RETENTION = "30 days"
RETENTION_PROPERTY = "log_retention"
UNITS = {"week": 604_800, "day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *(week|day|hour|minute|second)s?")


def parse_duration(text: str) -> timedelta:
    """`7 days`, `90 minutes`."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidInputError(f"{text!r} is not a duration: write it like '7 days', '12 hours' or '90 minutes'.")
    return timedelta(seconds=float(match[1]) * UNITS[match[2]])


def log_retention(properties: Mapping[str, Any]) -> timedelta:
    """What the properties of a stream table's version say."""
    return parse_duration(str(properties.get(RETENTION_PROPERTY, LOG_RETENTION)))


def expired(
    publishes: Sequence[tuple[int, int]], positions: Iterable[int], before_ms: int, needed: Iterable[int]
) -> list[int]:
    """The positions of the deltas that may go: always all up to some publish (position and time of each are given).

    Whoever stands at a needed position (a reader, a pin) is served from the publish before it and every delta after.
    """
    bound = max((position for position, time_ms in publishes if time_ms < before_ms), default=0)
    for stands in needed:
        bound = min(bound, max((position for position, _ in publishes if position <= stands), default=0))
    return [position for position in positions if position <= bound]
