"""A catalog as a destination of dlt: `dlt.pipeline(destination=headwater.dlt_destination("./lake"))`.

Jobs of a load package do nothing by themselves. When all are done, dlt calls `complete_load`, and one transaction takes
every file of the package, the schema, the state of the pipeline and the record of the load. A run that is killed before
it has committed nothing. A package that is completed again finds its record and does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.decoding.parquet import ParquetRows
from headwater.errors import LanceNamespaceError, UnsupportedOperationError
from headwater.loads.dispositions import (
    APPEND,
    DELETED,
    LOADS,
    STATES,
    VERSIONS,
    TableLoad,
    check_fits,
    in_order,
    load_of,
    whole_rows,
    with_deletes,
)
from headwater.loads.front import INTO, named
from headwater.names import format_name
from headwater.streams.log.checks import Check
from headwater.streams.log.landing import LandingReport
from headwater.streams.sources.formats import total
from headwater.tables.expressions import quoted

try:
    from dlt.common import json, logger
    from dlt.common.configuration import configspec
    from dlt.common.configuration.container import Container
    from dlt.common.destination import Destination, DestinationCapabilitiesContext
    from dlt.common.destination.client import (
        DestinationClientDwhConfiguration,
        JobClientBase,
        RunnableLoadJob,
        StateInfo,
        StorageSchemaInfo,
        WithStateSync,
    )
    from dlt.common.destination.exceptions import DestinationTerminalException, DestinationUndefinedEntity
    from dlt.common.libs.pyarrow import columns_to_arrow
    from dlt.common.schema import Schema
    from dlt.common.storages.load_package import LoadPackageStateInjectableContext, PackageStorage
    from dlt.destinations.impl.lance.type_mapper import LanceTypeMapper
except ModuleNotFoundError as missing:
    raise UnsupportedOperationError(
        f"Loading with dlt needs the module {missing.name}: pip install 'headwater[dlt]'."
    ) from None

OWN = (STATES, VERSIONS, LOADS)
"""Tables that dlt keeps for itself."""


@configspec
class HeadwaterConfiguration(DestinationClientDwhConfiguration):
    """Configuration of the destination.

    `catalog`: a path, an address, a profile, or an open `Catalog`.
    `into`: the name of a table, with `{dataset}` and `{table}`.
    `publish`: publish the loaded tables in the commit of the rows.
    `keeps`: what takes the load packages in place of the catalog.
    """

    destination_type: Any = field(default="headwater", init=False, repr=False, compare=False)
    catalog: Any = None
    into: str = INTO
    publish: bool = True
    keeps: Any | None = None


class WaitingJob(RunnableLoadJob):
    """The job of one file. It is done at once: the commit of the package takes the file. One that dlt does not run
    would have the loader wait for a second."""

    def run(self) -> None:
        """Do nothing."""


class HeadwaterClient(JobClientBase, WithStateSync):
    """The client of one schema in one dataset."""

    def __init__(
        self, schema: Schema, config: HeadwaterConfiguration, capabilities: DestinationCapabilitiesContext
    ) -> None:
        super().__init__(schema, config, capabilities)
        given = config.catalog
        self.catalog: Catalog = given if isinstance(given, Catalog) else Catalog(given)
        self.dataset = config.normalize_dataset_name(schema) or ""

    def __enter__(self) -> HeadwaterClient:
        with _terminal():
            metastore_of(self.catalog.namespace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the catalog open: it has no connection that could be closed."""

    def name_of(self, table: str) -> tuple[str, ...]:
        """Return the name of a table in the catalog."""
        return named(self.config.into, self.dataset, table)

    def has(self, table: str, within: Catalog | None = None) -> bool:
        catalog = self.catalog if within is None else within
        return catalog.is_there and list(self.name_of(table)) in catalog

    # Before the jobs: nothing is written -------------------------------------------------------------------------

    def is_storage_initialized(self) -> bool:
        return self.config.keeps is not None or self.has(LOADS)

    def initialize_storage(self, truncate_tables: Iterable[str] | None = None) -> None:
        """Do nothing: the commit of the package creates and truncates."""

    def drop_tables(self, *tables: str, delete_schema: bool = True) -> None:
        """Do nothing: the commit of the package drops the tables that its state names."""

    def drop_storage(self) -> None:
        for table in (*self.schema.data_table_names(), *OWN):
            if self.has(table):
                self.catalog.drop_table(list(self.name_of(table)))

    def verify_schema(self, only_tables: Iterable[str] | None = None, new_jobs: object = None) -> Any:
        """Raise for what a stream table cannot do, before a job runs."""
        found = super().verify_schema(only_tables, new_jobs)
        for table in found:
            load = self._load_of(table)
            if table["name"] not in OWN and self.has(load.name):
                with _terminal():
                    check_fits(
                        load, self._shown(load.name), self.catalog[list(self.name_of(load.name))].definition.keys
                    )
        return found

    def update_stored_schema(
        self, only_tables: Iterable[str] | None = None, expected_update: object = None, force: bool = False
    ) -> Any:
        return super().update_stored_schema(only_tables, expected_update, force)

    def create_load_job(self, table: object, file_path: str, load_id: str, restore: bool = False) -> WaitingJob:
        return WaitingJob(file_path)

    # The commit --------------------------------------------------------------------------------------------------

    def complete_load(self, load_id: str) -> None:
        """Commit a load package: rows, schema, state and record in one transaction."""
        package = Container()[LoadPackageStateInjectableContext]
        files = _files_of(package.storage, load_id)
        if self.config.keeps is not None:
            self.config.keeps.keep(self, load_id, files)
            return
        state = package.state
        dropped = [each["name"] for each in state.get("dropped_tables", [])]
        emptied = [each["name"] for each in state.get("truncated_tables", [])]
        message = f"dlt load {load_id} of {self.schema.name}"
        with _terminal():
            self.catalog.run(lambda tx: self._commit(tx, load_id, files, dropped, emptied), message)

    def _commit(
        self, tx: Catalog, load_id: str, files: Mapping[str, list[str]], dropped: list[str], emptied: list[str]
    ) -> None:
        if self._rows(LOADS, f"load_id = {quoted(load_id)}", tx):
            return
        for table in dropped:
            if self.has(table, tx):
                tx.drop_table(list(self.name_of(table)))
        for table in emptied:
            if self.has(table, tx):
                self._make_again(tx, table)
        for table in files:
            self.take(tx, load_id, table, files[table], f"dlt:{self.schema.name}")
        self._record(tx, load_id)
        loaded = [table for table in files if self.config.publish and table not in OWN]
        own = [table for table in OWN if self.has(table, tx)]
        tx.publish([list(self.name_of(table)) for table in (*loaded, *own)])

    def columns_of(self, table: str) -> pa.Schema:
        """Return the columns of a table as dlt's schema has them."""
        found: pa.Schema = columns_to_arrow(self.schema.get_table_columns(table), self.capabilities, "UTC")
        return found

    def load_of(self, table: str) -> TableLoad:
        """Return how a table is loaded."""
        return self._load_of(self.prepare_load_table(table))

    def take(
        self, tx: Catalog, load_id: str, table: str, paths: Sequence[str], source: str, checks: Sequence[Check] = ()
    ) -> LandingReport:
        """Take the files of one table inside an open transaction."""
        load, columns = self.load_of(table), self.columns_of(table)
        stream = self._opened(tx, load, columns)
        kinds = {field.name: field.type for field in columns} if load.disposition != APPEND else {}
        batches = [list(paths)] if load.is_whole else [[path] for path in paths]
        reports = []
        for group in batches:
            found = [whole_rows(ParquetRows(path).table(), kinds) for path in group]
            rows = in_order(load, pa.concat_tables(found, promote_options="permissive"))
            how: dict[str, Any] = {"source": source, "token": f"{load_id}:{Path(group[0]).name}", "checks": checks}
            if load.is_snapshot:
                done = stream.ingest(rows, "snapshot", allow_empty=True, **how)
            elif load.hard_delete is not None:
                done = stream.ingest(with_deletes(load, rows), "op", op_column=DELETED, **how)
            else:
                done = stream.ingest(rows, **how)
            if done.quarantined:
                logger.warning(f"{done.quarantined} rows of {self._shown(table)} are in its quarantine.")
            reports.append(done)
        return total(reports)

    def _opened(self, tx: Catalog, load: TableLoad, columns: pa.Schema) -> Any:
        """Return the stream table of a load, which is created, or made again, where it has to be."""
        name = list(self.name_of(load.name))
        if not self.has(load.name, tx):
            needed = [field.with_nullable(field.name not in load.keys) for field in columns]
            return tx.create_stream_table(name, pa.schema(needed), load.keys)
        check_fits(load, self._shown(load.name), tx[name].definition.keys)
        if load.is_made_again and tx[name].position:
            self._make_again(tx, load.name)
        return tx[name]

    def _make_again(self, tx: Catalog, table: str) -> None:
        name = list(self.name_of(table))
        definition = tx[name].definition
        tx.drop_table(name)
        tx.create_stream_table(name, definition)

    def _record(self, tx: Catalog, load_id: str) -> None:
        """Keep the schema, and that the package was loaded."""
        now = datetime.fromtimestamp(metastore_of(self.catalog.namespace).clock.now_ms() / 1000, UTC)
        version = {**self.stored_schema(), "inserted_at": now}
        load = {
            "load_id": load_id,
            "schema_name": self.schema.name,
            "status": 0,
            "inserted_at": now,
            "schema_version_hash": self.schema.version_hash,
        }
        for table, row in ((VERSIONS, version), (LOADS, load)):
            self._opened(tx, self._load_of({"name": table}), self.columns_of(table)).upsert([row])

    def stored_schema(self) -> dict[str, Any]:
        """Return the schema as a row of dlt's own table, without its time."""
        return {
            "version": self.schema.version,
            "engine_version": self.schema.ENGINE_VERSION,
            "schema_name": self.schema.name,
            "version_hash": self.schema.stored_version_hash,
            "schema": json.dumps(self.schema.to_dict()),
        }

    # What is stored ----------------------------------------------------------------------------------------------

    def get_stored_schema(self, schema_name: str | None = None) -> StorageSchemaInfo | None:
        if self.config.keeps is not None:
            return _schema_info(self.config.keeps.schemas.get(schema_name))
        wanted = f"schema_name = {quoted(schema_name)}" if schema_name else None
        found = self._rows(VERSIONS, wanted)
        newest = max(found, key=lambda row: row["inserted_at"], default=None)
        return None if newest is None else StorageSchemaInfo.from_normalized_mapping(newest, self.schema.naming)

    def get_stored_schema_by_hash(self, version_hash: str) -> StorageSchemaInfo | None:
        if self.config.keeps is not None:
            return None
        found = self._rows(VERSIONS, f"version_hash = {quoted(version_hash)}")
        return StorageSchemaInfo.from_normalized_mapping(found[0], self.schema.naming) if found else None

    def get_stored_state(self, pipeline_name: str) -> StateInfo | None:
        if self.config.keeps is not None:
            kept = self.config.keeps.state
            return None if kept is None else StateInfo.from_normalized_mapping(kept, self.schema.naming)
        if not self.has(LOADS):
            raise DestinationUndefinedEntity(f"{self._shown(LOADS)} is not there: nothing was loaded yet.")
        found = self._rows(STATES, f"pipeline_name = {quoted(pipeline_name)}")
        return StateInfo.from_normalized_mapping(found[0], self.schema.naming) if found else None

    def _rows(self, table: str, filter: str | None, within: Catalog | None = None) -> list[dict[str, Any]]:
        catalog = self.catalog if within is None else within
        if not self.has(table, catalog):
            return []
        return list(catalog[list(self.name_of(table))].to_arrow(filter=filter).to_pylist())

    def _load_of(self, table: Mapping[str, object]) -> TableLoad:
        with _terminal():
            return load_of(table)

    def _shown(self, table: str) -> str:
        return format_name(self.name_of(table))


@dataclass(frozen=True)
class Package:
    """A load package that is complete. `files`: by table, in order."""

    client: HeadwaterClient
    load_id: str
    files: Mapping[str, Sequence[str]]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a small table."""
        return [row for path in self.files.get(table, ()) for row in ParquetRows(path).table().to_pylist()]


@dataclass
class KeptPackages:
    """Takes load packages in place of the catalog, and gives dlt the state and the schemas of before."""

    folder: str
    schemas: Mapping[str, Mapping[str, Any]]
    state: Mapping[str, Any] | None
    packages: list[Package] = field(default_factory=list)

    def keep(self, client: HeadwaterClient, load_id: str, files: Mapping[str, Sequence[str]]) -> None:
        """Keep a package. Its files are linked, since dlt moves its own when a package is complete."""
        kept: dict[str, list[str]] = {}
        for table, paths in files.items():
            for path in paths:
                kept.setdefault(table, []).append(os.path.join(self.folder, os.path.basename(path)))
                os.link(path, kept[table][-1])
        self.packages.append(Package(client, load_id, kept))


def _schema_info(kept: Mapping[str, object] | None) -> StorageSchemaInfo | None:
    return None if kept is None else StorageSchemaInfo(**kept, inserted_at=datetime.fromtimestamp(0, UTC))


class HeadwaterDestination(Destination[HeadwaterConfiguration, HeadwaterClient]):
    """The destination that dlt knows, by its module and name."""

    spec = HeadwaterConfiguration

    def __init__(self, catalog: object = None, **config: object) -> None:
        super().__init__(catalog=catalog, destination_name=config.pop("destination_name", "headwater"), **config)

    @property
    def client_class(self) -> type[HeadwaterClient]:
        return HeadwaterClient

    def _raw_capabilities(self) -> DestinationCapabilitiesContext:
        caps = DestinationCapabilitiesContext.generic_capabilities("parquet")
        caps.supported_loader_file_formats = ["parquet"]
        caps.type_mapper = LanceTypeMapper
        caps.max_table_nesting = 0  # nested values are JSON in the row
        caps.supported_merge_strategies = ["upsert", "delete-insert"]
        caps.supported_replace_strategies = ["truncate-and-insert"]
        caps.decimal_precision = (38, 9)
        caps.wei_precision = (38, 0)
        caps.timestamp_precision = 6
        return caps


HeadwaterDestination.register()


def _files_of(storage: PackageStorage, load_id: str) -> dict[str, list[str]]:
    """Return the files of a load package by table, in the order of their names."""
    found: dict[str, list[str]] = {}
    folder = storage.get_job_state_folder_path(load_id, PackageStorage.COMPLETED_JOBS_FOLDER)
    for job in sorted(storage.get_load_package_jobs(load_id)["completed_jobs"], key=lambda each: each.file_name()):
        path = storage.storage.make_full_path(f"{folder}/{job.file_name()}")
        found.setdefault(job.table_name, []).append(path)
    return found


@contextmanager
def _terminal() -> Iterator[None]:
    """Raise an error of the catalog as one after which dlt does not try again."""
    try:
        yield
    except LanceNamespaceError as error:
        raise DestinationTerminalException(str(error)) from error
