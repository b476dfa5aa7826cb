"""The engine of a pipeline: Spark, or `embedded` in this process. Values and the rules that choose between them. Pure.

The command line wins over the pipeline file, the file over HEADWATER_ENGINE, and Spark is the default of a pipeline. A
single verb runs embedded unless the command line or the profile of its catalog names a master.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headwater.errors import InvalidInputError
from headwater.work.tasks import DRIVER_ROWS, EMBEDDED

SPARK = "spark"
ENGINES = (SPARK, EMBEDDED)
VARIABLE = "HEADWATER_ENGINE"
LOCAL = "local[*]"
MASTERS = (
    r"local(\[(\*|\d+)(, ?\d+)?\])?|local-cluster\[\d+, ?\d+, ?\d+\]",
    r"yarn|spark://\S+:\d+|k8s://\S+|sc://\S+",
)
FIXED = {
    "spark.master": "write master = ... in its place",
    "spark.remote": "write master = ... in its place",
    "spark.sql.ansi.enabled": "the SQL of a pipeline is ANSI SQL everywhere",
    "spark.sql.session.timeZone": "the SQL of a pipeline has the time zone UTC everywhere",
}
"""The settings that are not to be set, and what to do instead."""
_MASTER = re.compile("|".join(MASTERS), re.ASCII)


@dataclass(frozen=True)
class PipelineEngine:
    """An engine and its settings.

    `name`: `spark` or `embedded`; empty if nobody named one.
    `master`: the address of Spark; empty if nobody named one.
    `settings`: further settings of Spark, by their full names.
    `driver_rows`: the driver may do work of this many rows itself; 0: never.
    """

    name: str = ""
    master: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    driver_rows: int = DRIVER_ROWS

    @property
    def is_spark(self) -> bool:
        return self.name == SPARK

    @property
    def address(self) -> str:
        """The master that a session of this engine is started on."""
        return self.master or LOCAL

    @property
    def shown(self) -> str:
        """The master without what only Spark may see: the address of a Connect server may end with a token."""
        return self.address.partition("/;")[0]

    @property
    def is_local(self) -> bool:
        """True if the executors are threads of the driver."""
        return self.address.startswith("local") and not self.address.startswith("local-cluster")

    @property
    def is_connect(self) -> bool:
        return self.address.startswith("sc://")

    def chosen(self, name: str | None, master: str | None, environment: Mapping[str, str]) -> PipelineEngine:
        """Return the engine of a run. `name` and `master` come from the command line."""
        if name == EMBEDDED and master:
            raise InvalidInputError("--engine embedded has no --master: give one of the two.")
        if master:
            return replace(self, name=SPARK, master=checked_master(master, "--master"))
        told = environment.get(VARIABLE) or SPARK
        return replace(self, name=checked_name(name or self.name or told, f"--engine or {VARIABLE}"))

    def of_verb(self, name: str | None, master: str | None) -> PipelineEngine:
        """Return the engine of a single verb; `self` is that of its catalog's profile."""
        told = replace(self, name=self.name or (SPARK if self.master else EMBEDDED))
        return told.chosen(name, master, {})


def checked_name(name: Any, where: str) -> str:
    if name not in ENGINES:
        raise InvalidInputError(f"{where}: an engine is {' or '.join(map(repr, ENGINES))}, not {name!r}.")
    return str(name)


def checked_master(master: Any, where: str) -> str:
    if not isinstance(master, str) or _MASTER.fullmatch(master) is None:
        raise InvalidInputError(
            f"{where}: {master!r} is no master of Spark. One is local[*], local[2], spark://host:7077, yarn, "
            "k8s://https://host:6443 or sc://host:15002."
        )
    return master


def parse_engine(name: Any, master: Any, spark: Mapping[str, Any], where: str) -> PipelineEngine:
    """Return the engine that a pipeline file or a profile names. `spark`: its table of Spark settings."""
    made = PipelineEngine(
        checked_name(name, f"{where} engine") if name is not None else "",
        checked_master(master, f"{where} master") if master is not None else "",
    )
    if made.name == EMBEDDED and made.master:
        raise InvalidInputError(f'{where} has engine = "embedded" and a master: leave one of them out.')
    settings = dict(_settings(spark, ""))
    rows = settings.pop("driver_rows", DRIVER_ROWS)
    try:
        count = -1 if isinstance(rows, bool) else int(rows)
    except (TypeError, ValueError):
        count = -1
    if count < 0:
        raise InvalidInputError(f"{where} spark.driver_rows is a number of rows, 0 or more, not {rows!r}.")
    found = {key if key.startswith("spark.") else f"spark.{key}": value for key, value in settings.items()}
    for key, instead in FIXED.items():
        if key in found:
            raise InvalidInputError(f"{where} spark has {key!r}: {instead}.")
    return replace(
        made, settings={key: _text(value, f"{where} {key}") for key, value in found.items()}, driver_rows=count
    )


def _settings(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield settings by their dotted names: TOML reads `executor.memory` as a table in a table."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise InvalidInputError(f"{where} is a text, a number or true or false, not {value!r}.")
    return str(value)
