"""One call prepares a Spark session for a catalog, embedded or behind a server."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.errors import InvalidInputError
from headwater.spark.build import ensure_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG_CLASS = "headwater.spark.HeadwaterCatalog"
ENVIRONMENT = "HEADWATER_SPARK_CATALOG_"
EXTENSIONS_CLASS = "headwater.spark.Extensions"
NO_JAR = (
    "The Headwater jar is not there and cannot be built without a JDK (javac 17 or newer), so SQL over the catalog "
    "{name!r} is not available in this session. DataFrame reads and writes and streams work through "
    "format('headwater'); give .option('catalog', {name!r}). Install a JDK or a wheel of headwater to have SQL."
)

_servers: dict[str, Any] = {}


def configure(
    builder: SparkSession.Builder,
    name: str,
    *,
    root: str | None = None,
    uri: str | None = None,
    token: str | None = None,
    **properties: str,
) -> SparkSession.Builder:
    """Make the catalog known to the session as `name`.

    `root`: a directory catalog, served to this session alone on loopback with a random token, as long as this
    process lives. `uri` and `token`: a server. Other properties become options of the catalog (`header.*`).
    """
    if (root is None) == (uri is None):
        raise InvalidInputError("Give either root= (an embedded catalog) or uri= (a server), not both.")
    if root is not None:
        uri, token = _serve(root)
    options = {"uri": uri or "", **({"token": token} if token else {}), **properties}
    for key, value in options.items():
        builder = builder.config(f"spark.sql.catalog.{name}.{key}", value)
    os.environ[ENVIRONMENT + name] = json.dumps(options)  # for the data source in Python, which sees no session
    return _with_jar(_with_python(builder), name)


def _with_python(builder: SparkSession.Builder) -> SparkSession.Builder:
    """On one machine Spark's Python is this one; on a cluster PYSPARK_PYTHON says which, as always with PySpark."""
    master = str(getattr(builder, "_options", {}).get("spark.master", "local"))
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.headwater.python", os.environ["PYSPARK_PYTHON"])
    return builder.config("spark.sql.python.filterPushdown.enabled", "true").config(
        "spark.sql.execution.arrow.maxRecordsPerBatch", "65536"
    )


def _with_jar(builder: SparkSession.Builder, name: str) -> SparkSession.Builder:
    jar = ensure_jar()
    if jar is None:
        warnings.warn(NO_JAR.format(name=name), stacklevel=3)
        return builder
    known: dict[str, str] = getattr(builder, "_options", {})
    jars = [part for part in known.get("spark.jars", "").split(",") if part and part != str(jar)]
    extensions = [part for part in known.get("spark.sql.extensions", "").split(",") if part]
    if EXTENSIONS_CLASS not in extensions:
        extensions.append(EXTENSIONS_CLASS)
    return (
        builder.config(f"spark.sql.catalog.{name}", CATALOG_CLASS)
        .config("spark.jars", ",".join([*jars, str(jar)]))
        .config("spark.sql.extensions", ",".join(extensions))
    )


def _serve(root: str) -> tuple[str, str]:
    """The loopback server of a root in this process: one per root, started when first asked for."""
    key = root if "://" in root else str(Path(root).resolve())
    if key not in _servers:
        _servers[key] = _start(key)
    running, token = _servers[key]
    return running.url, token


def _start(root: str) -> tuple[Any, str]:
    """A server of our own on loopback. The extra `server` is needed only here."""
    from headwater import DirectoryNamespace
    from headwater.rest.server import start_in_thread

    token = secrets.token_urlsafe(32)
    running = start_in_thread(DirectoryNamespace(root=root), host="127.0.0.1", port=0, api_key=token)
    atexit.register(running.stop)
    return running, token
