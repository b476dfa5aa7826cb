"""Catalogs that a running session learns of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.spark.session import settings


def learn(spark: SparkSession, name: str, **where: Any) -> None:
    """Let the session know a catalog by this name, as `configure` would have before it started."""
    for key, value in settings(name, **where).items():
        if key.startswith("spark.sql.catalog."):
            spark.conf.set(key, value)


def metastore_as(spark: SparkSession, name: str, root: Path) -> Catalog:
    """A new metastore catalog with a namespace raw, which the session knows by this name."""
    made = Catalog(str(root), impl="metastore")
    made.create_namespace("raw")
    learn(spark, name, root=str(root), impl="metastore")
    return made
