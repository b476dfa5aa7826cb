"""How an operation on a table's data reaches it: where it is, and who orders its commits."""

from __future__ import annotations

from dataclasses import dataclass, field

import lance
from lance_namespace import LanceNamespace

from headwater.names import ObjectId


@dataclass(frozen=True)
class TableHandle:
    """A table that the catalog has found. `client` is set when the catalog manages the table's versions."""

    id: ObjectId
    uri: str
    storage_options: dict[str, str] = field(default_factory=dict)
    client: LanceNamespace | None = None

    def open(self, version: int | str | None = None, branch: str | None = None) -> lance.LanceDataset:
        """The dataset at a version or tag of a branch (the newest of the main one when not told)."""
        if self.client is not None:
            dataset = lance.dataset(namespace_client=self.client, table_id=list(self.id.names))
        else:
            dataset = lance.dataset(self.uri, storage_options=self.storage_options or None)
        if branch is not None:
            return dataset.checkout_version((branch, version))
        return dataset if version is None else dataset.checkout_version(version)
