"""The one bounded retry loop: after a conflict it reads the state again and repeats the action.

It also retries requests that a store did not answer. An action that may have landed is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headwater.clock import Clock
from headwater.errors import CommitStateUnknownError, ConcurrentModificationError, LanceNamespaceError

Looked = TypeVar("Looked")
Answer = TypeVar("Answer")
ATTEMPTS = 20
"""The attempts of the catalog's own operations."""
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
    """Call `act(look())` until it succeeds, at most `attempts` times, then raise its last error.

    `on`: the error of `act` that is retried. Errors of `look` are raised at once.
    `eager`: the number of retries without a pause. `longest`: the attempt from which pauses stop growing.
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
