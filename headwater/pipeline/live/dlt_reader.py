"""Reader of a source of dlt: one run of dlt is one batch, with the state of dlt as its offset.

dlt extracts and normalizes in a folder that lasts as long as the reader. Its destination keeps the files of the load
package instead of loading them. They land in the commit that keeps the state, so a run that was killed is done again
from the state before it.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError
from headwater.imports import when_used
from headwater.loads.dispositions import STATES
from headwater.loads.front import dlt_destination
from headwater.pipeline.live.live_source import LiveBatch, LiveContext
from headwater.pipeline.live.live_tables import RowsPart, fitted_table
from headwater.pipeline.live.source_specs import DltSpec
from headwater.streams.log.landing import LandingReport
from headwater.streams.serving.derived_columns import beside

if TYPE_CHECKING:
    from headwater.loads.destination import Package

dlt = when_used("dlt")
destination = when_used("headwater.loads.destination")
TELEMETRY = "RUNTIME__DLTHUB_TELEMETRY"
Row = dict[str, Any]


class DltReader:
    """A source of dlt from the state in the catalog on."""

    def __init__(self, spec: DltSpec, context: LiveContext) -> None:
        self._spec, self._context = spec, context
        self._offset = context.state.offset or {}
        self._folder: str | None = None
        self._ran = False
        self._clock = metastore_of(context.catalog.namespace).clock
        self._next = 0

    @property
    def is_caught_up(self) -> bool:
        """True after one run: a source of dlt gives all that it has."""
        return self._ran

    def take(self, wait_s: float) -> LiveBatch | None:
        """Run the source, unless it ran a short time ago; return its load packages as one batch."""
        if self._clock.now_ms() < self._next:
            return None
        self._next = self._clock.now_ms() + round(1000 * self._spec.every_s)
        self.close()
        self._folder = tempfile.mkdtemp(prefix="headwater-dlt-")
        packages = self._run(self._folder)
        self._ran = True
        if not packages:
            return None
        parts = [
            DltPart(self._context.table(table), table, tuple(files), package, self._context)
            for package in packages
            for table, files in package.files.items()
            if table != STATES
        ]
        return LiveBatch(parts, self._after(packages))

    def acknowledge(self, batch: LiveBatch) -> None:
        """Go on from the state after a batch, and delete its files."""
        self._offset = batch.offset
        self.close()

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _run(self, folder: str) -> list[Package]:
        """Run dlt in a folder, and return its load packages."""
        kept = destination.KeptPackages(folder, self._offset.get("schemas", {}), _state(self._offset.get("state")))
        made = dlt_destination(self._context.catalog, into=self._context.into, keeps=kept)
        name = self._context.source
        os.environ.setdefault(TELEMETRY, "false")  # a pipeline of ours tells nobody that it ran
        with beside(Path(self._context.folder)):
            try:
                source = self._made_source()
                pipeline = dlt.pipeline(name, destination=made, dataset_name=name, pipelines_dir=folder)
                pipeline.run(source)
            except LanceNamespaceError:
                raise
            except Exception as error:  # of the source, of whatever kind it is
                raise _failure(self._spec, error) from error
        found: list[Package] = kept.packages
        return found

    def _made_source(self) -> Any:
        module, _, name = self._spec.source.partition(":")
        try:
            make: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise InvalidInputError(f"The source {self._spec.source!r} of dlt cannot be imported: {error}.") from None
        return make(**self._spec.arguments)

    def _after(self, packages: Sequence[Package]) -> dict[str, Any]:
        """Return the offset after load packages: the newest state, and the schemas."""
        schemas, state = dict(self._offset.get("schemas", {})), self._offset.get("state")
        for package in packages:
            schemas[package.client.schema.name] = package.client.stored_schema()
            for row in package.rows(STATES):
                state = {name: _plain(value) for name, value in row.items()}
        return {"schemas": schemas, "state": state}


@dataclass(frozen=True)
class DltPart:
    """Files of one table of a load package."""

    table: str
    name: str
    files: tuple[str, ...]
    package: Package
    context: LiveContext
    origin: str = ""

    @property
    def is_whole(self) -> bool:
        load = self.package.client.load_of(self.name)
        return load.is_snapshot or load.is_made_again

    def land(self, catalog: Catalog, source: str) -> LandingReport:
        """Land the files inside the open transaction of `catalog`."""
        client, spec = self.package.client, self.context.spec_of(self.table)
        if self.table not in catalog:
            columns = {each.name: each.type for each in client.columns_of(self.name)}
            fitted_table(
                catalog, RowsPart(self.table, (), columns=columns, keys=client.load_of(self.name).keys, spec=spec)
            )
        return client.take(catalog, self.package.load_id, self.name, self.files, source, spec.checks)


def _plain(value: object) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _state(kept: Row | None) -> Row | None:
    return None if kept is None else {**kept, "created_at": datetime.fromisoformat(kept["created_at"])}


_SECRET_PART = re.compile(r"(\b\w+://)(?:[^\s/@]*@)?([^\s?#'\"]*)(?:[?#][^\s'\"]*)?")
"""The parts of an address that may hold a secret: an error of HTTP names the whole address, and ends in the record."""


def _failure(spec: DltSpec, error: Exception) -> LanceNamespaceError:
    """Return the failure of a run in one sentence: its innermost cause, without the state of dlt around it."""
    cause: BaseException = error
    while (inner := getattr(cause, "exception", None) or cause.__cause__) is not None and inner is not cause:
        cause = inner
    if isinstance(cause, LanceNamespaceError):
        return cause
    told = _SECRET_PART.sub(r"\1\2", str(cause).strip().split("\n")[0])[:500]
    return ServiceUnavailableError(f"The source {spec.source} of dlt failed: {type(cause).__name__}: {told}")
