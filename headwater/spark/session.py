"""One call prepares a Spark session for a catalog, embedded or behind a server."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.clock import unique_hex
from headwater.config import REST, Resolved, open_resolved, resolve
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.client import check_properties, token_headers
from headwater.spark.access_file import ACCESS_FILE, ENVIRONMENT, write_access
from headwater.spark.build import NO_COMPILER, JarNotBuiltError, ensure_jar, spark_jars
from headwater.spark.fresh import LAKE, lake_option
from headwater.spark.java_runtime import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server = when_used("headwater.rest.server")
CATALOG_CLASS = "headwater.spark.HeadwaterCatalog"
EXTENSIONS_CLASS = "headwater.spark.Extensions"
NO_JAR = (
    "This copy of headwater has no Spark jar, and cannot build it: {reason}. So SQL over the catalog {name!r} is not "
    "available in this session; DataFrame reads and writes and streams work through format('headwater') with "
    ".option('catalog', {name!r}). To have SQL, do what is missing, then run `python -m headwater.spark.build`."
)
_servers: dict[bytes, Any] = {}
_configured: dict[str, Resolved] = {}


def configure(
    builder: SparkSession.Builder,
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    uri: str | None = None,
    token: str | None = None,
    **properties: object,
) -> SparkSession.Builder:
    """Make the catalog known to the session as `name`.

    `root` (or `path`): a path, a URI or the name of a profile, with every property that `headwater.connect` takes
    (`**{"storage.region": ...}`). A catalog on storage is served to this session alone, on loopback with a random
    token, as long as this process lives. `uri` and `token`: a server, with its own properties (`header.*`).
    """
    known: dict[str, str] = getattr(builder, "_options", {})
    if "spark.remote" not in known:
        require_java()
    local = str(known.get("spark.master", "local")).startswith("local")
    found = settings(name, root=root, path=path, uri=uri, token=token, local=local, **properties)
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
    root: str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    uri: str | None = None,
    token: str | None = None,
    local: bool = True,
    **properties: object,
) -> dict[str, str]:
    """Return the options as Spark settings, for `--conf` of spark-submit, spark-pipelines or a Connect server.

    None of them is a secret: how to reach the catalog stands in a file that only this user can read. With `local`,
    Spark runs on this machine and its Python is this one; on a cluster PYSPARK_PYTHON says which.
    """
    given = [os.fspath(each) for each in (root, path, uri) if each is not None]
    if len(given) != 1:
        raise InvalidInputError("Give either root= or path= (a catalog) or uri= (a server), one of them.")
    catalog = resolve(given[0], properties)
    file = write_access(_reach(catalog, token))
    sent = token_headers(token) if token else {}
    _configured[name] = replace(catalog, properties={**catalog.properties, **sent})
    os.environ[ENVIRONMENT + name] = file
    found = {f"spark.sql.catalog.{name}.{ACCESS_FILE}": file}
    if local:
        found |= _this_python()
    found["spark.sql.python.filterPushdown.enabled"] = "true"
    return found | _batches() | _jar_settings(name)


def own_settings(master: str) -> dict[str, str]:
    """Return the settings of a session that knows no catalog, for jobs that are handed one.

    On this machine it has the jar, unless somebody has said how Spark is started here: what they say about jars would
    be lost. It works without, only slower.
    """
    if not master.startswith("local") or _is_arranged():
        return {}
    try:
        jar = ensure_jar()
    except JarNotBuiltError:
        jar = None
    return _this_python() | _batches() | ({"spark.jars": str(jar)} if jar is not None else {})


def _is_arranged() -> bool:
    """Return True if Spark has settings from elsewhere: another Spark, or a folder of settings."""
    told = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
    return any(name in os.environ for name in told) or (spark_jars().parent / "conf").exists()


def _this_python() -> dict[str, str]:
    """Spark's Python is this one, or the one that was told to it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return {"spark.headwater.python": os.environ["PYSPARK_PYTHON"]}


def _batches() -> dict[str, str]:
    return {"spark.sql.execution.arrow.maxRecordsPerBatch": "65536"}


def configured(name: str) -> Resolved:
    """Return the catalog that this process configured as `name`."""
    if name not in _configured:
        raise InvalidInputError(
            f"This process has configured no catalog {name!r}: call headwater.spark.configure, or give a Catalog."
        )
    return _configured[name]


def _reach(catalog: Resolved, token: str | None) -> dict[str, str]:
    """Return the access of Spark's processes: the named server, or one that this process starts for a storage root."""
    if catalog.impl in REST:
        check_properties(catalog.properties)
        options = {key: str(value) for key, value in catalog.properties.items()}
        return {**options, **({"token": token} if token else {})}
    if token is not None:
        raise InvalidInputError("token= is for a server (uri=): a catalog on storage is served to this session alone.")
    url, own = _serve(catalog)
    return {"uri": url, "token": own, **_lake(catalog)}


def _lake(catalog: Resolved) -> dict[str, str]:
    """Return the root of the metastore, or an empty text for another kind of catalog."""
    opened = open_resolved(catalog)
    if not isinstance(opened, MetastoreNamespace):
        return {LAKE: ""}
    known = opened.properties
    root = known.root if "://" in known.root else os.path.abspath(known.root)
    return {LAKE: lake_option(root, known.storage, known.author)}


def _jar_settings(name: str) -> dict[str, str]:
    try:
        jar = ensure_jar()
    except JarNotBuiltError as error:
        raise UnsupportedOperationError(str(error)) from None
    if jar is None:
        warnings.warn(NO_JAR.format(name=name, reason=NO_COMPILER), stacklevel=4)
        return {}
    return {
        f"spark.sql.catalog.{name}": CATALOG_CLASS,
        "spark.jars": str(jar),
        "spark.sql.extensions": EXTENSIONS_CLASS,
    }


def _serve(catalog: Resolved) -> tuple[str, str]:
    """Return the loopback server of a catalog in this process: one for the same properties, started when first asked
    for."""
    key = msgspec.json.encode([catalog.impl, catalog.properties, os.getcwd()], order="deterministic", enc_hook=str)
    if key not in _servers:
        _servers[key] = _start(catalog)
    running, token = _servers[key]
    return running.url, token


def _start(catalog: Resolved) -> tuple[object, str]:
    """Return a server of our own on loopback, whose one key this session holds."""
    token = unique_hex(64)
    running = server.start_in_thread(open_resolved(catalog), host="127.0.0.1", port=0, api_key=token)
    atexit.register(running.stop)
    return running, token
