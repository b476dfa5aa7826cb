"""The pipeline's tables: a stream out of a Headwater table into one, and an aggregate of that."""

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark: Any = SparkSession.active()


@dp.table(name="clean_orders")  # type: ignore[untyped-decorator]
def clean_orders() -> DataFrame:
    """Every order that has an amount, as it arrives in lake.shop.orders."""
    return spark.readStream.table("lake.shop.orders").where("amount IS NOT NULL")


@dp.materialized_view(name="totals")  # type: ignore[untyped-decorator]
def totals() -> DataFrame:
    """What each customer has spent."""
    return spark.read.table("clean_orders").groupBy("customer").agg(F.sum("amount").alias("total"))
