"""What a DeltaCAT catalog held after each of its transactions. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.moving.deltacat.layout import Revised, RowFile, data_files

NAMESPACE, TABLE, VERSION, STREAM, PARTITION, DELTA = range(1, 7)
"""How many ids lead to an object of this kind."""

Ids = tuple[str, ...]
LIVE = "committed"
FORMAT = "deltacat"


@dataclass(frozen=True)
class FoundNamespace:
    """A namespace of a DeltaCAT root."""

    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class FoundTable:
    """A table as a reader of its newest active version found it."""

    namespace: str
    name: str
    version: str
    schema: bytes | None
    files: tuple[RowFile, ...]
    problems: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass
class DeltacatContents:
    """The newest committed revision of every object that is there."""

    objects: dict[Ids, Mapping[str, Any]] = field(default_factory=dict)
    below: dict[Ids, dict[Ids, None]] = field(default_factory=dict)
    files: dict[Ids, tuple[tuple[RowFile, ...], tuple[str, ...]]] = field(default_factory=dict)
    """Of each delta its files, and what of it cannot be read."""

    def apply(self, write: Revised, body: Mapping[str, Any], root: str) -> None:
        """One revision. Whatever is below an object that is deleted cannot be reached any more."""
        siblings = self.below.setdefault(write.ids[:-1], {})
        if write.deletes:
            self.objects.pop(write.ids, None)
            siblings.pop(write.ids, None)
        else:
            self.objects[write.ids] = body
            if len(write.ids) == DELTA:
                self.files[write.ids] = data_files(body, root, "/".join(write.ids))
            siblings[write.ids] = None

    def namespace(self, ids: Ids) -> FoundNamespace | None:
        body = self.objects.get(ids)
        if body is None:
            return None
        return FoundNamespace(_name(body, "namespaceLocator", "namespace"), _texts(body.get("properties")))

    def table(self, ids: Ids) -> FoundTable | None:
        """What a reader sees of a table; None if it, or its namespace, is not there."""
        body, namespace = self.objects.get(ids), self.namespace(ids[:1])
        if body is None or namespace is None:
            return None
        number = str(body.get("latest_active_table_version") or body.get("latest_table_version") or "")
        version = self.objects.get((*ids, number), {})
        files: list[RowFile] = []
        problems: list[str] = []
        for delta in self._deltas((*ids, number)):
            found, bad = self.files[delta]
            files += found
            problems += bad
        schema = version.get("schema")
        properties = _texts(body.get("properties"))
        description = body.get("description") or version.get("description")
        if isinstance(description, str):
            properties = {**properties, "description": description}
        return FoundTable(
            namespace.name,
            _name(body, "tableLocator", "tableName"),
            number,
            schema if isinstance(schema, bytes) else None,
            tuple(files),
            tuple(problems),
            properties,
        )

    def _deltas(self, version: Ids) -> Iterator[Ids]:
        """Those of the committed partitions of the committed stream, in the order they were committed."""
        for stream in self._children(version):
            locator = self.objects[stream].get("streamLocator")
            native = isinstance(locator, Mapping) and locator.get("format") == FORMAT
            if not native or self.objects[stream].get("state") != LIVE:
                continue
            for partition in self._children(stream):
                if self.objects[partition].get("state") == LIVE:
                    yield from self._children(partition)

    def _children(self, ids: Ids) -> Sequence[Ids]:
        return [child for child in self.below.get(ids, {}) if child in self.objects]


def _name(body: Mapping[str, Any], locator: str, key: str) -> str:
    found = body.get(locator)
    return str(found.get(key)) if isinstance(found, Mapping) else ""


def _texts(properties: Any) -> dict[str, str]:
    """Properties as texts: what is no text is written as JSON."""
    if not isinstance(properties, Mapping):
        return {}
    return {
        str(key): value if isinstance(value, str) else json.dumps(value, default=repr)
        for key, value in properties.items()
        if value is not None
    }
