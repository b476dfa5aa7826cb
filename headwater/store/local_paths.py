"""Paths of local files: plain, or as URIs of the scheme `file`."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from headwater.errors import InvalidInputError

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%2[Ff]|%00")


def is_file_uri(text: str) -> bool:
    """Return True for a URI of the scheme `file`, in any case: `file:///x`, `file:/x`, `FILE://localhost/x`."""
    return text[:5].lower() == "file:"


def file_uri_path(uri: str) -> str:
    """Return the path of a file URI (RFC 3986 and 8089). InvalidInput (13) unless it is absolute and local."""
    rest = uri[5:]
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    path = slash + path
    escaped = not _BAD_ESCAPE.search(path) and "?" not in path and "#" not in path
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError:
        decoded = ""
    if host.lower() not in ("", "localhost") or not decoded.startswith("/") or not escaped:
        raise InvalidInputError(
            f"{uri[:200]!r} is not a URI of a local file: write file:///absolute/path, with '%' and what else URIs do "
            "not take as it is percent-encoded (a space is %20)."
        )
    return decoded


def local_path(uri: str) -> str:
    """Return the absolute path of a plain path or a file URI (lance-catalog-early.md, "Directory Path")."""
    return os.path.abspath(file_uri_path(uri) if is_file_uri(uri) else os.path.expanduser(uri))
