"""Refreshes what others wrote and the page sends to browsers: `python -m tools.vendor`.

`static/vendor/vendor.json` names each npm package with its version, the files taken from it and their hashes. The
packages come through `npm pack`, which checks them against its registry; what is written is what a test then holds.
To take a newer one, change the version there and run this.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "headwater" / "web" / "static" / "vendor"
LIST = FOLDER / "vendor.json"


def refresh(folder: Path = FOLDER) -> None:
    """Fetch every package anew, write its files, and note their hashes."""
    listed = json.loads((folder / LIST.name).read_text())
    for entry in listed:
        archive = fetch(entry["package"], entry["version"])
        for file in entry["files"]:
            data = member(archive, file["from"])
            (folder / file["name"]).write_bytes(data)
            file["sha256"] = digest(data)
    (folder / LIST.name).write_text(json.dumps(listed, indent=2) + "\n")


def fetch(package: str, version: str) -> bytes:
    """The archive of a package, as npm gives it."""
    with tempfile.TemporaryDirectory() as place:
        command = ["npm", "pack", f"{package}@{version}", "--silent"]
        done = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
        return (Path(place) / done.stdout.split()[-1]).read_bytes()


def member(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = opened.extractfile(f"package/{name}")
        if found is None:
            raise FileNotFoundError(f"The package has no file {name}.")
        return found.read()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def different(folder: Path = FOLDER) -> list[str]:
    """The files that are not what the list says, and those that it does not name."""
    listed: list[dict[str, Any]] = json.loads((folder / LIST.name).read_text())
    named = {file["name"]: file["sha256"] for entry in listed for file in entry["files"]}
    there = {path.name: digest(path.read_bytes()) for path in folder.iterdir() if path.name != LIST.name}
    return sorted(name for name in {*named, *there} if named.get(name) != there.get(name))


if __name__ == "__main__":
    refresh()
