"""One call prepares a Spark session for a catalog, embedded or behind a server."""

from __future__ import annotations

import atexit
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
    return _with_jar(_with_python(builder), name)


def _with_python(builder: SparkSession.Builder) -> SparkSession.Builder:
    if "PYSPARK_PYTHON" not in os.environ:
        builder = builder.config("spark.headwater.python", sys.executable)
        builder = builder.config("spark.pyspark.python", sys.executable)
    return (
        builder.config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        .config("spark.sql.session.timeZone", os.environ.get("TZ") or "UTC")
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
    token = secrets.token_urlsafe(32)
    try:
        from headwater import DirectoryNamespace
        from headwater.rest.server import start_in_thread

        running = start_in_thread(DirectoryNamespace(root=root), host="127.0.0.1", port=0, api_key=token)
    except ImportError:
        import lance.namespace

        class Running:
            def __init__(self) -> None:
                self.adapter = lance.namespace.RestAdapter("dir", {"root": root}, host="127.0.0.1", port=0)
                self.adapter.start()
                self.url = f"http://127.0.0.1:{self.adapter.port}"

            def stop(self) -> None:
                self.adapter.stop()

        running = Running()
    atexit.register(running.stop)
    return running, token
