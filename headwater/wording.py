"""Counts with nouns, for messages."""

from __future__ import annotations


def many(count: int, noun: str) -> str:
    """Return `1 file` or `2,000 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
