"""A directory catalog as a plain dictionary: what each operation must answer, in each mode."""

from __future__ import annotations

from dataclasses import dataclass, field

Id = tuple[str, ...]
Outcome = int | None


@dataclass
class ModelTable:
    """A table: where it is, and its rows (None when it is only declared)."""

    location: str
    rows: int | None


@dataclass
class Model:
    """The catalog's names, and the folders that markers hide."""

    mode: str
    namespaces: dict[Id, dict[str, str]] = field(default_factory=dict)
    tables: dict[Id, ModelTable] = field(default_factory=dict)
    hidden: dict[str, int | None] = field(default_factory=dict)
    """`<name>.lance` folders of deregistered tables, and the rows in them. Only where folders are listed."""
    loose: dict[str, int | None] = field(default_factory=dict)
    """Other folders of deregistered tables."""

    @property
    def flat(self) -> bool:
        return self.mode == "V1"

    def children(self, parent: Id, kind: str) -> list[str]:
        held = self.namespaces if kind == "namespace" else self.tables
        return sorted(id[-1] for id in held if id[:-1] == parent)

    def is_namespace(self, id: Id) -> bool:
        return not id or id in self.namespaces

    def below(self, id: Id) -> list[Id]:
        return [other for other in (*self.namespaces, *self.tables) if len(other) > len(id) and other[: len(id)] == id]

    def create_namespace(self, id: Id, mode: str, properties: dict[str, str]) -> Outcome:
        if self.flat:
            return 0
        if not self.is_namespace(id[:-1]):
            return 1
        if id in self.tables or (id in self.namespaces and mode == "Create"):
            return 2
        if id in self.namespaces and mode == "Overwrite" and self.below(id):
            return 3
        if id not in self.namespaces or mode == "Overwrite":
            self.namespaces[id] = properties
        return None

    def drop_namespace(self, id: Id, behavior: str, mode: str) -> Outcome:
        if self.flat:
            return 0
        if id not in self.namespaces:
            return None if mode == "Skip" else 1
        if self.below(id) and behavior == "Restrict":
            return 3
        for gone in (*self.below(id), id):
            self.namespaces.pop(gone, None)
            self.tables.pop(gone, None)
        return None

    def missing(self, id: Id) -> Outcome:
        """The code of an operation on a table that is not there."""
        if self.flat and len(id) > 1:
            return 0
        if id in self.tables:
            return None
        return 4 if self.is_namespace(id[:-1]) else 1

    def create_table(self, id: Id, rows: int | None, location: str) -> Outcome:
        """Also DeclareTable, with no rows. `location` is where the catalog says it put the table."""
        if self.flat and len(id) > 1:
            return 0
        if not self.is_namespace(id[:-1]):
            return 1
        found = self.tables.get(id)
        if id in self.namespaces or (found and (rows is None or found.rows is not None)):
            return 5
        if self.flat and f"{id[-1]}.lance" in self.hidden:
            return 5
        if found:
            found.rows = rows
        else:
            self.tables[id] = ModelTable(location, rows)
        return None

    def drop_table(self, id: Id) -> Outcome:
        folder = f"{id[-1]}.lance"
        if id not in self.tables and id not in self.namespaces and len(id) == 1 and folder in self.hidden:
            del self.hidden[folder]
            return None
        code = self.missing(id)
        self.tables.pop(id, None)
        return code

    def deregister_table(self, id: Id) -> Outcome:
        code = self.missing(id)
        if code is None:
            table = self.tables.pop(id)
            listed = self.mode != "V2" and table.location.endswith(".lance")
            (self.hidden if listed else self.loose)[table.location] = table.rows
        return code

    def register_table(self, id: Id, location: str) -> Outcome:
        if self.flat and len(id) > 1:
            return 0
        if not self.is_namespace(id[:-1]):
            return 1
        if id in self.tables or id in self.namespaces:
            return 5
        if self.flat and location != f"{id[-1]}.lance":
            return 13
        rows = self.hidden.get(location, self.loose.get(location))
        if rows is None:
            return 13
        self.hidden.pop(location, None)
        self.loose.pop(location, None)
        self.tables[id] = ModelTable(location, rows)
        return None

    def rename_table(self, id: Id, new: Id) -> Outcome:
        if self.flat and (len(id) > 1 or len(new) > 1):
            return 0
        code = self.missing(id)
        if code is not None or new == id:
            return code
        if not self.is_namespace(new[:-1]):
            return 1
        if new in self.tables or new in self.namespaces:
            return 5
        if self.flat and f"{new[-1]}.lance" in self.hidden:
            return 5
        table = self.tables.pop(id)
        if self.flat:
            table.location = f"{new[-1]}.lance"
        self.tables[new] = table
        return None
