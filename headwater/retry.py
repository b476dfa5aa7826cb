"""The one bounded retry loop: a conflict means that what was looked at has changed, so look again and do it anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError

Looked = TypeVar("Looked")
Answer = TypeVar("Answer")
ATTEMPTS = 20
"""How often the catalog's own operations look again."""
LONGEST = 8
"""From this attempt on, pauses grow no longer."""


def retry(
    clock: Clock,
    attempts: int,
    look: Callable[[], Looked],
    act: Callable[[Looked], Answer],
    longest: int = LONGEST,
) -> Answer:
    """What `act` answers to what `look` has seen; ConcurrentModification (14) when it came second so many times.

    Only a conflict of `act` is tried again: what `look` raises is the answer.
    """
    attempt = 0
    while True:
        seen = look()
        try:
            return act(seen)
        except ConcurrentModificationError:
            attempt += 1
            if attempt >= attempts:
                raise
        clock.pause(min(attempt - 1, longest))
