"""Addresses of the page. Pure: names become path segments, percent-encoded, so every name there is has an address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlencode

from headwater.errors import InvalidInputError
from headwater.names import ObjectId

NAMESPACE, TABLE = "n", "t"


@dataclass(frozen=True)
class Links:
    """Addresses below the path that the server is shown at."""

    base: str = ""

    def to(self, *segments: str, **query: Any) -> str:
        path = "".join(f"/{quote(segment, safe='')}" for segment in segments)
        return f"{self.base}{path or '/'}{_query(query)}"

    def namespace(self, id: ObjectId, **query: Any) -> str:
        return self.to(NAMESPACE, *id.names, **query) if id.names else self.to(**query)

    def table(self, id: ObjectId, **query: Any) -> str:
        return self.to(TABLE, *id.names, **query)

    def of(self, id: ObjectId, kind: str) -> str:
        return self.namespace(id) if kind == "namespace" else self.table(id)


def _query(query: Mapping[str, Any]) -> str:
    told = {key: value for key, value in query.items() if value is not None and value != ""}
    return f"?{urlencode(told)}" if told else ""


def segments(path: str) -> tuple[str, ...]:
    """The names in a path as it came over the wire. Nothing else decodes one."""
    parts = [part for part in path.split("/")[1:] if part]
    try:
        return tuple(unquote(part, errors="strict") for part in parts)
    except UnicodeDecodeError:
        raise InvalidInputError("The address is not UTF-8.") from None


def own_path(text: str) -> str | None:
    """A path on this server to go on to after signing in; None for whatever could lead elsewhere."""
    if not text.startswith("/") or text.startswith(("//", "/\\")) or len(text) > 4000:
        return None
    return text if text.isascii() and text.isprintable() and "\\" not in text else None
