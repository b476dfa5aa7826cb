"""A pipeline as a job of somebody else's Spark: `spark-submit job.py pipeline.toml`.

The session is spark-submit's own: its master, its settings, its environment.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from headwater.pipeline import read_pipeline, run_pipeline


def main(file: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    try:
        done = run_pipeline(read_pipeline(file), spark, say=print)
        for report in done.reports:
            print(report.job, report.table, report.rows, report.where)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
