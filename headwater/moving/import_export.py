"""`export` copies a catalog to a plain directory catalog; `import_parquet` creates a table from Parquet files.

An export of a metastore reads one snapshot, however long it takes. Rows are rewritten without history and indices. With
`all_versions` the files of each table are copied, with every recorded version, tag, branch and index.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from headwater.catalog import Catalog, CatalogTable
from headwater.catalog.transport import Name
from headwater.config import look, resolve
from headwater.decoding.files import read_folder
from headwater.errors import InvalidInputError, InvalidTableStateError, UnsupportedOperationError
from headwater.metastore.commit.root_kinds import RootKind
from headwater.model import Table
from headwater.names import ROOT, ObjectId
from headwater.namespace.directory import DirectoryNamespace
from headwater.namespace.metastore import MetastoreNamespace
from headwater.namespace.registered import RegisteredNamespace
from headwater.registries.layout import DEREGISTERED_MARKER, RESERVED_MARKER
from headwater.store import Store, is_local, local_path, write_with
from headwater.tables.layout import STAGED, VERSIONS, manifest_version

LEFT_OUT = frozenset({RESERVED_MARKER, DEREGISTERED_MARKER})


@dataclass(frozen=True)
class Exported:
    """The summary of an export. `declared`: tables without a version, such as streams that were never published."""

    namespaces: int
    tables: int
    declared: int
    slot: int | None
    """The moment of a metastore that was exported."""


def export(
    catalog: Catalog, to: str, all_versions: bool = False, properties: Mapping[str, object] | None = None
) -> Exported:
    """Export to a directory catalog at `to`, which must be missing or empty. `properties`: of the new catalog.

    Errors 13: something is there, or it is inside the catalog; 0: all versions of a catalog that is behind a server.
    One that was interrupted is not whole: remove it and export again.
    """
    found = resolve(to, {**(properties or {}), "impl": "dir"})
    there = look(found)
    if there not in (RootKind.MISSING, RootKind.EMPTY):
        raise InvalidInputError(f"At {to} is {there.value}: export to a new folder.")
    near = catalog.namespace
    target = str(found.properties["root"])
    if isinstance(near, MetastoreNamespace | DirectoryNamespace) and _is_within(near.properties.root, target):
        raise InvalidInputError(f"{to} is inside the catalog itself, which may clean it up: export to another place.")
    slot = _newest_slot(catalog)
    moment = catalog if slot is None else catalog.at(slot)
    return _Export(moment, Catalog(to, **{**(properties or {}), "impl": "dir"}), all_versions, slot).run()


def _newest_slot(catalog: Catalog) -> int | None:
    """Return the newest slot, at which the export reads; None for a catalog that keeps no past."""
    try:
        return catalog.slot
    except UnsupportedOperationError:
        return None


def _is_within(root: str, place: str) -> bool:
    """Return True if a path is inside a root, with links followed."""
    above, below = (
        os.path.realpath(local_path(each)) if is_local(each) else each.rstrip("/") for each in (root, place)
    )
    return f"{below}/".startswith(f"{above}/")


class _Export:
    def __init__(self, source: Catalog, target: Catalog, all_versions: bool, slot: int | None) -> None:
        self.source = source
        self.target = target
        self.all_versions = all_versions
        self.slot = slot
        self.counts = {"namespaces": 0, "tables": 0, "declared": 0}

    def run(self) -> Exported:
        if self.all_versions and not isinstance(self.source.namespace, RegisteredNamespace):
            raise UnsupportedOperationError("All versions are exported where the files are, not through a server.")
        properties = self.source.namespace_properties()
        if properties:
            self.target.alter_namespace(ROOT.names, properties)
        for id, is_namespace in _walk(self.source, ROOT):
            if is_namespace:
                self.target.create_namespace(id.names, self.source.namespace_properties(id.names))
                self.counts["namespaces"] += 1
            else:
                self._table(id)
        return Exported(slot=self.slot, **self.counts)

    def _table(self, id: ObjectId) -> None:
        table = CatalogTable(self.source.namespace, id)  # of a stream table this is its published copy
        described = table.describe(check_declared=True)
        properties = dict(described.properties or {})
        if described.is_only_declared:
            self.target.declare_table(id.names, properties=properties)
            self.counts["declared"] += 1
            return
        if self.all_versions:
            self._copy(id, properties)
        else:
            self.target.create_table(id.names, table.to_batches(), properties=properties)
        self.counts["tables"] += 1

    def _copy(self, id: ObjectId, properties: dict[str, str]) -> None:
        source, target = _near(self.source), _near(self.target)
        self.target.declare_table(id.names, properties=properties)
        old, new = _record(source, id), _record(target, id)
        kept = _recorded(source, old)
        for key in _in_order(source.store, old.location, kept):
            _copy_file(source.store, f"{old.location}/{key}", target.store, f"{new.location}/{key}")
        target.store.delete(f"{new.location}/{RESERVED_MARKER}")


def _walk(catalog: Catalog, parent: ObjectId) -> Iterator[tuple[ObjectId, bool]]:
    """Yield every namespace and table, a namespace before what is in it."""
    for name in catalog.tables(parent.names):
        yield parent.child(name), False
    for name in catalog.namespaces(parent.names):
        yield parent.child(name), True
        yield from _walk(catalog, parent.child(name))


def _near(catalog: Catalog) -> RegisteredNamespace:
    assert isinstance(catalog.namespace, RegisteredNamespace)
    return catalog.namespace


def _record(namespace: RegisteredNamespace, id: ObjectId) -> Table:
    return namespace.operations.find_table(id)


def _recorded(namespace: RegisteredNamespace, table: Table) -> set[int]:
    """Return the versions of a table; all of them have their final manifests now."""
    line = namespace.versions.line(table)
    found = namespace.versions.keeper(line).page(line, None, None, descending=False)
    numbers = {item.number for item in found}
    there = {item.number for item in namespace.versions.storage.all(line)}
    if not numbers <= there:
        raise InvalidTableStateError(f"{table.id} has lost its versions {sorted(numbers - there)[:10]}: see `verify`.")
    return numbers


def _in_order(store: Store, location: str, versions: set[int]) -> list[str]:
    """Return the files of a table without those of no version, manifests last: what can be seen can be read."""
    files: list[str] = []
    manifests: list[tuple[int, str]] = []
    for entry in store.list(f"{location}/"):
        key = entry.key.removeprefix(f"{location}/")
        folder, _, name = key.rpartition("/")
        if folder == VERSIONS:
            number = manifest_version(name)
            if number is not None and number[0] in versions:
                manifests.append((number[0], key))
        elif key not in LEFT_OUT and not key.startswith(f"{STAGED}/"):
            files.append(key)
    return [*files, *(key for _, key in sorted(manifests))]


def _copy_file(source: Store, old: str, target: Store, new: str) -> None:
    path = source.abilities.path
    if path is None:
        target.put(new, source.get(old))
    else:
        write_with(target, new, lambda to: _copied(f"{path}/{old}", to))


def _copied(old: str, new: str) -> None:
    shutil.copyfile(old, new)


def import_parquet(
    catalog: Catalog, name: Name, source: str | os.PathLike[str], mode: str = "create", hive: bool = True
) -> CatalogTable:
    """Create a table from all Parquet files of a folder, or from one file, in one commit. `mode`: as in `create_table`.

    Columns are matched by name: a file without one has nulls there. With `hive`, folders such as `day=7` are columns.
    Error 13: there are no such files, or two of them do not agree on a column.
    """
    return catalog.create_table(name, _reader(os.fspath(source), hive), mode=mode)


def _reader(source: str, hive: bool) -> pa.RecordBatchReader:
    if not os.path.exists(source):
        raise InvalidInputError(f"There is no file or folder {source!r}.")
    files = [source] if os.path.isfile(source) else _files(source)
    if not files:
        raise InvalidInputError(f"There is no Parquet file (*.parquet) in {source!r}.")
    return read_folder(files, None if os.path.isfile(source) else source, hive, f"{source!r} cannot be read as Parquet")


def _files(folder: str) -> list[str]:
    """Return the Parquet files of a folder, no hidden or temporary ones. InvalidInput (13) for a link out of it."""
    found: list[str] = []
    inside = os.path.join(os.path.realpath(folder), "")
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        found += [os.path.join(at, name) for name in sorted(names) if _is_data(name)]
    for file in found:
        if not os.path.realpath(file).startswith(inside):
            raise InvalidInputError(
                f"{os.path.relpath(file, folder)!r} is a link to a file outside of {folder!r}, which is not followed: "
                "copy the file, or take the link away."
            )
    return found


def _is_data(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith((".", "_"))
