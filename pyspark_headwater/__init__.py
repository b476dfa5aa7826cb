"""Found by Spark at start-up (a top-level module named `pyspark_*`): registers the data source `headwater`."""

from headwater.spark.source import HeadwaterSource as DefaultSource

__all__ = ["DefaultSource"]
