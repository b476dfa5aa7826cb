"""A catalog in a temporary folder, served for real on a loopback port."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headwater import DirectoryNamespace
from headwater.config import init, resolve
from headwater.rest import endpoint
from headwater.rest.server import RunningServer, start_in_thread
from headwater.rest.settings import Settings
from tests.rest.samples import Certificate, Serve


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An empty directory catalog. One that is not there is refused by whoever only reads."""
    init(resolve(str(tmp_path / "lake"), {"impl": "dir"}))
    return str(tmp_path / "lake")


@pytest.fixture
def catalog(root: str) -> DirectoryNamespace:
    return DirectoryNamespace(root=root)


@pytest.fixture
def serve(catalog: DirectoryNamespace) -> Iterator[Serve]:
    """Start servers that stop with the test."""
    running: list[RunningServer] = []

    def start(settings: Settings | None = None, namespace: Any = None, **more: Any) -> RunningServer:
        server = start_in_thread(namespace or catalog, settings=settings, **more)
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    """One for 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = (
        builder.serial_number(1).not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    )
    cert = builder.add_extension(names, False).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (tmp_path / "cert.pem").write_bytes(cert.public_bytes(pem))
    return Certificate(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))


@pytest.fixture
def server(serve: Serve) -> RunningServer:
    return serve()


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of events end at once: a test that walks all routes does not wait for their five minutes."""
    monkeypatch.setattr(endpoint, "STREAM_SECONDS", 0.05)
