"""LanceDB's TypeScript client against a server, from npm by the versions and hashes of its lock file."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from lance_namespace import CreateNamespaceRequest

from headwater import MetastoreNamespace
from headwater.clock import SystemClock
from headwater.rest.auth.keys import create_key
from tests.rest.samples import Serve

PROJECT = Path(__file__).parent / "typescript"
MOST_SECONDS = 600


def installed(folder: Path) -> Path:
    """Install the client into a folder; skip where there is no Node, no npm or no registry."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("no Node: LanceDB's TypeScript client is not tried")
    shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
    command = ["npm", "ci", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--cache", "cache"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm ci did not end within {MOST_SECONDS} s: LanceDB's TypeScript client is not tried")
    if done.returncode:
        assert "EINTEGRITY" not in done.stderr, done.stderr[-2000:]
        pytest.skip(f"npm ci failed, so LanceDB's TypeScript client is not tried: {done.stderr[-400:]}")
    return folder


@pytest.mark.long
def test_everyday_calls_of_the_typescript_client_work(serve: Serve, tmp_path: Path) -> None:
    folder = installed(tmp_path / "client")
    catalog = MetastoreNamespace(root=str(tmp_path / "own"))
    catalog.create_namespace(CreateNamespaceRequest(id=["prod"]))
    key = create_key(catalog.store, SystemClock(), "admin", ["prod"])[1]
    url = serve(namespace=catalog).url
    ran = subprocess.run(
        ["node", "matrix.mjs", url, key], cwd=folder, capture_output=True, text=True, timeout=MOST_SECONDS
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    outcome = json.loads(ran.stdout.splitlines()[-1])
    assert len(outcome) > 20
    assert {name: failure for name, failure in outcome.items() if failure} == {}


def test_the_lock_file_names_versions_and_hashes_and_no_registry() -> None:
    lock = json.loads((PROJECT / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert all(entry["integrity"].startswith("sha512-") and "resolved" not in entry for entry in packages.values())
