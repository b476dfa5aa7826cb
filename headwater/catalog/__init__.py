"""The Python API: a catalog of any kind by dotted names, with Arrow tables in and out.

catalog = headwater.Catalog("./lake")
catalog.create_table("prod.users", pa.table({"id": [1, 2]}))
catalog["prod.users"].to_arrow()
"""

from typing import TYPE_CHECKING

from headwater.catalog.catalog import Catalog
from headwater.catalog.results import TableSearch, TableVersion, WriteResult
from headwater.catalog.table import CatalogTable
from headwater.imports import exports

if TYPE_CHECKING:
    from headwater.catalog.streams import CatalogStream
    from headwater.verbs.object_verbs import DescribedObject

__all__ = ["Catalog", "CatalogStream", "CatalogTable", "DescribedObject", "TableSearch", "TableVersion", "WriteResult"]

__getattr__ = exports(
    __name__,
    {"CatalogStream": "headwater.catalog.streams", "DescribedObject": "headwater.verbs.object_verbs"},
)
