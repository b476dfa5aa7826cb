"""Catalogs and data on the move: a directory becomes a metastore, tables go out and come in.

upgrade   a directory root becomes a metastore, in place
"""

from headwater.moving.upgrade import Upgraded, upgrade

__all__ = ["Upgraded", "upgrade"]
