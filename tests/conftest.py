"""Servers and marks that several folders share. Factories stand in the module that uses them."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from httpx._transports import default as httpx_transports
from hypothesis import HealthCheck, settings

import headwater  # noqa: F401 - before any test imports `lance_namespace`: it spares each worker two seconds of CPU
from tests.documents_ran import DocumentsRan

settings.register_profile("headwater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headwater")  # how fast a machine is proves nothing

httpx_transports.create_ssl_context = functools.cache(  # type: ignore[attr-defined]
    httpx_transports.create_ssl_context  # type: ignore[attr-defined]
)
"""httpx reads the certificates of the machine for each client, of plain HTTP too: 30 ms of CPU in a thousand tests."""
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""A JVM of a test is young when it ends: what its best compiler makes of its code comes too late for it."""
os.environ.setdefault("HEADWATER_ENGINE", "embedded")
"""The engine of pipelines in tests that are not about Spark: a run of `make test` starts one JVM."""


class Together:
    """Tests that share something costly are one group, made by one worker: the S3 server, or a fixture of a module."""

    @pytest.hookimpl(tryfirst=True)  # xdist reads the marks in its own
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if (group := group_of(item)) and item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(group))


def group_of(item: pytest.Item) -> str | None:
    found: Any = getattr(item, "_fixtureinfo", None)
    fixtures = found.name2fixturedefs if found is not None else {}
    if "s3_server" in fixtures:
        return "s3"
    shared = any(made[-1].scope == "module" for made in fixtures.values())
    return f"{item.path.parent.name}-{item.path.stem}" if shared else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Together())
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the controller sees the reports of all workers
        config.pluginmanager.register(DocumentsRan(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that share a Spark session first: they are one long piece of work, and the rest fits beside it."""
    items.sort(key=lambda item: item.path.parent.name != "spark")


@functools.cache
def step_back() -> None:
    """Let the worker with the Spark session go first: it has the longest way, and the others fill what it leaves."""
    os.nice(5)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ and item.path.parent.name != "spark":
        step_back()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server of our own, on loopback, for this test process."""
    from headwater.testing.bucket_server import BucketServer

    with BucketServer() as server:
        yield server.url


@pytest.fixture
def s3_options(s3_server: str) -> dict[str, str]:
    return {
        "endpoint": s3_server,
        "access_key_id": "testing",
        "secret_access_key": "testing",
        "region": "us-east-1",
        "allow_http": "true",
        "virtual_hosted_style_request": "false",
    }


@pytest.fixture
def s3_root(s3_server: str) -> str:
    """A bucket of its own for each test."""
    bucket = f"b{uuid.uuid4().hex}"
    httpx.put(f"{s3_server}/{bucket}").raise_for_status()  # a client of boto3 takes 40 ms of CPU to make
    return f"s3://{bucket}/lake"
