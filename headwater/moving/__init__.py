"""Migration: upgrade of a directory to a metastore, export and import of tables.

upgrade          turns a directory root into a metastore, in place
export           copies a catalog to a plain directory catalog
import_parquet   creates a table from a folder of Parquet files
import_deltacat  imports a DeltaCAT 2.x root with its history
"""

from headwater.moving.deltacat import ImportedRoot, import_deltacat
from headwater.moving.import_export import Exported, export, import_parquet
from headwater.moving.upgrade import Upgraded, upgrade

__all__ = ["Exported", "ImportedRoot", "Upgraded", "export", "import_deltacat", "import_parquet", "upgrade"]
