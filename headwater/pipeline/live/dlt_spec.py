"""`[[source]] dlt = "module:source"`: a source of dlt whose state is kept in the catalog, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.metastore.records.deltas import parse_duration
from headwater.pipeline.file_values import as_mapping, as_text, check_names, naming_section
from headwater.pipeline.live.live_source import TABLE, LiveContext, LiveReader

reader = when_used("headwater.pipeline.live.dlt_reader")
KEYS = ("source", "arguments", "every")
EVERY = "1 minute"


@dataclass(frozen=True)
class DltSpec:
    """A source of dlt.

    `source`: the function that makes it, `module:name`; a module beside the pipeline file, or an installed one.
    `arguments`: of that function. `every_s`: a resident run asks the source so often.
    """

    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    every_s: float = 60.0
    kind = "dlt"

    @property
    def shown(self) -> str:
        return f"dlt {self.source}"

    def opened(self, context: LiveContext) -> LiveReader:
        found: LiveReader = reader.DltReader(self, context)
        return found


def parse_dlt(where: str, value: Any, into: str) -> DltSpec:
    """The value of `dlt =`; InvalidInput (13) says what is wrong in it."""
    where = f"{where}: dlt"
    values = {"source": value} if isinstance(value, str) else as_mapping(value, where)
    check_names(values, KEYS, where)
    source = as_text(values.get("source"), f"{where} source")
    module, _, name = source.partition(":")
    if not module or not name.isidentifier():
        raise InvalidInputError(f"{where}: {source!r} is no source: write module:function.")
    if TABLE not in into:
        raise InvalidInputError(f'{where}: a source has tables, so into needs {TABLE}: into = "raw.{TABLE}".')
    with naming_section(where):
        every = parse_duration(as_text(values.get("every", EVERY), f"{where} every"))
    return DltSpec(source, dict(as_mapping(values.get("arguments", {}), f"{where} arguments")), every.total_seconds())
