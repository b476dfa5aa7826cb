"""A catalog by its dotted names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.arguments import check_options, checked
from headwater.catalog.batch import Batch
from headwater.catalog.past import Past
from headwater.catalog.sides import Side, side_of
from headwater.catalog.table import CatalogTable
from headwater.catalog.transactions import MAX_RUNS, CatalogTransaction, run
from headwater.config import Opening
from headwater.errors import InvalidInputError, LanceNamespaceError, NamespaceNotFoundError, UnsupportedOperationError
from headwater.names import ObjectId, check_delimiter, format_name, object_id, parse_name
from headwater.namespace.abilities import abilities_of
from headwater.namespace.mirror import MirrorState
from headwater.namespace.requests import build
from headwater.namespace.row_streams import write_rows
from headwater.paging import all_pages
from headwater.streams.definition import define, fields_of
from headwater.tables.write.input_rows import fit, reader_of

Name = str | Sequence[str]
Answer = TypeVar("Answer")


@checked
class Catalog(Past):
    """A catalog by path, URI, profile name, or an open `LanceNamespace`.

    Names are joined by dots, and one with a dot in it stands in quotes (`prod."a.b"`) or is given as a list; with a
    `delimiter` of your own, names are joined by that and nothing is quoted.
    Reading a catalog that is not there is an error; creating a namespace or a table makes it, and says so.
    """

    def __init__(self, target: str | LanceNamespace | None = None, **properties: Any) -> None:
        if isinstance(target, LanceNamespace):
            check_options(properties, ("delimiter",), "A catalog over an open namespace")
        self._opening = None if isinstance(target, LanceNamespace) else Opening(target, properties)
        self.namespace: LanceNamespace = target if isinstance(target, LanceNamespace) else self._opening.namespace  # type: ignore[union-attr]
        self._delimiter: str | None = properties.get("delimiter") or None
        if self._delimiter is not None:
            check_delimiter(self._delimiter)

    @property
    def _there(self) -> LanceNamespace:
        """The namespace, for every call that makes no catalog."""
        return self._opening.reading() if self._opening else self.namespace

    @property
    def _made(self) -> LanceNamespace:
        """The namespace, for a call that makes the catalog if it is not there."""
        return self._opening.writing() if self._opening else self.namespace

    @property
    def _side(self) -> Side:
        return side_of(self._there)

    @property
    def is_there(self) -> bool:
        """Whether there is a catalog: one that is not there yet is made by the first write."""
        try:
            return bool(self._there)
        except NamespaceNotFoundError:
            return False

    def __repr__(self) -> str:
        return f"Catalog({self.namespace!r})"

    def __dir__(self) -> list[str]:
        return sorted(name for name in super().__dir__() if not name.startswith("_"))

    def __getitem__(self, name: Name) -> Any:
        """The table of a name: a `CatalogTable`, or a `CatalogStream` if it is a stream table."""
        there, id = self._there, self._id(name)
        table = CatalogTable(there, id)
        table.describe()
        stream = side_of(there).stream_table(table)
        return table if stream is None else stream

    def __contains__(self, name: Name) -> bool:
        there = self._there
        try:
            there.table_exists(build(api.TableExistsRequest, id=self._list(name)))
        except LanceNamespaceError as error:
            if int(error.code) in (1, 4):
                return False
            raise
        return True

    def __iter__(self) -> Iterator[str]:
        """The full name of every table, sorted."""
        return iter(sorted(self._format(id) for id in self._all_tables(ObjectId())))

    def __len__(self) -> int:
        """How many tables there are."""
        return sum(1 for _ in self._all_tables(ObjectId()))

    def __bool__(self) -> bool:
        """A catalog is there, however many tables it has."""
        return True

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    # Namespaces

    def create_namespace(self, name: Name, properties: Mapping[str, str] | None = None, exist_ok: bool = False) -> None:
        """Create a namespace, and the missing ones above it."""
        id = self._id(name)
        for above in id.ancestors:
            self._made.create_namespace(build(api.CreateNamespaceRequest, id=list(above.names), mode="ExistOk"))
        mode = "ExistOk" if exist_ok else "Create"
        request = build(api.CreateNamespaceRequest, id=list(id.names), mode=mode, properties=dict(properties or {}))
        self._made.create_namespace(request)

    def namespace_properties(self, name: Name = "") -> dict[str, str]:
        """The properties of a namespace (of the root when not told)."""
        answer = self._there.describe_namespace(build(api.DescribeNamespaceRequest, id=self._list(name)))
        return dict(answer.properties or {})

    def alter_namespace(
        self, name: Name, properties: Mapping[str, str] | None = None, removed: Iterable[str] = ()
    ) -> dict[str, str]:
        """Set and remove properties of a namespace; the others stay. Not every kind of catalog can."""
        alter = abilities_of(self._made if self._id(name).is_root else self._there).alter_namespace
        if alter is None:
            raise UnsupportedOperationError("This catalog cannot change the properties of a namespace.")
        answer = alter({"id": self._list(name), "properties": dict(properties or {}), "removed": list(removed)})
        return dict(answer.properties or {})

    def drop_namespace(self, name: Name, cascade: bool = False) -> None:
        behavior = "Cascade" if cascade else "Restrict"
        self._there.drop_namespace(build(api.DropNamespaceRequest, id=self._list(name), behavior=behavior))

    def namespaces(self, parent: Name = "") -> list[str]:
        """Names of the namespaces in a namespace (the root when not told)."""
        request = build(api.ListNamespacesRequest, id=self._list(parent))
        return list(all_pages(self._there.list_namespaces, request, "namespaces"))

    # Tables

    def tables(self, parent: Name = "") -> list[str]:
        """Names of the tables in a namespace (the root when not told)."""
        request = build(api.ListTablesRequest, id=self._list(parent))
        return list(all_pages(self._there.list_tables, request, "tables"))

    def create_table(
        self,
        name: Name,
        data: Any = None,
        mode: str = "create",
        properties: Mapping[str, str] | None = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
    ) -> CatalogTable:
        """Create a table, and the namespaces above it: from Arrow data, a frame, a list of rows, or empty by a schema.

        `mode` is create, exist_ok or overwrite. Equal-length lists of floats in rows become vectors.
        """
        rows = _new_rows(data, schema)
        id = self._with_namespace(name)
        request = build(api.CreateTableRequest, id=list(id.names), mode=mode, properties=dict(properties or {}) or None)
        write_rows(self._made, "create_table", request, rows)
        return CatalogTable(self.namespace, id)

    def declare_table(
        self, name: Name, location: str | None = None, properties: Mapping[str, str] | None = None
    ) -> str:
        """Reserve a name and a place for a table that another program will write; the place."""
        id = self._with_namespace(name)
        request = build(
            api.DeclareTableRequest, id=list(id.names), location=location, properties=dict(properties or {}) or None
        )
        return str(self._made.declare_table(request).location)

    def register_table(
        self, name: Name, location: str, mode: str = "create", properties: Mapping[str, str] | None = None
    ) -> CatalogTable:
        """Give a Lance dataset inside the root a name in the catalog. No data moves."""
        id = self._with_namespace(name)
        request = build(
            api.RegisterTableRequest,
            id=list(id.names),
            location=location,
            mode=mode,
            properties=dict(properties or {}) or None,
        )
        self._made.register_table(request)
        return CatalogTable(self.namespace, id)

    def deregister_table(self, name: Name) -> str:
        """Take a table out of the catalog and leave its data where it is; where that is."""
        answer = self._there.deregister_table(build(api.DeregisterTableRequest, id=self._list(name)))
        return str(answer.location)

    def rename_table(self, name: Name, new: Name) -> None:
        """Give a table another name, also in another namespace. No data moves."""
        id, to = self._id(name), self._id(new)
        request = build(
            api.RenameTableRequest, id=list(id.names), new_table_name=to.name, new_namespace_id=list(to.parent.names)
        )
        self._there.rename_table(request)

    def rename_namespace(self, name: Name, new: Name) -> None:
        """Give a namespace another name, also in another namespace, with all below it. No data moves."""
        rename = abilities_of(self._there).rename_namespace
        if rename is None:
            raise UnsupportedOperationError("This catalog cannot rename a namespace: a metastore catalog can.")
        rename({"id": self._list(name), "new_id": self._list(new)})

    def alias(self, name: Name, other: Name) -> None:
        """Let a namespace or table be found as `other` too, in the same namespace. An alias is not listed."""
        self._side.alias(self._id(name), self._alias(name, other))

    def unalias(self, name: Name, other: Name) -> None:
        self._side.unalias(self._id(name), self._alias(name, other))

    def _alias(self, name: Name, other: Name) -> str:
        """The alias as one name: given alone, or with the names of the namespace that the object is in."""
        id, given = self._id(name), self._id(other)
        if given.level == 1 or (not id.is_root and given.level and given.parent == id.parent):
            return given.name
        raise InvalidInputError(
            f"An alias stands beside the name it is for: {other} is in another namespace than {name}."
        )

    def drop_table(self, name: Name) -> None:
        self._there.drop_table(build(api.DropTableRequest, id=self._list(name)))

    def batch(self) -> Batch:
        """Several changes that are made all at once, or not at all: `with catalog.batch() as batch: ...`."""
        return Batch(self._there, self._id)

    # Stream tables

    def create_stream_table(
        self,
        name: Name,
        schema: Any,
        keys: Sequence[str] | str = (),
        sequence: Sequence[str] | str = (),
        partition_by: Sequence[Any] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Any:
        """A table whose rows come from a log of changes (docs/streams.md), and the namespaces above it.

        `keys` tell rows apart (none: an append-only log), `sequence` orders the changes of a key.
        """
        definition = define(schema, keys, sequence, partition_by, properties)
        id, made = self._with_namespace(name), self._made
        return side_of(made).create_stream_table(CatalogTable(made, id), definition)

    def publish(self, names: str | Sequence[Name]) -> list[Any]:
        """Make the serving copies of stream tables equal to their newest state, all at one slot."""
        wanted = [names] if isinstance(names, str) else names
        return side_of(self._made).publish([self._id(name) for name in wanted])

    # Time

    def transaction(self, message: str = "", author: str | None = None) -> CatalogTransaction:
        """Any number of changes, all at once or not at all: `with catalog.transaction("why") as tx: tx[...]...`."""
        return side_of(self._made).begin(message, author, self._beside)

    def run(self, work: Callable[[Catalog], Answer], message: str = "", attempts: int = MAX_RUNS) -> Answer:
        """Do `work` in a transaction, and again from the start when another writer was first, so often at most."""
        return run(lambda: self.transaction(message), work, attempts, self._made)

    def at(self, moment: int | datetime | str) -> Catalog:
        """The catalog as it was at a slot, a time with a zone or a named snapshot: names, properties, schemas and rows.

        It cannot be changed. Tags and branches, which Lance keeps in a table's folder, are those of now.
        """
        return self._beside(self._side.at(moment))

    @property
    def mirror(self) -> MirrorState:
        """Whether a read-only `__manifest` follows this catalog for plain Lance clients, and which slot it shows."""
        return self._side.mirrored.mirror_state()

    @mirror.setter
    def mirror(self, on: bool) -> None:
        side_of(self._made).mirrored.turn_mirror(on)

    def close(self) -> None:
        """Wait for what goes on beside: housekeeping, and the mirror."""
        close = abilities_of(self.namespace).close
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failed: object) -> None:
        self.close()

    def _beside(self, namespace: LanceNamespace) -> Catalog:
        """The same catalog by another namespace."""
        return Catalog(namespace, **({} if self._delimiter is None else {"delimiter": self._delimiter}))

    def tree(self) -> str:
        """The whole catalog as a drawing."""
        return "\n".join([".", *self._branches(ObjectId(), "")])

    def _branches(self, parent: ObjectId, indent: str) -> Iterator[str]:
        folders = self.namespaces(parent.names)
        tables = self.tables(parent.names)
        for position, name in enumerate((*folders, *tables), start=1):
            last = position == len(folders) + len(tables)
            is_folder = position <= len(folders)
            yield f"{indent}{'└── ' if last else '├── '}{name}{'/' if is_folder else ''}"
            if is_folder:
                yield from self._branches(parent.child(name), indent + ("    " if last else "│   "))

    def _all_tables(self, parent: ObjectId) -> Iterator[ObjectId]:
        for name in self.tables(parent.names):
            yield parent.child(name)
        for name in self.namespaces(parent.names):
            yield from self._all_tables(parent.child(name))

    def _with_namespace(self, name: Name) -> ObjectId:
        """The id of a table to be made, once the namespaces above it are there."""
        id = self._id(name)
        if id.level > 1:
            self.create_namespace(id.parent.names, exist_ok=True)
        return id

    def _id(self, name: Name) -> ObjectId:
        return ObjectId(parse_name(name, self._delimiter)) if isinstance(name, str) else object_id(name)

    def _format(self, id: ObjectId) -> str:
        return format_name(id.names) if self._delimiter is None else id.format(self._delimiter)

    def _list(self, name: Name) -> list[str]:
        return list(self._id(name).names)


def _new_rows(data: Any, given: pa.Schema | Mapping[str, Any] | None) -> pa.RecordBatchReader:
    """The rows of a new table: in the schema's types if there is one, none if there are none."""
    if given is None:
        return reader_of(data, vectors=True)
    schema = pa.schema(fields_of(given))
    return schema.empty_table().to_reader() if data is None else fit(reader_of(data), schema)
