"""Spark and Headwater: every table as a DataFrame, in SQL, and as a stream.

SparkSession --SQL--> Java catalog (jar) --frames, Arrow--> Python worker --REST--> the catalog
             --format("headwater")--> the same, or the Python data source where there is no jar
"""

import importlib
from typing import Any

__all__ = ["backfill", "configure"]

_HOMES = {"configure": "headwater.spark.session", "backfill": "headwater.spark.python_jobs"}


def __getattr__(name: str) -> Any:
    """Import an export when it is first used: the worker of an executor imports this package and needs none."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
