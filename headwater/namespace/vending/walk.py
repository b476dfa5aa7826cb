"""Every `storage_options` in a message, however deep. Pure.

Messages are models of the Lance protocol, or plain values of extensions. Fields of a model that by their type can
hold neither a model nor a free value are not looked into, so a page of 100,000 names costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

FIELD = "storage_options"
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
Decide = Callable[[Mapping[str, Any], Any], Any]
"""From the message around a `storage_options` and its value to the value that is sent instead."""


def find(message: Any) -> Iterator[Any]:
    """Each `storage_options` of a message."""
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
        yield from find(value)


def replace(message: Any, decide: Decide) -> Any:
    """The message with every `storage_options` decided anew; what does not change is not copied."""
    if isinstance(message, BaseModel):
        fields = {name: getattr(message, name) for name in _branches(type(message))}
        around = {**fields, "location": getattr(message, "location", None)} if FIELD in fields else fields
        changed = _changed(fields, around, decide)
        return message.model_copy(update=changed) if changed else message
    if isinstance(message, Mapping):
        changed = _changed(message, message, decide)
        return {**message, **changed} if changed else message
    if isinstance(message, (list, tuple)):
        items = [replace(item, decide) for item in message]
        same = all(new is old for new, old in zip(items, message, strict=True))
        return message if same else items
    return message


def _changed(fields: Mapping[str, Any], around: Mapping[str, Any], decide: Decide) -> dict[str, Any]:
    changed = {}
    for name, value in fields.items():
        if type(value) in _PLAIN and name != FIELD:
            continue
        new = decide(around, value) if name == FIELD else replace(value, decide)
        if new is not value:
            changed[name] = new
    return changed


@lru_cache(maxsize=1024)
def _branches(kind: type[BaseModel]) -> tuple[str, ...]:
    """The fields of a model to look into."""
    return tuple(name for name, field in kind.model_fields.items() if name == FIELD or not _is_plain(field.annotation))


def _is_plain(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_plain(get_args(annotation)[0])
    inner = get_args(annotation)
    return all(_is_plain(part) for part in inner) if inner else annotation in _PLAIN
