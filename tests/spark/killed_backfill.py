"""A driver of a backfill in a process of its own: arguments are the catalog's root. See test_jobs.py."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.pipeline import backfill

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    print("DONE", backfill(spark, Catalog(sys.argv[1]), "raw.texts", batch=50).rows)
