"""OpenLineage events handed on: as lines of a file, or to a collector's address, one request each."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.namespace.vending.scoped import WITHOUT_REDIRECTS
from headwater.references import follow

TIMEOUT_S = 30.0


def export_lineage(events: Sequence[Mapping[str, Any]], to: str, token: str | None = None) -> int:
    """Write events to a file or send them to an address; how many there were.

    A token is sent as a bearer's; `env:NAME` and `file:PATH` say where it is.
    """
    if not to.startswith(("http://", "https://")):
        Path(to).write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
        return len(events)
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {follow(token, 'token')}"
    for event in events:
        _send(to, json.dumps(event).encode(), headers)
    return len(events)


def _send(to: str, body: bytes, headers: Mapping[str, str]) -> None:
    request = urllib.request.Request(to, body, dict(headers), method="POST")  # http or https
    try:
        with WITHOUT_REDIRECTS.open(request, timeout=TIMEOUT_S):
            return
    except urllib.error.HTTPError as error:
        raise InvalidInputError(f"{to} refused a lineage event: {error.code} {error.reason}.") from None
    except (urllib.error.URLError, TimeoutError) as error:
        raise ServiceUnavailableError(f"{to} cannot be reached: {getattr(error, 'reason', error)}.") from None
