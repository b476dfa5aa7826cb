"""Callbacks of hosted work to its caller during a call: bytes out, a JSON value back.

One question at a time. Work that goes on after its call has ended has nobody to ask.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headwater.workers.channel import Channel
from headwater.workers.told_errors import error_of

speaking = threading.Lock()
"""Held by whoever uses the channel while a call is under way: a question, or a report of progress."""
_caller: Channel | None = None


@contextmanager
def called_by(channel: Channel) -> Iterator[None]:
    """A call is under way, and its caller can be asked."""
    global _caller
    _caller = channel
    try:
        yield
    finally:
        with speaking:
            _caller = None


def ask(question: bytes) -> Any:
    """The caller's answer, or the error that it tells; None when no call is under way."""
    with speaking:
        if _caller is None:
            return None
        _caller.send({"ask": True}, [question])
        told = _caller.receive()
    if "error" in told:
        raise error_of(told["error"])
    return told["ok"]
