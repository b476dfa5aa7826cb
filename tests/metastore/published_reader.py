"""A reader written from docs/formats/metastore.md alone, with nothing but os, hashlib and msgpack."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import msgpack  # type: ignore[import-untyped]


def newest(folder: str) -> str | None:
    """The file with the highest number; None when there is none or it deletes."""
    names = sorted(name for name in os.listdir(folder) if not name.endswith(".headwater-tmp"))
    if not names or names[-1].split("_")[1] == "delete":
        return None
    return names[-1]


def revision(home: str) -> dict[str, Any] | None:
    name = newest(os.path.join(home, "rev"))
    if name is None:
        return None
    with open(os.path.join(home, "rev", name), "rb") as file:
        return dict(msgpack.unpackb(file.read(), raw=False))


def canonical(parent: str, name: str) -> str:
    own = name.replace("|", "\\|")
    return f"{parent}|{own}" if parent else own


def read(root: str) -> dict[tuple[str, ...], Any]:
    """Every name in the catalog: kind, properties, aliases and the first file of each delta, in stream order."""
    found: dict[tuple[str, ...], Any] = {}
    if os.path.isdir(root):
        read_namespace(root, root, (), "", found)
    return found


def read_namespace(root: str, home: str, path: tuple[str, ...], parent: str, found: dict[tuple[str, ...], Any]) -> None:
    for name in os.listdir(home):
        if len(name) != 40 or not os.path.isdir(os.path.join(home, name)):
            continue
        mapping = newest(os.path.join(home, name))
        if mapping is None:
            continue
        assert os.path.getsize(os.path.join(home, name, mapping)) == 0
        body = revision(os.path.join(home, mapping.split(".", 1)[1]))
        assert body is not None, "a name maps to an object that is not there"
        own = body["parts"][0]
        names = {hashlib.sha1(canonical(parent, text).encode()).hexdigest(): text for text in (own, *body["aliases"])}
        assert name in names, "a name resolution directory is not the digest of any name of its object"
        if names[name] == own:
            real = os.path.join(root, body["home"])
            deltas = read_deltas(root, real) if body["kind"] == "table" else ()
            found[*path, own] = (body["kind"], body["properties"], tuple(sorted(body["aliases"])), deltas)
            if body["kind"] == "namespace":
                read_namespace(root, real, (*path, own), canonical(parent, own), found)


def read_deltas(root: str, table: str, format: str = "delta") -> tuple[str, ...]:
    """The deltas of the active table version's stream, over all of its partitions."""
    versions = [body for body in map(revision, folders(table)) if body and body["kind"] == "table_version"]
    active = [body for body in versions if body["properties"].get("lifecycle", "active") == "active"]
    stream = os.path.join(table, max(active, key=lambda body: slot_of(root, created(root, body)))["id"], format)
    deltas: list[dict[str, Any]] = []
    for partition in folders(stream):
        deltas += [body for body in map(revision, folders(partition)) if body]
    deltas.sort(key=lambda body: int(body["position"]))
    return tuple(delta["files"][0]["path"] for delta in deltas)


def created(root: str, body: dict[str, Any]) -> dict[str, Any]:
    """The first revision of an object."""
    folder = os.path.join(root, body["home"], "rev")
    with open(os.path.join(folder, min(os.listdir(folder))), "rb") as file:
        return dict(msgpack.unpackb(file.read(), raw=False))


def slot_of(root: str, body: dict[str, Any]) -> int:
    """The place of a revision's transaction in the order of all, from its log file."""
    with open(os.path.join(root, "txn", f"{body['time']}_{body['txn']}"), "rb") as file:
        return int(msgpack.unpackb(file.read(), raw=False)["slot"])


def folders(home: str) -> list[str]:
    return [
        os.path.join(home, name)
        for name in (os.listdir(home) if os.path.isdir(home) else ())
        if name not in ("rev", "data") and os.path.isdir(os.path.join(home, name, "rev"))
    ]
