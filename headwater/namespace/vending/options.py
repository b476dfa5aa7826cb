"""Storage options by what they are: those a request may choose, and those that say where and not who. Pure.

A storage client obeys its options: an endpoint gets signed requests, a token file is read, a proxy sees everything.
So a request from afar may choose only what cannot hurt, with bounded values; whatever is not listed is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headwater.errors import InvalidInputError
from headwater.namespace.vending import walk

_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
ALLOWED = {
    "timeout": ("s", 600),
    "connect_timeout": ("s", 600),
    "client_retry_timeout": ("", 600),
    "client_max_retries": ("", 20),
    "download_retry_count": ("", 20),
}
"""What a request may choose: the unit that stands after the number, and the largest number."""

PLACES = frozenset(
    {
        "region", "aws_region", "default_region", "aws_default_region", "endpoint", "endpoint_url", "aws_endpoint",
        "aws_endpoint_url", "azure_storage_endpoint", "azure_endpoint", "allow_http", "aws_allow_http",
        "virtual_hosted_style_request", "aws_virtual_hosted_style_request", "account_name",
        "azure_storage_account_name", "use_emulator", "azure_storage_use_emulator", "google_base_url",
    }
)  # fmt: skip
"""Options that say where the storage is: a client with credentials of its own needs them, and they are no secret."""

HEADER_CONTEXT = ("header.", "headers.")


def check_request(request: Any) -> None:
    """InvalidInput (13), naming the key, if a request from afar asks for a storage option that is not harmless."""
    for options in walk.find(request):
        if not isinstance(options, Mapping):
            raise InvalidInputError("storage_options must be an object of strings.")
        for key, value in options.items():
            _check_option(str(key), str(value))


def without_headers(request: Any) -> Any:
    """A request whose context sets no headers: over a catalog that is a server itself they would become ours."""
    context = getattr(request, "context", None)
    if not isinstance(request, BaseModel) or not context:
        return request
    kept = {key: value for key, value in context.items() if not key.lower().startswith(HEADER_CONTEXT)}
    return request if len(kept) == len(context) else request.model_copy(update={"context": kept})


def places_of(options: Mapping[str, str] | None) -> dict[str, str]:
    """Those of a catalog's options that say where its storage is."""
    return {key: value for key, value in (options or {}).items() if key.lower() in PLACES}


def _check_option(key: str, value: str) -> None:
    if key not in ALLOWED:
        raise InvalidInputError(
            f"The storage option {key[:80]!r} cannot be chosen by a request: the server uses its own. "
            f"A request may set {', '.join(sorted(ALLOWED))}."
        )
    unit, most = ALLOWED[key]
    match = _NUMBER.fullmatch(value.removesuffix(unit) if value.endswith(unit) else "")
    if match is None or int(match[0]) > most:
        raise InvalidInputError(f"The storage option {key} must be a whole number from 0{unit} to {most}{unit}.")
