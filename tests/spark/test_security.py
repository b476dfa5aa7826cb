"""What a session gives away: no secret on a command line, no program and no token by SET, no pickle from executors."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater
from headwater.spark.access_file import read_access, write_access

PACKAGE = Path(headwater.__file__).parent


def command_lines() -> str:
    """The command lines of this user's processes, as `ps` shows them to everybody."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid():
                lines.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(lines)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc: command lines cannot be listed here")
def test_no_command_line_shows_the_token_of_the_session(spark: SparkSession) -> None:
    access = read_access(str(spark.conf.get("spark.sql.catalog.lake.access_file")))
    shown = command_lines()
    assert "spark.sql.catalog.lake.access_file" in shown, "the JVM's command line is among them"
    assert access["token"] not in shown
    assert access["token"] not in repr(spark.sparkContext.getConf().getAll())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("python", "{planted}"),
        ("token", "stolen"),
        ("uri", "http://127.0.0.1:1"),
        ("header.x", "y"),
        ("PYTHON", "{planted}"),
    ],
)
def test_sql_cannot_name_a_program_a_server_or_a_token(
    spark: SparkSession, tmp_path: Path, option: str, value: str
) -> None:
    proof = tmp_path / "ran"
    planted = tmp_path / "planted"
    planted.write_text(f"#!/bin/sh\ntouch {proof}\n")
    planted.chmod(0o755)
    name = f"evil_{option.replace('.', '_').lower()}_{option.isupper()}"
    file = write_access({"uri": "http://127.0.0.1:1"})
    spark.sql(f"SET spark.sql.catalog.{name}=headwater.spark.HeadwaterCatalog")
    spark.sql(f"SET spark.sql.catalog.{name}.access_file={file}")
    spark.sql(f"SET spark.sql.catalog.{name}.{option}={value.format(planted=planted)}")
    with pytest.raises(Exception, match="only from the configuration that Spark was started with"):
        spark.sql(f"SHOW NAMESPACES IN {name}").collect()
    assert not proof.exists()


def test_sql_cannot_make_a_file_of_others_an_access_file(spark: SparkSession, tmp_path: Path) -> None:
    open_file = tmp_path / "open"
    open_file.write_text('{"kind": "headwater-access", "options": {"uri": "http://127.0.0.1:1"}}')
    open_file.chmod(0o644)
    spark.sql("SET spark.sql.catalog.evil_file=headwater.spark.HeadwaterCatalog")
    spark.sql(f"SET spark.sql.catalog.evil_file.access_file={open_file}")
    with pytest.raises(Exception, match="mode 0600"):
        spark.sql("SHOW NAMESPACES IN evil_file").collect()


def test_nothing_is_unpickled() -> None:
    """Executors send JSON. (Spark's own data source API in Python pickles commit messages by itself.)

    The driver's tasks travel to executors pickled, as every Python function of Spark does: `work/tasks.py`.
    """
    for path in {*PACKAGE.rglob("*.py")} - {PACKAGE / "work/tasks.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"pickle", "cloudpickle", "marshal", "shelve", "dill"} & {n.split(".")[0] for n in names}, path
