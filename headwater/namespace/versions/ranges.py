"""Ranges of versions in requests and policies. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.model import Version

ALL = -1
MAX_RANGES = 10_000
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class VersionRange:
    """Versions from `start` to before `end`; `end` -1 means up to and including the newest (OpenAPI, VersionRange)."""

    start: int
    end: int

    def __contains__(self, number: int) -> bool:
        return self.start <= number and (self.end == ALL or number < self.end)


@dataclass(frozen=True)
class KeepPolicy:
    """Policy of kept versions: any rule keeps a version; the newest and held ones always stay.

    `versions`: the newest so many. `days`: those of the last so many days.
    `grace_seconds`: those that were the newest so recently that a reader may be about to open them.
    """

    versions: int | None = None
    days: float | None = None
    grace_seconds: float = 600.0


def parse_ranges(given: Sequence[Any]) -> list[VersionRange]:
    """Checked ranges, or InvalidInput (13)."""
    if len(given) > MAX_RANGES:
        raise InvalidInputError(f"At most {MAX_RANGES} ranges can be deleted at once.")
    found = [VersionRange(int(item.start_version), int(item.end_version)) for item in given]
    for item in found:
        if item.start < 0 or item.end < ALL or (item.end != ALL and item.end < item.start):
            raise InvalidInputError(
                f"The range [{item.start}, {item.end}) means no versions: give a start of at least 0 and an end "
                "not before it, or the end -1 for all."
            )
    return found


def choose_deleted(
    numbers: Sequence[int],
    ranges: Sequence[VersionRange],
    ignore_missing: bool,
    table: object,
    held: Mapping[int, object],
) -> list[int]:
    """Return the versions to delete of those that exist (ascending): errors 11 (unless missing ones are ignored), 13.

    `held` says what stands on a version, such as a tag. Then nothing of the request is done.
    """
    if not ignore_missing:
        _require_all(frozenset(numbers), ranges, table)
    chosen = [number for number in numbers if any(number in item for item in ranges)]
    for number in chosen:
        if number in held:
            raise InvalidInputError(
                f"Version {number} of table {table} cannot be deleted: {held[number]} stands on it. Delete that first, "
                "or leave the version out."
            )
    newest = numbers[-1] if numbers else 0
    if newest in chosen and not any(item.end == ALL and newest in item for item in ranges):
        raise InvalidInputError(
            f"Version {newest} is the current version of table {table}: a range deletes it only with the end -1."
        )
    return chosen


def _require_all(numbers: frozenset[int], ranges: Sequence[VersionRange], table: object) -> None:
    for item in ranges:
        present = sum(number in item for number in numbers)
        first = max(item.start, 1)
        if item.end != ALL and present < item.end - first:
            missing = next(number for number in range(first, item.end) if number not in numbers)
            raise TableVersionNotFoundError(f"Table {table} has no version {missing}.")


def choose_outdated(
    versions: Sequence[Version], policy: KeepPolicy, held: Collection[int], now_ms: int
) -> list[Version]:
    """Return the versions (given ascending) that no rule of the policy keeps and nothing stands on."""
    kept = len(versions) if policy.versions is None and policy.days is None else max(policy.versions or 1, 1)
    oldest_ms = None if policy.days is None else now_ms - policy.days * DAY_MS
    chosen: list[Version] = []
    for at, version in enumerate(versions[:-kept] if kept else ()):
        replaced_ms = versions[at + 1].timestamp_ms
        recent = oldest_ms is not None and (version.timestamp_ms is None or version.timestamp_ms >= oldest_ms)
        in_use = replaced_ms is None or replaced_ms > now_ms - policy.grace_seconds * 1000
        if not recent and not in_use and version.number not in held:
            chosen.append(version)
    return chosen


def check_policy(policy: KeepPolicy) -> None:
    numbers: Mapping[str, float | None] = {
        "versions": policy.versions,
        "days": policy.days,
        "grace_seconds": policy.grace_seconds,
    }
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not value >= 0):
            raise InvalidInputError(f"{name} must be a number, at least 0, not {value!r}.")
