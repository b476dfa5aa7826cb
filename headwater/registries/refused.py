"""What a catalog refuses because of what a table is. Needs no Lance."""

from __future__ import annotations

from headwater.errors import InvalidInputError
from headwater.names import ObjectId


def fed_by_its_log(table: ObjectId, reason: str | None = None) -> InvalidInputError:
    why = f" This version cannot be taken: {reason}." if reason else ""
    return InvalidInputError(
        f"{table} is a stream table: its rows come from its change log.{why} Append, upsert or delete through the "
        "catalog's stream table, and publish; indices, settings and columns of your own can be added."
    )
