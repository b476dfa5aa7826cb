"""A store in a local directory. Acknowledged writes are on the disk: file and directory are fsynced.

obstore's LocalStore does not fsync and can leave half-named files after a crash, so this one is ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from headwater.clock import unique_hex
from headwater.errors import InternalError, InvalidInputError, LanceNamespaceError, PermissionDeniedError
from headwater.store.seam import (
    Abilities,
    Entry,
    KeyExistsError,
    KeyNotFoundError,
    Listing,
    PutMode,
    check_key,
    check_prefix,
    side_by_side,
)

CHUNK = 1 << 20
TEMPORARY_SUFFIX = ".headwater-tmp"
MAX_KNOWN = 4096
"""The size of the cache of existing folders, which is emptied when it is full."""


class LocalStore:
    """A store whose keys are files below `root`. The first write makes the directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(root)
        self.abilities = Abilities(
            self.root,
            self.link,
            self.move_folder,
            self.fill,
            self.prune,
            self.sweep,
            create_after=self.create_after,
            identity=self.identity,
        )
        self._known: set[str] = set()
        """Folders that were there when this store last wrote in them. They may be gone: the write then tells."""
        self._named: set[str] = set()
        """Folders whose names were synced here, up to the root."""

    def get(self, key: str) -> bytes:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read_all(descriptor)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise KeyNotFoundError(key) from None
        except OSError as error:
            raise storage_error(error, key) from None

    def head(self, key: str) -> Entry | None:
        try:
            status = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, key) from None
        return None if stat.S_ISDIR(status.st_mode) else _entry(key, status)

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        if mode is PutMode.CREATE and os.path.lexists(self._path(key)):
            raise KeyExistsError(key)
        self._put(key, data, mode, durable)

    def create_after(self, key: str, data: bytes, others: Sequence[str]) -> None:
        if os.path.lexists(self._path(key)):
            raise KeyExistsError(key)
        self._put(key, data, PutMode.CREATE, True, [self._path(other) for other in others])

    def identity(self, key: str) -> object:
        try:
            status = os.stat(self._path(key))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        for key, data in items:
            self._put(key, data, PutMode.OVERWRITE, durable)

    def _put(self, key: str, data: bytes, mode: PutMode, durable: bool, others: Sequence[str] = ()) -> None:
        path = self._path(key)
        folder = path.rpartition("/")[0]
        try:
            if folder not in self._known:
                self._make_ahead(folder)
            try:
                self._write(path, data, mode, durable, others)
            except FileNotFoundError:
                self._make_folder(folder)
                self._write(path, data, mode, durable, others)
            self._know(folder)
        except FileExistsError:
            raise KeyExistsError(key) from None
        except OSError as error:
            raise storage_error(error, key) from None

    def get_all(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        found: list[bytes | None] = []
        for key in keys:
            try:
                found.append(self.get(key))
            except KeyNotFoundError:
                found.append(None)
        return found

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        for key, entry in sorted(self._walk(check_prefix(prefix), after)):
            yield _entry(key, entry)

    def children(self, prefix: str = "") -> Listing:
        folder = check_prefix(prefix)
        entries: list[Entry] = []
        folders: list[str] = []
        for item in self._scan(folder):
            if _is_folder(item):
                folders.append(item.name)
            elif not item.name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(OSError):  # It is gone already, or a link that leads nowhere.
                    entries.append(_entry(_join(folder, item.name), item.stat()))
        return Listing(tuple(sorted(entries, key=lambda entry: entry.key)), tuple(sorted(folders)))

    def delete(self, key: str) -> None:
        try:
            os.unlink(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise storage_error(error, key) from None

    def delete_tree(self, prefix: str) -> None:
        path = self._path(prefix.rstrip("/"))
        try:
            if os.path.islink(path) or os.path.isfile(path):
                os.unlink(path)
            else:
                shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, prefix) from None

    def link(self, old: str, new: str, durable: bool = True) -> None:
        """Give a finished file a second key, or KeyExistsError and nothing changes. Both keys are the same file."""
        source, target = self._path(old), self._path(new)
        try:
            if durable:
                _sync(source)
            self._link(source, target)
            if durable:
                self._sync_folder(os.path.dirname(target))
        except FileExistsError:
            raise KeyExistsError(new) from None
        except FileNotFoundError:
            raise KeyNotFoundError(old) from None
        except OSError as error:
            raise storage_error(error, new) from None

    def _link(self, source: str, target: str) -> None:
        try:
            os.link(source, target)
        except FileNotFoundError:
            if not os.path.lexists(source):
                raise
            self._make_folder(os.path.dirname(target))
            os.link(source, target)

    def move_folder(self, old: str, new: str) -> None:
        """Give a folder another key in one step, or KeyExistsError there, KeyNotFoundError here."""
        source, target = self._path(old), self._path(new)
        try:
            self._make_folder(os.path.dirname(target))
            os.rename(source, target)
            self._named = set()
            self._sync_folder(os.path.dirname(target))
            _sync(os.path.dirname(source))
        except FileNotFoundError:
            raise KeyNotFoundError(old) from None
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise KeyExistsError(new) from None
            raise storage_error(error, old) from None

    def fill(self, key: str, write: Callable[[str], None]) -> None:
        """Let `write` make the file at the key's path; it is durable afterwards."""
        path = self._path(key)
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            self._make_folder(folder)
        write(path)
        self.sync([key])

    def prune(self, folder: str) -> None:
        """Remove the folder and those below it as far as they are empty."""
        for path, _, _ in os.walk(self._path(folder), topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)

    def sweep(self, before_ms: int) -> int:
        """Remove the temporary files that killed writers left behind before a time; how many there were."""
        count = 0
        for folder, _, names in os.walk(self.root):
            for path in (os.path.join(folder, name) for name in names if name.endswith(TEMPORARY_SUFFIX)):
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(path).st_mtime_ns // 1_000_000 < before_ms:
                        os.unlink(path)
                        count += 1
        return count

    def sync(self, keys: Sequence[str]) -> None:
        """Sync files and the folders that name them, side by side: a disk does several in about the time of one."""
        self._sync_paths([self._path(key) for key in keys])

    def _sync_paths(self, paths: Sequence[str], descriptor: int | None = None) -> None:
        beside: list[str | int] = [] if descriptor is None else [descriptor]
        above = {folder for path in paths for folder in self._unsynced(path.rpartition("/")[0])}
        side_by_side(_process.threads, _sync_named, dict.fromkeys((*beside, *paths, *above)))
        self._name(above)

    def _unsynced(self, folder: str) -> Sequence[str]:
        """Return the folder, and those above it whose names were not synced in this process.

        Others may have made these without a sync: Lance does, and so do puts that are not durable.
        """
        found = [folder]
        while folder not in self._named and len(folder) > len(self.root):
            folder = folder.rpartition("/")[0]
            found.append(folder)
        return found

    def _name(self, synced: Collection[str]) -> None:
        """Remember folders that were synced, with those that name them."""
        new = [folder for folder in synced if len(folder) > len(self.root) and folder.rpartition("/")[0] in synced]
        if new:
            if len(self._named) >= MAX_KNOWN:
                self._named = set()
            self._named.update(new)

    def _sync_folder(self, folder: str) -> None:
        """Sync the names in a folder, and once in this process those of the folders above it."""
        synced = self._unsynced(folder)
        for each in synced:
            _sync(each)
        self._name(synced)

    def _path(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"

    def _make_folder(self, folder: str) -> None:
        parent = folder.rpartition("/")[0]
        try:
            os.mkdir(folder)
        except FileNotFoundError:
            self._make_folder(parent)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        except FileExistsError:
            if os.path.isdir(folder):
                return
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        self._named.discard(folder)
        self._know(parent)
        if len(folder) <= len(self.root):
            _sync(parent)

    def _make_ahead(self, folder: str) -> None:
        """Make a folder that seems to be new, with the one above it: the next one above is known, and it is not. To
        write in it first and be told would be two calls of the system more, and most that is published is new."""
        parent = folder.rpartition("/")[0]
        is_new = parent in self._known
        if not is_new and parent.rpartition("/")[0] in self._known:
            is_new = self._make_one(parent)
        if is_new:
            self._make_one(folder)

    def _make_one(self, folder: str) -> bool:
        """Make one folder. Returns True if it was missing and its parent was not."""
        try:
            os.mkdir(folder)
        except (FileExistsError, FileNotFoundError):
            return False
        self._named.discard(folder)
        self._know(folder)
        return True

    def _know(self, folder: str) -> None:
        if folder not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known = set()
            self._known.add(folder)

    def _write(self, path: str, data: bytes, mode: PutMode, durable: bool, others: Sequence[str] = ()) -> None:
        if not data and not durable and mode is PutMode.OVERWRITE:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))
            return  # nothing can be torn
        folder = path.rpartition("/")[0]
        temporary = f"{folder}/{_process.temporary_name()}{TEMPORARY_SUFFIX}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                _write_all(descriptor, data)
                if others:
                    self._sync_paths(others, descriptor)
                elif durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if mode is PutMode.OVERWRITE:
                os.replace(temporary, path)
                temporary = ""
            else:
                os.link(temporary, path)
        finally:
            if temporary:
                os.unlink(temporary)
        if durable:
            self._sync_folder(folder)

    def _scan(self, folder: str, first: str = "") -> Sequence[os.DirEntry[str]]:
        """Yield the items of a folder, from the name `first` on."""
        try:
            with os.scandir(os.path.join(self.root, folder)) as items:
                return tuple([item for item in items if item.name >= first]) if first else tuple(items)
        except FileNotFoundError:
            return ()
        except NotADirectoryError as error:
            if not os.path.isdir(self.root):
                raise storage_error(error, ".") from None
            return ()
        except OSError as error:
            raise storage_error(error, folder or ".") from None

    def _walk(self, folder: str, after: str = "") -> Iterator[tuple[str, os.stat_result]]:
        is_within = bool(folder) and after.startswith(f"{folder}/")
        for item in self._scan(folder, after[len(folder) + 1 :].partition("/")[0] if is_within else ""):
            key = _join(folder, item.name)
            if item.is_dir(follow_symlinks=False):
                yield from self._walk(key, after)
            elif key > after and not item.name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(OSError):
                    yield key, item.stat()


class _OwnProcess:
    """Names that no other file has, random for each process and counted in it, and threads that sync side by side.

    A child of a fork has its own.
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._random = unique_hex(16)
        self._number = count()
        self.threads = ThreadPoolExecutor(8, thread_name_prefix="headwater-fsync")

    def temporary_name(self) -> str:
        return f"{self._random}{next(self._number):x}"


_process = _OwnProcess()


def _read_all(descriptor: int) -> bytes:
    """Return the bytes of an open file by one read, and a second one that finds its end."""
    size = os.fstat(descriptor).st_size
    parts = [os.read(descriptor, size + 1)]
    while parts[-1] and sum(map(len, parts)) != size:
        parts.append(os.read(descriptor, CHUNK))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    if written == len(data):
        return
    view = memoryview(data)[written:]
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_named(file: str | int) -> None:
    """Sync a file or folder by its path, or one that is open."""
    try:
        if isinstance(file, int):
            os.fsync(file)
        else:
            _sync(file)
    except OSError as error:
        raise storage_error(error, os.path.basename(str(file))) from None


def _entry(key: str, status: os.stat_result) -> Entry:
    etag = f"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"
    return Entry(key, status.st_size, status.st_mtime_ns // 1_000_000, etag)


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # A link that leads in a circle must not hide what is beside it.
        return False


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def storage_error(error: OSError, key: str) -> LanceNamespaceError:
    """Return our error for an OSError: PermissionDenied (15), InvalidInput (13) for a long name, else Internal (18)."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDeniedError(
            f"The storage does not permit access to {key!r} ({error.strerror}): see who may read and write there."
        )
    if error.errno == errno.ENAMETOOLONG:
        return InvalidInputError(f"{key!r} is too long a name for this storage.")
    return InternalError(f"The storage failed at {key!r}: {error.strerror}.")
