"""Catalogs and data on the move: a directory becomes a metastore, tables go out and come in.

upgrade          a directory root becomes a metastore, in place
export           a catalog as a plain directory catalog elsewhere
import_parquet   a folder of Parquet files becomes a table
import_deltacat  a DeltaCAT 2.x root comes in, with its history
"""

from headwater.moving.deltacat import ImportedRoot, import_deltacat
from headwater.moving.export import Exported, export
from headwater.moving.parquet import import_parquet
from headwater.moving.upgrade import Upgraded, upgrade

__all__ = ["Exported", "ImportedRoot", "Upgraded", "export", "import_deltacat", "import_parquet", "upgrade"]
