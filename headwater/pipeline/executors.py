"""Files taken in one after another in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.catalog.streams import CatalogStream
from headwater.streams.checks import Check
from headwater.streams.landing import Report
from headwater.streams.sources.files import SourceFile

LARGE_BYTES = 50_000 * 200


def ingest_files(
    spark: Any,
    stream: CatalogStream,
    files: Sequence[SourceFile],
    format: str,
    name: str | None,
    strict: bool,
    checks: Sequence[Check],
    options: Mapping[str, Any],
) -> list[Report]:
    return [stream.ingest_file(file, format, name, strict, checks, **options) for file in files]
