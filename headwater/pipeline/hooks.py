"""Hooks of a pipeline: a command, or an HTTPS address that gets a signed JSON body, told of a run.

A hook is called three times at most and never holds a run up for long. An address of the internal network is refused
unless the file allows it: a file from elsewhere could otherwise reach services that trust this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headwater.clock import Clock
from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.references import follow

http_client, ssl = when_used("http.client"), when_used("ssl")
"""Few runs have a hook to tell."""

HTTPS = "https://"
SIGNATURE = "Headwater-Signature"
TIMEOUT_S = 10.0
WAITS_S = (1.0, 4.0)
"""The time before the second and the third call."""
AGAIN = (408, 429)


@dataclass(frozen=True)
class Hooks:
    """The hooks of a pipeline file. `secret`: a reference to the key of signatures. `internal`: allows any address."""

    on_failure: str = ""
    on_quarantine: str = ""
    secret: str = ""
    internal: bool = False


class HookRefusedError(Exception):
    """A hook that would refuse another call too."""


def check_hooks(hooks: Hooks) -> None:
    """Raise InvalidInput (13) for an address that is not HTTPS, or has no secret to sign with."""
    for name, to in (("on_failure", hooks.on_failure), ("on_quarantine", hooks.on_quarantine)):
        if to.startswith("http://"):
            raise InvalidInputError(f"{name} is an address without TLS: write https://..., or a command.")
        if to.startswith(HTTPS) and not hooks.secret:
            raise InvalidInputError(f"{name} is an address: hook_secret must name the key that signs its body.")
        try:
            known = _place(to) if to.startswith(HTTPS) else shlex.split(to)
        except ValueError as error:
            what = "address" if to.startswith(HTTPS) else "command"
            raise InvalidInputError(f"{name} is no {what}: {error}.") from None
        if to and not all(known):
            raise InvalidInputError(f"{name} is no address: it names no host.")
    if hooks.secret and not hooks.secret.startswith(("env:", "file:")):
        raise InvalidInputError("hook_secret is a reference, env:NAME or file:PATH: a pipeline file holds no secrets.")


def notify(
    hooks: Hooks, to: str, message: Mapping[str, object], folder: Path, clock: Clock, say: Callable[[str], None]
) -> bool:
    """Tell a hook, three times at most; say it if the hook cannot be told, and return False."""
    body = json.dumps(message, default=str).encode()
    why = ""

    def act() -> None:
        if to.startswith(HTTPS):
            _post(hooks, to, body, clock.now_ms() // 1000)
        else:
            _call(to, body, folder)

    for wait in (0.0, *WAITS_S):
        clock.sleep(wait)
        try:
            _bounded(act)
            return True
        except HookRefusedError as error:
            why = str(error)
            break
        except Exception as error:  # whatever a hook does, it fails no run
            why = f"{type(error).__name__}: {error}"
    say(f"The hook of {message['event']} was not told: {why}")
    return False


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


def _call(command: str, body: bytes, folder: Path) -> None:
    words = shlex.split(command)
    try:
        done = subprocess.run(words, input=body, cwd=folder, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{words[0]} did not end in {TIMEOUT_S:g} s") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()[-200:]
        raise OSError(f"{words[0]} ended with {done.returncode}: {told}")


def _post(hooks: Hooks, to: str, body: bytes, moment: int) -> None:
    parts, (host, port) = urlsplit(to), _place(to)
    address = _address(host, port, hooks.internal)
    secret = follow(hooks.secret, "hook_secret").encode()
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
        kind = OSError if status >= 500 or status in AGAIN else HookRefusedError
        raise kind(f"{host} answered {status}")


def _place(to: str) -> tuple[str, int]:
    parts = urlsplit(to)
    return parts.hostname or "", parts.port or 443


def _address(host: str, port: int, internal: bool) -> str:
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for each in found:
        if not internal and not ipaddress.ip_address(each.partition("%")[0]).is_global:
            raise HookRefusedError(f"{host} is {each}, an internal address: hook_internal = true allows that")
    return found[0]
