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
    known: dict[str, str] = getattr(builder, "_options", {})
    local = str(known.get("spark.master", "local")).startswith("local")
    found = settings(name, root=root, uri=uri, token=token, local=local, **properties)
    for key in ("spark.jars", "spark.sql.extensions"):  # lists: ours joins what is there
        if key in found:
            kept = [part for part in str(known.get(key, "")).split(",") if part and part != found[key]]
            found[key] = ",".join([*kept, found[key]])
    for key, value in found.items():
        builder = builder.config(key, value)
    return builder


def settings(
    name: str,
    *,
    root: str | None = None,
    uri: str | None = None,
    token: str | None = None,
    local: bool = True,
    **properties: str,
) -> dict[str, str]:
    """The same as Spark settings, for `--conf` of spark-submit, spark-pipelines or a Connect server.

    With `local`, Spark runs on this machine and its Python is this one; on a cluster PYSPARK_PYTHON says which.
    """
    if (root is None) == (uri is None):
        raise InvalidInputError("Give either root= (an embedded catalog) or uri= (a server), not both.")
    if root is not None:
        uri, token = _serve(root)
    options = {"uri": uri or "", **({"token": token} if token else {}), **properties}
    os.environ[ENVIRONMENT + name] = json.dumps(options)  # for the data source in Python, which sees no session
    found = {f"spark.sql.catalog.{name}.{key}": value for key, value in options.items()}
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        found["spark.headwater.python"] = os.environ["PYSPARK_PYTHON"]
    found["spark.sql.python.filterPushdown.enabled"] = "true"
    found["spark.sql.execution.arrow.maxRecordsPerBatch"] = "65536"
    return found | _jar_settings(name)


def _jar_settings(name: str) -> dict[str, str]:
    jar = ensure_jar()
    if jar is None:
        warnings.warn(NO_JAR.format(name=name), stacklevel=4)
        return {}
    return {
        f"spark.sql.catalog.{name}": CATALOG_CLASS,
        "spark.jars": str(jar),
        "spark.sql.extensions": EXTENSIONS_CLASS,
    }


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
