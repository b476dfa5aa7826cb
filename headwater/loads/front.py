"""`headwater.dlt_destination`: can be imported without dlt, and needs it when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.names import parse_name

if TYPE_CHECKING:
    from headwater.catalog import Catalog

destination = when_used("headwater.loads.destination")
INTO = "{dataset}.{table}"


def dlt_destination(catalog: str | Catalog, into: str = INTO, publish: bool = True, **config: object) -> Any:
    """Return a catalog as a destination of dlt, for `dlt.pipeline(destination=...)`.

    `catalog`: a path, an address, a profile, or an open `Catalog` with transactions.
    `into`: the names of tables, with `{dataset}` and `{table}`.
    `publish`: publish the tables of a load package in the commit of its rows.
    `config`: further configuration of the destination, by dlt's names.
    """
    named(into, "dataset", "table")
    return destination.HeadwaterDestination(catalog, into=into, publish=publish, **config)


def named(into: str, dataset: str, table: str) -> tuple[str, ...]:
    """Return the name of a table by a pattern; raise InvalidInput (13) for one that names all tables alike."""
    if "{table}" not in into:
        raise InvalidInputError(f"into = {into!r} has no {{table}}: tables of a load would have one name.")
    try:
        return tuple(part.format(dataset=dataset, table=table) for part in parse_name(into))
    except (KeyError, IndexError, ValueError):
        raise InvalidInputError(f"into = {into!r} may have {{dataset}} and {{table}}, and no other braces.") from None
