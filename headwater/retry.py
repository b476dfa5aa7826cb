"""The one bounded retry loop: a conflict means that what was looked at has changed, so look again and do it anew.

A store that did not answer is asked again by it too. What may have landed is never done again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headwater.clock import Clock
from headwater.errors import CommitStateUnknownError, ConcurrentModificationError, LanceNamespaceError

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
    on: type[LanceNamespaceError] = ConcurrentModificationError,
    eager: int = 0,
) -> Answer:
    """What `act` answers to what `look` has seen; its last error when it failed so many times.

    Only what `act` raises `on` is tried again, so many times without a pause (`eager`): what `look` raises is the
    answer.
    """
    attempt = 0
    while True:
        seen = look()
        try:
            return act(seen)
        except CommitStateUnknownError:
            raise
        except on:
            attempt += 1
            if attempt >= attempts:
                raise
        if attempt > eager:
            clock.pause(min(attempt - 1, longest))
