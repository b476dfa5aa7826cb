"""A power cut for real processes: what was not synced is lost, what was deleted and not synced may come back.

`watch` runs in each process, and notes every `fsync` of a file or folder below the root. `cut` is called when all of
them were killed: a file stays for sure if it was synced, and after that the folder that names it, and so on up to the
root. Everything else stays or goes by chance. A synced file that was replaced or deleted since may be back.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import stat
from pathlib import Path
from typing import Any


class SyncNotes:
    """The notes of all processes, and links to what was synced. Both are outside of the root that is cut."""

    def __init__(self, root: str, folder: str) -> None:
        self.root = os.path.abspath(root)
        self.log = os.path.join(folder, "syncs")
        self.vault = os.path.join(folder, "vault")
        os.makedirs(self.vault, exist_ok=True)

    def begin(self) -> None:
        """Note that all that is there now is on the disk."""
        with open(self.log, "w") as log:
            for folder, _, files in os.walk(self.root):
                noted = [self._note(path, os.stat(path)) for path in (folder, *(f"{folder}/{name}" for name in files))]
                log.writelines(json.dumps(each) + "\n" for each in noted)

    def watch(self) -> None:
        """Note the syncs of this process from now on."""
        sync = os.fsync
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

        def noted(fd: int | Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            path = os.readlink(f"/proc/self/fd/{number}")
            found = self._note(path, os.fstat(number)) if path.startswith(self.root) else None
            sync(fd)
            if found is not None:
                os.write(log, (json.dumps(found) + "\n").encode())

        os.fsync = noted

    def _note(self, path: str, status: os.stat_result) -> list[Any]:
        """Return what is durable once the sync is done: a folder with the names that it has now, or a file."""
        if not stat.S_ISDIR(status.st_mode):
            return ["file", status.st_ino]
        names = {}
        for item in os.scandir(path):
            names[item.name] = item.inode()
            if item.is_file(follow_symlinks=False):
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    os.link(item.path, os.path.join(self.vault, str(item.inode())))
        return ["folder", status.st_ino, names]

    def read(self) -> tuple[set[int], dict[int, dict[str, int]]]:
        """Return the synced files, and the synced names of folders, by inode."""
        files, folders = set(), {}
        for line in Path(self.log).read_text().splitlines():
            kind, number, *names = json.loads(line)
            if kind == "file":
                files.add(number)
            else:
                folders[number] = names[0]
        return files, folders


class Cut:
    """One power cut. `lost` and `back` count the files that went and that came back."""

    def __init__(self, notes: SyncNotes, seed: int) -> None:
        self.notes = notes
        self.random = random.Random(seed)
        self.files, self.folders = notes.read()
        self.lost = self.back = 0

    def run(self) -> None:
        self._cut(self.notes.root)
        Path(self.notes.log).unlink()
        shutil.rmtree(self.notes.vault)

    def _cut(self, folder: str) -> None:
        known = self.folders.get(os.stat(folder).st_ino, {})
        for item in list(os.scandir(folder)):
            is_named = known.get(item.name) == item.inode()
            if item.is_dir(follow_symlinks=False):
                if is_named or self._stays():
                    self._cut(item.path)
                else:
                    self.lost += 1
                    shutil.rmtree(item.path)
            elif not (is_named and item.inode() in self.files) and not self._stays():
                self.lost += 1
                os.unlink(item.path)
                self._restore(item.path, known.get(item.name))
        for name in known.keys() - {item.name for item in os.scandir(folder)}:
            if not self._stays():
                self._restore(os.path.join(folder, name), known[name])

    def _stays(self) -> bool:
        return self.random.random() < 0.5

    def _restore(self, path: str, inode: int | None) -> None:
        """Bring back the file that had the name when its folder was last synced, if the file was synced as well."""
        kept = os.path.join(self.notes.vault, str(inode))
        if inode in self.files and os.path.exists(kept) and not os.path.exists(path):
            self.back += 1
            os.link(kept, path)
