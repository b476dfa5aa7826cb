"""Run the pipeline beside this file on a lake of its own: `python examples/pipeline/run.py ./lake`.

Makes `shop.orders`, runs the declarative pipeline (its tables are Headwater tables too), adds orders and runs it
again: the second run reads only what is new.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyspark
from lance_namespace import CreateNamespaceRequest

import headwater
from headwater.spark.session import settings

HERE = Path(__file__).resolve().parent
COLUMNS: Any = [("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64())]
ORDERS = pa.schema(COLUMNS)


def orders(first: int, count: int) -> pa.Table:
    rows = [
        {"id": n, "customer": f"c{n % 3}", "amount": None if n % 10 == 9 else 1.0} for n in range(first, first + count)
    ]
    return pa.Table.from_pylist(rows, schema=ORDERS)


def run_pipeline(conf: dict[str, str], folder: Path) -> None:
    spec = folder / "spark-pipeline.yml"
    spec.write_text((HERE / "spark-pipeline.yml").read_text() + f"storage: {(folder / 'storage').as_uri()}\n")
    target = folder / "transformations"
    target.mkdir(exist_ok=True)
    (target / "orders.py").write_text((HERE / "transformations" / "orders.py").read_text())
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-pipelines"), "run", "--remote", "local[2]", "--spec", str(spec)]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(write_conf(conf, folder))}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, env=environment, cwd=folder)


def write_conf(conf: dict[str, str], folder: Path) -> Path:
    """Spark's settings, none of which is a secret: one names a file with the catalog's token, for this user alone."""
    target = folder / "conf"
    target.mkdir(exist_ok=True)
    (target / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
    return target


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "./lake").resolve()
    work = root.with_name(root.name + "-pipeline")
    work.mkdir(parents=True, exist_ok=True)
    catalog = headwater.connect("dir", {"root": str(root)})
    catalog.create_namespace(CreateNamespaceRequest(id=["shop"], mode="exist_ok"))
    conf = settings("lake", root=str(root)) | {"spark.ui.enabled": "false"}
    lance.write_dataset(orders(0, 100), namespace_client=catalog, table_id=["shop", "orders"], mode="create")
    run_pipeline(conf, work)
    lance.write_dataset(orders(100, 50), namespace_client=catalog, table_id=["shop", "orders"], mode="append")
    run_pipeline(conf, work)
    clean = lance.dataset(namespace_client=catalog, table_id=["shop", "clean_orders"])
    totals = lance.dataset(namespace_client=catalog, table_id=["shop", "totals"])
    print("clean orders:", clean.count_rows(), "of 150")
    print("totals:", sorted(tuple(row.values()) for row in totals.to_table().to_pylist()))


if __name__ == "__main__":
    main()
