"""Arrow tables as frames of other libraries, which are needed only by those who ask for them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa

from headwater.errors import UnsupportedOperationError


def to_polars(table: pa.Table) -> Any:
    return _library("polars").from_arrow(table)


def to_duckdb(table: pa.Table) -> Any:
    return _library("duckdb").from_arrow(table)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UnsupportedOperationError(f"This needs {name}: pip install {name}.") from None
