"""Catalogs and data on the move: a directory becomes a metastore, tables go out and come in.

upgrade          a directory root becomes a metastore, in place
export           a catalog as a plain directory catalog elsewhere
import_parquet   a folder of Parquet files becomes a table
"""

from headwater.moving.export import Exported, export
from headwater.moving.parquet import import_parquet
from headwater.moving.upgrade import Upgraded, upgrade

__all__ = ["Exported", "Upgraded", "export", "import_parquet", "upgrade"]
