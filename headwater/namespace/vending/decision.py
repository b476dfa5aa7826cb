"""The one decision on storage credentials: the `storage_options` of an answer to an untrusted client.

A catalog inside this process gets its own options, for it works with them. A server puts each answer through `vend`,
which asks a vendor for every `storage_options` of it, nested ones too; what the catalog itself said is never the
default. Without a vendor nothing leaves the server.
A storage client obeys its options: an endpoint gets signed requests, a token file is read, a proxy sees everything.
So a request from afar may choose only what cannot hurt, with bounded values; whatever is not listed is refused.
Messages are models of the Lance protocol, or plain values of extensions. Fields of a model that by their type can
hold neither a model nor a free value are not looked into, so a page of 100,000 names costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Protocol, get_args, get_origin

from pydantic import BaseModel

from headwater.errors import InvalidInputError, LanceNamespaceError

FIELD = "storage_options"
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
Decide = Callable[[Mapping[str, Any], Any], Any]
"""From the message around a `storage_options` and its value to the value that is sent instead."""


def find_options(message: object) -> Iterator[object]:
    """Yield each `storage_options` of a message."""
    if isinstance(message, BaseModel):
        values: Any = [(name, getattr(message, name)) for name in _branches(type(message))]
    elif isinstance(message, Mapping):
        values = message.items()
    elif isinstance(message, (list, tuple)):
        values = [("", item) for item in message]
    else:
        return
    for name, value in values:
        if name == FIELD and value is not None:
            yield value
        yield from find_options(value)


def replace_options(message: object, decide: Decide) -> object:
    """Return the message with every `storage_options` decided anew; what does not change is not copied."""
    if isinstance(message, BaseModel):
        fields = {name: getattr(message, name) for name in _branches(type(message))}
        around = {**fields, "location": getattr(message, "location", None)} if FIELD in fields else fields
        changed = _changed(fields, around, decide)
        return message.model_copy(update=changed) if changed else message
    if isinstance(message, Mapping):
        changed = _changed(message, message, decide)
        return {**message, **changed} if changed else message
    if isinstance(message, (list, tuple)):
        items = [replace_options(item, decide) for item in message]
        same = all(new is old for new, old in zip(items, message, strict=True))
        return message if same else items
    return message


def _changed(fields: Mapping[str, object], around: Mapping[str, object], decide: Decide) -> dict[str, object]:
    changed = {}
    for name, value in fields.items():
        if type(value) in _PLAIN and name != FIELD:
            continue
        new = decide(around, value) if name == FIELD else replace_options(value, decide)
        if new is not value:
            changed[name] = new
    return changed


@lru_cache(maxsize=1024)
def _branches(kind: type[BaseModel]) -> tuple[str, ...]:
    """Return the fields of a model to look into."""
    return tuple(name for name, field in kind.model_fields.items() if name == FIELD or not _is_plain(field.annotation))


def _is_plain(annotation: object) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_plain(get_args(annotation)[0])
    inner = get_args(annotation)
    return all(_is_plain(part) for part in inner) if inner else annotation in _PLAIN


_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
ALLOWED = {
    "timeout": ("s", 600),
    "connect_timeout": ("s", 600),
    "client_retry_timeout": ("", 600),
    "client_max_retries": ("", 20),
    "download_retry_count": ("", 20),
}
"""Settings that a request may choose: the unit after the number of each, and its largest number."""

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


def check_request(request: object) -> None:
    """InvalidInput (13), naming the key, if a request from afar asks for a storage option that is not harmless."""
    for options in find_options(request):
        if not isinstance(options, Mapping):
            raise InvalidInputError("storage_options must be an object of strings.")
        for key, value in options.items():
            _check_option(str(key), str(value))


def without_headers(request: object) -> object:
    """Return a request whose context sets no headers: over a catalog that is a server itself they would become ours."""
    context = getattr(request, "context", None)
    if not isinstance(request, BaseModel) or not context:
        return request
    kept = {key: value for key, value in context.items() if not key.lower().startswith(HEADER_CONTEXT)}
    return request if len(kept) == len(context) else request.model_copy(update={"context": kept})


def places_of(options: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options of a catalog that say where its storage is."""
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


class FileAccess(Enum):
    """Access of a caller to the files of a table."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Vendor(Protocol):
    """A source of the storage options that an answer to a client carries."""

    @property
    def is_silent(self) -> bool:
        """True if no answer ever has any, so that answers can be kept and sent again."""
        ...

    def options(self, location: str, access: FileAccess, own: Mapping[str, str] | None) -> dict[str, str] | None:
        """Storage options for whoever may do this with the table there; `own` is what the catalog itself uses."""
        ...


class Keep:
    """A vendor that returns no storage options: credentials stay in the server."""

    is_silent = True

    def options(self, location: str, access: FileAccess, own: Mapping[str, str] | None) -> dict[str, str] | None:
        return None


class Own:
    """The catalog's own options, secrets and all, for whoever may read a table: `--vend-credentials`."""

    is_silent = False

    def options(self, location: str, access: FileAccess, own: Mapping[str, str] | None) -> dict[str, str] | None:
        return dict(own) if own else None


def vend(response: object, vendor: Vendor, access: FileAccess, asked: bool | None = None, is_done: bool = False) -> Any:
    """Return an answer with the storage options that the vendor gives for each table in it; none if it was asked not
    to.

    `is_done`: the answer tells of a change that was made, and must not fail because the vendor does.
    """

    def decide(around: Mapping[str, object], own: object) -> dict[str, str] | None:
        location = around.get("location")
        if asked is False or access is FileAccess.NONE or not isinstance(location, str):
            return None
        try:
            return vendor.options(location, access, own if isinstance(own, Mapping) else None)
        except LanceNamespaceError:
            if not is_done:
                raise
            return None

    return replace_options(response, decide)
