"""Headwater: one transactional catalog for Lance tables and delta streams, on plain storage.

    Python, REST, CLI, Spark ──> namespace (the Lance semantics, once) ──> registry ──> store

Start with `headwater.connect("dir", {"root": "./lake"})` or `headwater.Catalog("./lake")`.
"""

from headwater.catalog import Catalog, CatalogTable
from headwater.config import connect, open_catalog
from headwater.namespace.directory import DirectoryNamespace

__all__ = ["Catalog", "CatalogTable", "DirectoryNamespace", "connect", "open_catalog"]
__version__ = "0.1.0"
