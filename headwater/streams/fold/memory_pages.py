"""Pages of memory for the arrays of a fold, which are large, many, and live for milliseconds.

numpy asks the kernel for huge pages for every array of some megabytes. A huge page that lay free may not be backed by
memory any more: a virtual machine that reports free memory gives just those back to its host, and getting one again
takes milliseconds. Small pages are used again as they are.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from contextlib import ContextDecorator

TOLD = "NUMPY_MADVISE_HUGEPAGE"
"""numpy's own setting, read when it is imported: whoever has set it has chosen."""


class SmallPages(ContextDecorator):
    """While a thread is in here, the arrays that the process makes are of small pages, unless huge ones were asked for.
    No result depends on it; what the process had chosen comes back with the last one that leaves."""

    def __init__(self) -> None:
        self._choose = None if TOLD in os.environ else _setting()
        self._lock = threading.Lock()
        self._inside = 0
        self._before = False

    def __enter__(self) -> None:
        if self._choose is not None:
            with self._lock:
                self._inside += 1
                if self._inside == 1:
                    self._before = self._choose(False)

    def __exit__(self, *error: object) -> None:
        if self._choose is not None:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._choose(self._before)


def _setting() -> Callable[[bool], bool] | None:
    """numpy's switch, which has no public name, and another module in numpy 1; None: this numpy has none."""
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        try:
            return getattr(importlib.import_module(module), "_set_madvise_hugepage", None)
        except ImportError:
            continue
    return None


small_pages = SmallPages()
