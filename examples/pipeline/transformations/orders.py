"""The pipeline's tables: a stream out of a Headwater table into one, and an aggregate of that."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table(name="clean_orders")
def clean_orders() -> DataFrame:
    """Every order that has an amount, as it arrives in lake.shop.orders."""
    return spark.readStream.table("lake.shop.orders").where("amount IS NOT NULL")


@dp.materialized_view(name="totals")
def totals() -> DataFrame:
    """What each customer has spent."""
    return spark.read.table("clean_orders").groupBy("customer").agg(F.sum("amount").alias("total"))
