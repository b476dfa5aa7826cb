"""Headwater: one transactional catalog for Lance tables and delta streams, on plain storage.

    Python, REST, CLI, Spark ──> namespace (the Lance semantics, once) ──> registry ──> store

Start with `headwater.Catalog("./lake")` or `headwater.connect("dir", {"root": "./lake"})`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater import imports

if TYPE_CHECKING:
    from headwater.catalog import Catalog, CatalogTable
    from headwater.config import connect, open_catalog
    from headwater.loads.front import dlt_destination
    from headwater.metastore import Metastore
    from headwater.namespace.directory import DirectoryNamespace
    from headwater.namespace.metastore import MetastoreNamespace

__all__ = [
    "Catalog",
    "CatalogTable",
    "DirectoryNamespace",
    "Metastore",
    "MetastoreNamespace",
    "connect",
    "dlt_destination",
    "open_catalog",
]
__version__ = "0.1.0"

_HOMES = {
    "Catalog": "headwater.catalog",
    "CatalogTable": "headwater.catalog",
    "DirectoryNamespace": "headwater.namespace.directory",
    "Metastore": "headwater.metastore",
    "MetastoreNamespace": "headwater.namespace.metastore",
    "connect": "headwater.config",
    "dlt_destination": "headwater.loads.front",
    "load_ipython_extension": "headwater.notebook",
    "open_catalog": "headwater.config",
}


imports.prepare()


__getattr__ = imports.exports(__name__, _HOMES)
"""The metastore and the command line do without pylance."""


def __dir__() -> list[str]:
    """Return the public names (docs/api.md), without the modules that are imported so far."""
    return [*__all__, "__version__"]
