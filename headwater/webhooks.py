"""Webhooks: a JSON body that is signed and sent to an HTTPS address, tried again a few times. The one place for both.

An address of the internal network is refused unless its owner allows it: a file or a caller could otherwise reach
services that trust this machine. The address that was judged is the one that is connected to, and no redirect is
followed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from headwater.clock import Clock
from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.references import follow

http_client, ssl = when_used("http.client"), when_used("ssl")
"""Few processes send a webhook."""

HTTPS = "https://"
SIGNATURE = "Headwater-Signature"
TIMEOUT_S = 10.0
WAITS_S = (1.0, 4.0)
"""The time before the second and the third call."""
AGAIN = (408, 429)


@dataclass(frozen=True)
class Webhook:
    """An HTTPS address. `secret`: a reference to the key of signatures. `internal`: allows any address.

    `allowed_by`: what its owner writes to allow an internal address, for the message.
    """

    to: str
    secret: str
    internal: bool = False
    allowed_by: str = "hook_internal = true"


class WebhookRefusedError(Exception):
    """A webhook that would refuse another call too."""


def check_webhook(webhook: Webhook, name: str, secret_name: str) -> None:
    """Raise InvalidInput (13) for an address that is not HTTPS, has no host, or has no secret to sign with."""
    if not webhook.to.startswith(HTTPS):
        raise InvalidInputError(f"{name} is an address without TLS: write https://...")
    if not webhook.secret:
        raise InvalidInputError(f"{name} is an address: {secret_name} must name the key that signs its body.")
    check_secret(webhook.secret, secret_name)
    try:
        host, _ = _place(webhook.to)
    except ValueError as error:
        raise InvalidInputError(f"{name} is not an address: {error}.") from None
    if not host:
        raise InvalidInputError(f"{name} is not an address: it names no host.")


def check_secret(secret: str, name: str) -> None:
    """Raise InvalidInput (13) for a secret that is no reference."""
    if not secret.startswith(("env:", "file:")):
        raise InvalidInputError(
            f"{name} is a reference, env:NAME or file:PATH: a pipeline file or a line holds no secrets."
        )


def post(webhook: Webhook, body: bytes, moment: int) -> None:
    """Send a body, signed at `moment` (seconds). OSError: try again; WebhookRefusedError: do not."""
    parts, (host, port) = urlsplit(webhook.to), _place(webhook.to)
    address = _address(webhook, host, port)
    secret = follow(webhook.secret, "hook_secret").encode()
    signed = hmac.new(secret, f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    connection = http_client.HTTPSConnection(host, port, timeout=TIMEOUT_S)
    raw = socket.create_connection((address, port), TIMEOUT_S)  # the address that was judged, not another of its name
    connection.sock = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
    try:
        headers = {"Content-Type": "application/json", SIGNATURE: f"t={moment},v1={signed}"}
        connection.request("POST", f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}", body, headers)
        status = connection.getresponse().status
    except http_client.HTTPException as error:
        raise OSError(f"{host} answered no HTTP: {error}") from None
    finally:
        connection.close()
    if not 200 <= status < 300:
        kind = OSError if status >= 500 or status in AGAIN else WebhookRefusedError
        raise kind(f"{host} answered {status}")


def attempt(act: Callable[[], None], clock: Clock) -> str:
    """Do something three times at most, each in bounded time; return why it failed, or an empty text."""
    why = ""
    for wait in (0.0, *WAITS_S):
        clock.sleep(wait)
        try:
            _bounded(act)
            return ""
        except WebhookRefusedError as error:
            return str(error)
        except Exception as error:  # whatever a hook does, it fails no run
            why = f"{type(error).__name__}: {error}"
    return why


def _bounded(act: Callable[[], None]) -> None:
    """Do something for so many seconds at most: a server may answer a byte a second, and so may its resolver."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {TIMEOUT_S:g} s")
    if raised:
        raise raised[0]


def _place(to: str) -> tuple[str, int]:
    parts = urlsplit(to)
    return parts.hostname or "", parts.port or 443


def _address(webhook: Webhook, host: str, port: int) -> str:
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for each in found:
        if not webhook.internal and not _is_public(ipaddress.ip_address(each.partition("%")[0])):
            raise WebhookRefusedError(f"{host} is {each}, an internal address: {webhook.allowed_by} allows that")
    return found[0]


CARRIERS = tuple(ipaddress.ip_network(each) for each in ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96"))
"""Networks whose last 32 bits are an address of IPv4, to which a gateway or this machine takes the packets."""
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
PLATFORM = tuple(ipaddress.ip_network(each) for each in ("168.63.129.16/32", "192.0.0.0/24"))
"""Addresses that a cloud or a router answers for its own machines, though no registry calls them private."""


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return True for an address of one host of the internet; one that carries another is judged by that too."""
    if isinstance(address, ipaddress.IPv6Address):
        carried = address.ipv4_mapped or address.sixtofour
        if any(address in each for each in CARRIERS):
            carried = ipaddress.IPv4Address(address.packed[-4:])
        if carried is not None:
            return _is_public(carried)
        if address not in GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast and not any(address in each for each in PLATFORM)
