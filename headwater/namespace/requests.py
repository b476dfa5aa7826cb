"""Requests as they arrive: a pydantic model, a plain dict, or pylance's dict with `model_dump`. Parsed once, here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headwater.errors import InvalidInputError

Request = TypeVar("Request", bound=BaseModel)
MAX_PROPERTIES = 1000
MAX_PROPERTY_CHARS = 64 * 1024


class AlterNamespaceRequest(BaseModel):
    """The request of AlterNamespaceProperties: properties to set, and names of properties to remove."""

    id: list[str] | None = None
    properties: dict[str, str] = {}
    removed: list[str] = []


class CleanUpRequest(BaseModel):
    """The request of CleanUpTableVersions and OptimizeTable: which old versions of a table stay."""

    id: list[str] | None = None
    keep_versions: int | None = None
    keep_days: float | None = None
    grace_seconds: float | None = None

    def policy(self) -> dict[str, float]:
        """What was said, for the arguments of the same names."""
        return self.model_dump(exclude={"id"}, exclude_none=True)


class RenameNamespaceRequest(BaseModel):
    """The request of RenameNamespace: the namespace, and the identifier it gets."""

    id: list[str] | None = None
    new_id: list[str] | None = None


def parse_request(kind: type[Request], request: Any) -> Request:
    """The request as its model, or InvalidInput (13)."""
    if isinstance(request, kind):
        return request
    values = request.model_dump() if hasattr(request, "model_dump") else request
    try:
        fields = dict(values or {})
        if isinstance(fields.get("on"), str):  # merge_insert: a string in the OpenAPI document, a list in the model
            fields["on"] = [fields["on"]]
        return kind.model_validate(fields)
    except (ValidationError, TypeError, ValueError) as error:
        reason = str(error).replace("\n", " ")[:300]
        raise InvalidInputError(f"The request is not a valid {kind.__name__}: {reason}") from None


def check_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Properties are strings, bounded in number and size."""
    values = dict(properties or {})
    if len(values) > MAX_PROPERTIES:
        raise InvalidInputError(f"An object has at most {MAX_PROPERTIES} properties.")
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInputError(f"The property {str(key)[:80]!r} is not a string with a string value.")
        if not key or len(key) + len(value) > MAX_PROPERTY_CHARS:
            raise InvalidInputError(f"A property has a name and at most {MAX_PROPERTY_CHARS} characters.")
        try:
            (key + value).encode()
        except UnicodeEncodeError:
            raise InvalidInputError(f"The property {str(key)[:80]!r} is not valid Unicode text.") from None
    return values
