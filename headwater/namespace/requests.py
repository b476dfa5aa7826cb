"""Requests as they arrive: a pydantic model, a plain dict, or pylance's dict with `model_dump`. Parsed once, here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headwater.errors import InvalidInputError

Request = TypeVar("Request", bound=BaseModel)
SNAPSHOT = "snapshot:"
"""Before the name of a snapshot, where a moment is said as text: such a name may be a number."""
LANCE_TYPES = {"schema_types": "lance"}
"""The context of a DescribeTable that wants the schema in Lance's own spelling, which keeps units, zones and scales."""
DELETED_ROWS = "num_deleted_rows"
"""The entry of the context of DeleteFromTable's answer that counts rows: the document has no field for them."""
MAX_VECTORS = 1024
MAX_DIMENSION = 65_536
NUMBERS = frozenset((int, float))
_SLOT = re.compile(r"-?[0-9]{1,18}")


class AlterNamespaceRequest(BaseModel, defer_build=True):
    """The request of AlterNamespaceProperties: properties to set, and names of properties to remove."""

    id: list[str] | None = None
    properties: dict[str, str] = {}
    removed: list[str] = []


class RenameNamespaceRequest(BaseModel, defer_build=True):
    """The request of RenameNamespace: the namespace, and the identifier it gets."""

    id: list[str] | None = None
    new_id: list[str] | None = None


class PageRequest(BaseModel, defer_build=True):
    """Request of the web page; each question uses some of the fields. `word`: the text of a filter or a search.

    `since` and `until`: the first and the last commit or table version. `tables`: those that a query reads. `name`,
    `role`, `scope` and `expires_ms` are about a key or a role.
    """

    id: list[str] | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 200
    word: str = ""
    details: bool = False
    tables: list[list[str]] = []
    name: str = ""
    role: str = ""
    scope: list[str] = []
    expires_ms: int | None = None


def format_moment(moment: object) -> int | str:
    """Return a slot, a time with a zone or the name of a snapshot, as a request says it; 13 for anything else."""
    if isinstance(moment, str):
        return f"{SNAPSHOT}{moment}"
    if isinstance(moment, float):
        moment = datetime.fromtimestamp(moment, UTC)
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidInputError("A time to read at needs a time zone: use datetime.now(UTC) or the like.")
        return moment.isoformat()
    if isinstance(moment, int) and not isinstance(moment, bool):
        return moment
    raise InvalidInputError(f"A moment is a slot, a time with a zone or the name of a snapshot, not {moment!r}.")


def parse_moment(text: int | str) -> int | datetime | str:
    """Parse a moment: a commit, a time with a zone, or the name of a snapshot, which is neither."""
    if isinstance(text, int):
        return text
    if text.startswith(SNAPSHOT):
        return text.removeprefix(SNAPSHOT)
    if _SLOT.fullmatch(text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return time if time.tzinfo is not None else text


def build(kind: type[Request], **fields: object) -> Request:
    """Return a request of these fields, or raise InvalidInput (13)."""
    return parse_request(kind, fields)


def with_ignore_missing(fields: dict[str, object]) -> dict[str, object]:
    """Return a request whose `ignore_missing` stands in its context too, also inside the operations of a batch.

    The directory document has that field of BatchDeleteTableVersions; the released model has not, and would drop it.
    """
    operations = fields.get("operations")
    if isinstance(operations, list):
        fields = {**fields, "operations": [_within(each) if isinstance(each, dict) else each for each in operations]}
    if "ignore_missing" not in fields:
        return fields
    told = str(fields["ignore_missing"]).lower()
    if told not in ("true", "false"):
        raise InvalidInputError("ignore_missing is true or false.")
    context = fields.get("context")
    return {**fields, "context": {**(context if isinstance(context, dict) else {}), "ignore_missing": told}}


def _within(operation: dict[str, object]) -> dict[str, object]:
    part = operation.get("delete_table_versions")
    return {**operation, "delete_table_versions": with_ignore_missing(part)} if isinstance(part, dict) else operation


def parse_request(kind: type[Request], request: Any) -> Request:
    """Return the request as its model, or InvalidInput (13)."""
    if isinstance(request, kind):
        return request
    values = request.model_dump() if hasattr(request, "model_dump") else request
    try:
        fields = with_ignore_missing(dict(values or {}))
        if isinstance(fields.get("on"), str):  # merge_insert: a string in the OpenAPI document, a list in the model
            fields["on"] = [fields["on"]]
        return kind.model_validate(fields)
    except (ValidationError, TypeError, ValueError) as error:
        reason = str(error).replace("\n", " ")[:300]
        raise InvalidInputError(f"The request is not a valid {kind.__name__}: {reason}") from None


def check_vectors(vectors: Sequence[object]) -> None:
    """Raise InvalidInput (13) for more or longer query vectors than a search takes, and for what is not a number."""
    if len(vectors) > MAX_VECTORS:
        raise InvalidInputError(f"At most {MAX_VECTORS} vectors can be searched for at once: ask several times.")
    for vector in vectors:
        if (
            not isinstance(vector, list)
            or not 0 < len(vector) <= MAX_DIMENSION
            or not NUMBERS.issuperset(map(type, vector))
        ):
            raise InvalidInputError(
                f"A query vector is a list of 1 to {MAX_DIMENSION} values, all of them finite numbers."
            )
