"""A checkpoint in layers: sorted entries in immutable files, of which only the pages that are asked for are read.

A layer holds what changed since the layer below it, so a checkpoint costs what changed since the one before. Layers are
merged as they grow, each at least `GROWTH` times as large as the one above it: a look-up passes a few of them, and an
entry is written again a few times, whatever the size of the catalog.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from headwater.clock import Clock
from headwater.errors import CorruptFileError
from headwater.metastore.records.disk_records import LAYER, checksum, decode, encode, seal, unseal
from headwater.metastore.records.layout import layer_key
from headwater.store import KeyNotFoundError, Store, read_part, storage_error

PAGE = 4 << 10
FILE = 16 << 20
READ_WHOLE = 1 << 20
"""Files up to this size are read at once: then a small catalog costs one request for each layer."""
READ_AHEAD = 4 << 20
GROWTH = 3
CACHED = 64 << 20
DIGEST = 16
REMOVED = msgspec.Raw(b"\xc0")
"""The value of an entry that is no more: it hides those in the layers below."""

LayerEntry = tuple[str, msgspec.Raw]
Page = dict[str, msgspec.Raw]


class LayerFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of a layer: its id, its first key, how many entries, where its directory begins, and where it ends."""

    id: str
    first: str
    entries: int
    directory: int
    end: int


class Directory(msgspec.Struct, frozen=True, array_like=True):
    """The pages of a file: the first key of each, where each begins (and the last one ends), and their checksums."""

    firsts: list[str]
    offsets: list[int]
    checksums: bytes


Layer = tuple[LayerFile, ...]
_directories = msgspec.msgpack.Decoder(Directory)
_pages = msgspec.msgpack.Decoder(Page)


class Pages:
    """The files of layers, as far as they were read. Files never change, so what was read of them stays true."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._directories: dict[str, Directory] = {}
        self._whole: dict[str, bytes] = {}
        self._cache: OrderedDict[tuple[str, int], tuple[Page, int]] = OrderedDict()
        self._cached = 0

    def keep_only(self, files: Iterable[LayerFile]) -> None:
        """Let go of what was read of other files."""
        kept = {file.id for file in files}
        for known in (self._directories, self._whole):
            for id in [id for id in known if id not in kept]:
                del known[id]

    def fetch(self, files: Iterable[LayerFile]) -> None:
        """Read the small ones, in one round. What is missing is told when it is needed."""
        wanted = [file for file in files if file.end <= READ_WHOLE and file.id not in self._whole]
        for file, data in zip(wanted, self.store.get_all([layer_key(file.id) for file in wanted]), strict=True):
            if data is not None:
                self._whole[file.id] = data

    def directory(self, file: LayerFile) -> Directory:
        found = self._directories.get(file.id)
        if found is None:
            key = layer_key(file.id)
            found = decode(_directories, key, unseal(key, self.read(file, file.directory, file.end), LAYER))
            self._directories[file.id] = found
        return found

    def read(self, file: LayerFile, start: int, end: int) -> bytes:
        key = layer_key(file.id)
        data = self._whole.get(file.id)
        try:
            if data is None and file.end <= READ_WHOLE:
                data = self._whole[file.id] = self.store.get(key)
            found = read_part(self.store, key, start, end) if data is None else data[start:end]
        except KeyNotFoundError:
            raise CorruptFileError(key, "it is missing") from None
        except OSError as error:
            raise storage_error(error, key) from None
        if len(found) != end - start:
            raise CorruptFileError(key, "it was cut short")
        return found

    def page(self, file: LayerFile, number: int) -> Page:
        known = self._cache.get((file.id, number))
        if known is not None:
            return known[0]
        directory = self.directory(file)
        start, end = directory.offsets[number], directory.offsets[number + 1]
        page = _checked(file, directory, number, self.read(file, start, end))
        self._cache[file.id, number] = page, end - start
        self._cached += end - start
        while self._cached > CACHED and self._cache:
            _, (_, size) = self._cache.popitem(last=False)
            self._cached -= size
        return page

    def pages(self, file: LayerFile, first: int) -> Iterator[Page]:
        """Yield the pages from one on, many with each request; none of them is kept."""
        directory = self.directory(file)
        last = len(directory.firsts)
        while first < last:
            after = bisect_right(directory.offsets, directory.offsets[first] + READ_AHEAD) - 1
            after = min(max(after, first + 1), last)
            start = directory.offsets[first]
            data = self.read(file, start, directory.offsets[after])
            for number in range(first, after):
                part = data[directory.offsets[number] - start : directory.offsets[number + 1] - start]
                yield _checked(file, directory, number, part)
            first = after


def _checked(file: LayerFile, directory: Directory, number: int, data: bytes) -> Page:
    key = layer_key(file.id)
    if checksum(data) != directory.checksums[number * DIGEST : (number + 1) * DIGEST]:
        raise CorruptFileError(key, "its checksum does not match its content")
    return decode(_pages, key, data)


class Layers:
    """A sorted map over the layers of one checkpoint, in which the newest layer wins."""

    def __init__(self, pages: Pages, layers: Sequence[Layer], slot: int) -> None:
        self.pages = pages
        self.layers = [layer for layer in layers if layer]
        self.slot = slot
        self._firsts = [[file.first for file in layer] for layer in self.layers]

    @property
    def files(self) -> list[LayerFile]:
        return [file for layer in self.layers for file in layer]

    def get(self, key: str) -> msgspec.Raw | None:
        pages = self.pages
        for layer, firsts in zip(self.layers, self._firsts, strict=True):
            at = bisect_right(firsts, key) - 1
            if at < 0:
                continue
            file = layer[at]
            number = bisect_right(pages.directory(file).firsts, key) - 1
            found = pages.page(file, number).get(key)
            if found is not None:
                return None if found == REMOVED else found
        return None

    def scan(self, prefix: str) -> Iterator[LayerEntry]:
        """Return the entries whose keys begin with a prefix, sorted."""
        return _without_removed(_merged([self._from(layer, prefix) for layer in self.layers]))

    def _from(self, layer: Layer, prefix: str) -> Iterator[LayerEntry]:
        begin = max(bisect_right([file.first for file in layer], prefix) - 1, 0)
        for file in layer[begin:]:
            first = max(bisect_right(self.pages.directory(file).firsts, prefix) - 1, 0)
            for page in self.pages.pages(file, first):
                for key, value in page.items():
                    if key.startswith(prefix):
                        yield key, value
                    elif key > prefix:
                        return

    def with_layer(self, clock: Clock, entries: Sequence[LayerEntry], slot: int) -> Layers:
        """Return these layers and one more, of sorted entries; written, and merged with those it has outgrown."""
        sizes = [sum(file.end for file in layer) for layer in self.layers]
        size, merged = sum(len(key) + len(value) for key, value in entries), 0
        while merged < len(sizes) and sizes[merged] < GROWTH * size:
            size += sizes[merged]
            merged += 1
        sources = [iter(entries), *(self._from(layer, "") for layer in self.layers[:merged])]
        found = _merged(sources)
        lowest = merged == len(self.layers)
        made = write_layer(self.pages.store, clock, _without_removed(found) if lowest else found)
        return Layers(self.pages, [made, *self.layers[merged:]], slot)


def _merged(sources: Sequence[Iterator[LayerEntry]]) -> Iterator[LayerEntry]:
    """Sorted entries as one; where keys are equal, that of the earlier source."""
    if len(sources) == 1:
        yield from sources[0]
        return
    before = None
    for key, _, value in heapq.merge(*(_ranked(rank, source) for rank, source in enumerate(sources))):
        if key != before:
            yield key, value
        before = key


def _ranked(rank: int, source: Iterator[LayerEntry]) -> Iterator[tuple[str, int, msgspec.Raw]]:
    return ((key, rank, value) for key, value in source)


def _without_removed(items: Iterator[LayerEntry]) -> Iterator[LayerEntry]:
    return (item for item in items if item[1] != REMOVED)


def write_layer(store: Store, clock: Clock, items: Iterable[LayerEntry]) -> Layer:
    """Write sorted entries as the files of a layer."""
    files: list[LayerFile] = []
    made = Writing()
    for key, value in items:
        made.add(key, value)
        if made.size >= FILE:
            files.append(made.put(store, clock))
            made = Writing()
    if made.entries:
        files.append(made.put(store, clock))
    return tuple(files)


class Writing:
    """A file of a layer in the making."""

    def __init__(self) -> None:
        self.entries = 0
        self.size = 0
        self._page: Page = {}
        self._filled = 0
        self._firsts: list[str] = []
        self._pages: list[bytes] = []

    def add(self, key: str, value: msgspec.Raw) -> None:
        self._page[key] = value
        self.entries += 1
        self._filled += len(key) + len(value)
        if self._filled >= PAGE:
            self._end_page()

    def _end_page(self) -> None:
        data = encode(self._page)
        self._firsts.append(next(iter(self._page)))
        self._pages.append(data)
        self.size += len(data)
        self._page, self._filled = {}, 0

    def put(self, store: Store, clock: Clock) -> LayerFile:
        if self._page:
            self._end_page()
        offsets = [0]
        for data in self._pages:
            offsets.append(offsets[-1] + len(data))
        checksums = b"".join(checksum(data) for data in self._pages)
        directory = seal(LAYER, encode(Directory(self._firsts, offsets, checksums)))
        id = clock.uuid()
        store.put(layer_key(id), b"".join((*self._pages, directory)))
        return LayerFile(id, self._firsts[0], self.entries, self.size, self.size + len(directory))


def check_file(store: Store, file: LayerFile) -> None:
    """CorruptFileError if a file of a layer is missing, damaged, or not in order."""
    pages, count = Pages(store), 0
    for page in pages.pages(file, 0):
        count += len(page)
        if any(one >= other for one, other in pairwise(page)):
            raise CorruptFileError(layer_key(file.id), "its entries are not in order")
    if count != file.entries:
        raise CorruptFileError(layer_key(file.id), "its entries are not those it was written with")
