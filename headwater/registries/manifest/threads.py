"""pylance must not be called from a thread that pylance made.

A client's commit calls the catalog back on a thread of pylance's own runtime. pylance's functions, called again from
there, can return without the interpreter's lock and bring the whole process down (measured with pylance 14.0.2, in
`LanceFragment.to_table`). So work on the `__manifest` table that begins on such a thread is done by one of ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from headwater.tables.translate import is_panic, message_of

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
SIDE_BY_SIDE = 16


def on_own_thread(work: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """The work, done where it is called, or, if Python did not start that thread, on one that it did.

    A panic of pylance's, which a damaged file can bring about and no `except Exception` catches, is a RuntimeError.
    """

    @wraps(work)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            if isinstance(threading.current_thread(), threading._DummyThread):
                return _pool().submit(work, *args, **kwargs).result()
            return work(*args, **kwargs)
        except BaseException as error:
            if is_panic(error):
                raise RuntimeError(message_of(error)) from None
            raise

    return run


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=SIDE_BY_SIDE, thread_name_prefix="headwater-manifest")
