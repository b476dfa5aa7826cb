"""Headwater on Spark in two minutes: `python examples/demo.py [folder]`.

Makes a lake in a folder of its own (never in one that is there, and nothing is removed), loads generated documents with
a text and a vector column, merges updates in SQL, travels in time, builds indices on executors, searches, streams, and
prints the tree and what to try next.
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.spark import configure

FOLDER = "headwater-demo"
ROWS = 300_000
DIMENSION = 32
WORDS = (
    "river",
    "delta",
    "lake",
    "stream",
    "spring",
    "source",
    "flood",
    "tide",
    "rain",
    "snow",
    "ice",
    "vapor",
    "bank",
)


class Progress:
    """Says what is being done, and how long it took."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._step = 0

    def __call__(self, text: str) -> None:
        self._step += 1
        print(f"[{time.perf_counter() - self._start:5.1f} s] {self._step:2d}. {text}", flush=True)


def documents(spark: SparkSession, rows: int) -> DataFrame:
    words = F.array(*[F.lit(word) for word in WORDS])
    picked = [F.element_at(words, ((F.col("id") * prime) % len(WORDS) + 1).cast("int")) for prime in (1, 7, 11, 13)]
    vector = F.array(*[F.sin(F.col("id") * (index + 1) / 1000).cast("float") for index in range(DIMENSION)])
    return spark.range(rows).select(
        "id",
        F.concat_ws(" ", *picked).alias("body"),
        (F.col("id") % 100).cast("int").alias("topic"),
        vector.alias("embedding"),
    )


def prepare(folder: Path) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = configure(builder, "lake", root=str(folder)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def load(spark: SparkSession, say: Progress) -> None:
    say(f"Creating lake.prod.docs and loading {ROWS:,} documents with text and {DIMENSION}-dim vectors")
    spark.sql("CREATE NAMESPACE lake.prod")
    spark.sql(
        "CREATE TABLE lake.prod.docs (id BIGINT, body STRING, topic INT, embedding ARRAY<FLOAT>) "
        f"TBLPROPERTIES ('vector.embedding' = '{DIMENSION}')"
    )
    documents(spark, ROWS).writeTo("lake.prod.docs").append()
    say(f"   {spark.table('lake.prod.docs').count():,} rows, counted from the manifest")


def merge(spark: SparkSession, say: Progress) -> None:
    say("Merging 20,000 updates and 10,000 new documents in SQL")
    fresh = documents(spark, ROWS + 10_000).where(f"id >= {ROWS} OR id % 15 = 0")
    fresh.withColumn("body", F.concat(F.lit("edited "), F.col("body"))).createOrReplaceTempView("updates")
    spark.sql(
        """MERGE INTO lake.prod.docs t USING updates s ON t.id = s.id
           WHEN MATCHED THEN UPDATE SET body = s.body
           WHEN NOT MATCHED THEN INSERT *"""
    )
    spark.sql("DELETE FROM lake.prod.docs WHERE topic = 99")
    counted = {
        version: spark.sql(f"SELECT count(*) FROM lake.prod.docs VERSION AS OF {version}").first()[0]
        for version in (2, 3, 4)
    }
    say(f"   travelled in time: {', '.join(f'version {v}: {n:,} rows' for v, n in counted.items())}")
    changes = spark.sql(
        "SELECT _change_type, count(*) AS n FROM lake.prod.docs CHANGES FROM VERSION 3 TO VERSION 4 "
        "GROUP BY 1 ORDER BY 1"
    ).collect()
    say(f"   what versions 3 and 4 changed: {', '.join(f'{row.n:,} {row._change_type}' for row in changes)}")


def search(spark: SparkSession, say: Progress) -> None:
    say("Building a BTREE, a full-text and a vector index on executors")
    spark.sql("CALL lake.system.create_index('prod.docs', 'id', 'BTREE')")
    spark.sql("CALL lake.system.create_index('prod.docs', 'body', 'INVERTED')")
    options = '{"num_partitions": 16}'
    spark.sql(f"CALL lake.system.create_index('prod.docs', 'embedding', 'IVF_FLAT', NULL, '{options}')")
    target = spark.sql("SELECT embedding FROM lake.prod.docs WHERE id = 4242").first()[0]
    query = ", ".join(map(str, target))
    say("Searching")
    spark.sql(
        f"SELECT id, body, topic, _distance FROM vector_search('lake.prod.docs', 'embedding', array({query}), 3)"
    ).show(truncate=60)
    spark.sql("SELECT id, body, _score FROM text_search('lake.prod.docs', 'body', 'flood vapor', 3)").show(truncate=60)


def stream(spark: SparkSession, folder: Path, say: Progress) -> None:
    say("Streaming the table into lake.prod.topics, exactly once")
    spark.sql("CREATE TABLE lake.prod.topics (topic INT, documents BIGINT)")
    counted = spark.readStream.table("lake.prod.docs").groupBy("topic").agg(F.count("*").alias("documents"))
    writer = counted.writeStream.outputMode("complete").option("checkpointLocation", str(folder / ".demo-checkpoint"))
    writer.trigger(availableNow=True).toTable("lake.prod.topics").awaitTermination()
    say(f"   {spark.table('lake.prod.topics').count()} topics")


def show_tree(spark: SparkSession) -> None:
    print("\nlake")
    for namespace in spark.sql("SHOW NAMESPACES IN lake").collect():
        print(f"└── {namespace[0]}")
        for table in spark.sql(f"SHOW TABLES IN lake.{namespace[0]}").collect():
            name = f"lake.{table.namespace}.{table.tableName}"
            version = dict(spark.sql(f"SHOW TBLPROPERTIES {name}").collect())["version"]
            print(f"    └── {table.tableName}: {spark.table(name).count():,} rows, version {version}")


NEXT = """
Try next:
    headwater --help                                   the same catalog from the command line
    headwater serve {folder}                    and over REST, for pylance, LanceDB, lance-spark, curl
    python - <<'END'
    from pyspark.sql import SparkSession
    from headwater.spark import configure
    spark = configure(SparkSession.builder.master("local[2]"), "lake", root="{folder}").getOrCreate()
    spark.sql("SELECT topic, count(*) FROM lake.prod.docs GROUP BY topic ORDER BY 2 DESC LIMIT 5").show()
    spark.sql("UPDATE lake.prod.docs SET body = 'mine' WHERE id = 1")
    spark.sql("SELECT * FROM lake.prod.docs CHANGES FROM VERSION 5").show()
    END
"""


def own_folder(given: str | None) -> Path:
    """A new folder: the one that was given, or the first of headwater-demo, headwater-demo-2, ... that is not there."""
    names = [given] if given else (FOLDER if n == 1 else f"{FOLDER}-{n}" for n in itertools.count(1))
    for name in names:
        try:
            Path(name).mkdir(parents=True)
        except FileExistsError:
            continue
        return Path(name)
    sys.exit(f"{given} exists. The demo writes only to a folder of its own: give one that is not there yet.")


def main() -> None:
    folder = own_folder(sys.argv[1] if len(sys.argv) > 1 else None)
    say = Progress()
    say("Starting Spark and a catalog of its own on loopback")
    spark = prepare(folder)
    load(spark, say)
    merge(spark, say)
    search(spark, say)
    stream(spark, folder, say)
    show_tree(spark)
    say("Done")
    print(NEXT.format(folder=folder))
    spark.stop()


if __name__ == "__main__":
    main()
