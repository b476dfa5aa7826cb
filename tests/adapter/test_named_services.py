"""Services whose servers no public registry has, each behind our server: Polaris, Unity Catalog, Gravitino.

A test runs against the server that a variable names, and says when there is none. The variable holds the properties of
the implementation as JSON, and the namespace to work in:

    HEADWATER_TEST_UNITY='{"endpoint": "http://127.0.0.1:8080", "root": "/tmp/lake", "in": "unity.test"}'
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace

import headwater

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("named-services")]
PROJECT = Path(__file__).parents[2]
ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})
IMPLEMENTATIONS = {"polaris": "polaris", "unity": "unity", "gravitino": "rest"}
"""By service: the implementation that `headwater serve --impl` takes. Gravitino speaks Lance's own protocol."""


@pytest.fixture(params=IMPLEMENTATIONS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a server of ours in front of the service, and the namespace to work in."""
    variable = f"HEADWATER_TEST_{request.param.upper()}"
    if variable not in os.environ:
        pytest.skip(f"no server of {request.param} can be fetched (docs/rest.md): {variable} names one to try")
    properties = json.loads(os.environ[variable])
    place = properties.pop("in")
    told = [word for key, value in properties.items() for word in ("--property", f"{key}={value}")]
    line = ["--impl", IMPLEMENTATIONS[request.param], *told, "--port", "0", "--data-workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "serve", *line],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], place
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_service_is_served_to_the_clients_of_lance(served: tuple[str, str]) -> None:
    url, place = served
    catalog, name = headwater.Catalog(url), f"{place}.headwater_probe"
    catalog.create_namespace(place, exist_ok=True)
    lance.write_dataset(ROWS, namespace_client=RestNamespace(uri=url), table_id=name.split("."))
    try:
        assert "headwater_probe" in catalog.tables(place)
        catalog[name].append(ROWS)
        assert (catalog[name].count(), catalog[name].to_arrow()["id"].to_pylist()) == (4, [1, 2, 1, 2])
    finally:
        catalog.deregister_table(name)
