"""The rows of a table in every form that people hold them in. Other libraries are needed only by those who ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa

from headwater.errors import UnsupportedOperationError


class Frames(ABC):
    """Who has rows as Arrow has them as frames, one by one and as an Arrow stream too."""

    @abstractmethod
    def to_arrow(self, *args: Any, **options: Any) -> pa.Table: ...

    @abstractmethod
    def count(self) -> int: ...

    def to_batches(self, *args: Any, **options: Any) -> pa.RecordBatchReader:
        """As `to_arrow`, batch by batch."""
        return self.to_arrow(*args, **options).to_reader()

    def to_pandas(self, *args: Any, **options: Any) -> Any:
        """As `to_arrow`, as a pandas frame."""
        return self.to_arrow(*args, **options).to_pandas()

    def to_polars(self, *args: Any, **options: Any) -> Any:
        """As `to_arrow`, as a polars frame."""
        return _library("polars").from_arrow(self.to_arrow(*args, **options))

    def to_duckdb(self, *args: Any, **options: Any) -> Any:
        """As `to_arrow`, as a relation of DuckDB."""
        return _library("duckdb").from_arrow(self.to_arrow(*args, **options))

    def head(self, count: int = 10) -> pa.Table:
        """The first rows."""
        return self.to_arrow(limit=count)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """A table is there, however many rows it has."""
        return True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows, one after the other."""
        for batch in self.to_batches():
            yield from batch.to_pylist()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Any library that reads Arrow streams reads the table."""
        return self.to_batches().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UnsupportedOperationError(f"This needs {name}: pip install {name}.") from None
