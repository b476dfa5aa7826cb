"""Retention of deltas in a change log: `log_retention` after the publish that covers them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from headwater.errors import InvalidInputError
from headwater.metastore.records.disk_records import DeltaBody
from headwater.metastore.records.objects import Delta
from headwater.metastore.records.serving_copy import PUBLISHED

LOG_RETENTION = "30 days"
RETENTION_PROPERTY = "log_retention"
UNITS = {"week": 604_800, "day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
VOIDS = "voids"
Landed = Delta | DeltaBody
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *(week|day|hour|minute|second)s?")


def parse_duration(text: str) -> timedelta:
    """`7 days`, `90 minutes`."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidInputError(f"{text!r} is not a duration: write it like '7 days', '12 hours' or '90 minutes'.")
    return timedelta(seconds=float(match[1]) * UNITS[match[2]])


def log_retention(properties: Mapping[str, Any]) -> timedelta:
    """Return the `log_retention` in the properties of a table version."""
    return parse_duration(str(properties.get(RETENTION_PROPERTY, LOG_RETENTION)))


def expired(
    versions: Sequence[Landed], changes: Sequence[Landed], before_ms: int, needed: Iterable[int] = ()
) -> list[int]:
    """The positions of the deltas that may go: always all up to some publish.

    Whoever stands at a needed position (a reader, a pin) is served from the publish before it and every delta after,
    and so is the newest state: from the last publish that holds nothing that was taken back since.
    """
    publishes = [(position, _time(version)) for version in versions if (position := _published(version)) is not None]
    bound = max((position for position, time_ms in publishes if time_ms < before_ms), default=0)
    for stands in (base_of(versions, changes)[0], *needed):
        bound = min(bound, max((position for position, _ in publishes if position <= stands), default=0))
    return [change.position for change in changes if change.position <= bound]


def _time(version: Landed) -> int:
    return version.time_ms if isinstance(version, Delta) else version.time


def base_of(versions: Sequence[Landed], changes: Sequence[Landed]) -> tuple[int, int]:
    """From which publish the newest state of a table is read: its position, and the first Lance version to keep.

    What a later change voids must not be in it. Without a publish all changes are needed, and the newest version.
    """
    for version in reversed(versions):
        position = _published(version)
        if position is not None and not any(_voids(change, position) for change in changes):
            return position, version.position
    return 0, versions[-1].position if versions and not _any_published(versions) else 1


def _published(version: Landed) -> int | None:
    found: Any = version.properties.get(PUBLISHED)
    return found if isinstance(found, int) else None


def _any_published(versions: Sequence[Landed]) -> bool:
    return any(_published(version) is not None for version in versions)


def _voids(change: Landed, base: int) -> bool:
    """Return True if a change after a publish takes back something that is in it."""
    return change.position > base and any(voided <= base for voided in change.properties.get(VOIDS, ()))
