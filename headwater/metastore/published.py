"""A reader that knows only the published layout (docs/formats/metastore.md), for `verify`. It knows no index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from headwater.errors import CorruptFileError
from headwater.metastore.layout import MappingFile, RevisionFile, below, digest, parse_key, revision_key
from headwater.metastore.layout import canonical as canonical_string
from headwater.metastore.records import Body, decode_body
from headwater.store import KeyNotFoundError, Store

Seen = tuple[str, str, int]


class PublishedReader:
    """The newest revision file of each directory, and the newest mapping file of each Name Resolution Directory."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.revisions: dict[str, RevisionFile] = {}
        self.mappings: dict[str, dict[str, MappingFile]] = defaultdict(dict)
        for entry in store.list():
            match parse_key(entry.key):
                case RevisionFile() as file if file.number > self._number(self.revisions.get(file.home)):
                    self.revisions[file.home] = file
                case MappingFile() as file if file.number > self._number(self.mappings[file.home].get(file.digest)):
                    self.mappings[file.home][file.digest] = file

    @staticmethod
    def _number(file: RevisionFile | MappingFile | None) -> int:
        return file.number if file is not None else 0

    def walk(self, home: str, path: tuple[str, ...], canonical: str) -> Iterator[tuple[tuple[str, ...], Seen]]:
        """Every name in a directory, and all below those that are namespaces."""
        for name_digest, file in sorted(self.mappings.get(home, {}).items()):
            if file.operation == "delete":
                continue
            body = self._object(below(home, file.object_id))
            if body is None:
                yield (*path, name_digest), (file.object_id, "missing", 0)
                continue
            names = (str(body.parts[0]), *body.aliases)
            name = next(
                (name for name in names if digest(canonical_string(canonical, name)) == name_digest), name_digest
            )
            yield (*path, name), (body.id, body.kind, body.revision)
            if body.kind == "namespace" and name == names[0]:
                yield from self.walk(body.home, (*path, name), canonical_string(canonical, name))

    def _object(self, home: str) -> Body | None:
        file = self.revisions.get(home)
        if file is None or file.operation == "delete":
            return None
        try:
            key = revision_key(file.home, file.number, file.operation, file.txn)
            return decode_body(key, self.store.get(key))
        except (KeyNotFoundError, CorruptFileError):
            return None


def published_tree(store: Store) -> dict[tuple[str, ...], Seen]:
    """Each name, with the id, kind and revision of what it names."""
    return dict(PublishedReader(store).walk("", (), ""))
