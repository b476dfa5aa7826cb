"""Hooks of a pipeline: a command, or an HTTPS address that gets a signed JSON body, told of a run.

A hook is called three times at most and never holds a run up for long.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater import webhooks
from headwater.clock import Clock
from headwater.errors import InvalidInputError
from headwater.webhooks import HTTPS, Webhook


@dataclass(frozen=True)
class Hooks:
    """The hooks of a pipeline file. `secret`: a reference to the key of signatures. `internal`: allows any address."""

    on_failure: str = ""
    on_quarantine: str = ""
    secret: str = ""
    internal: bool = False


def check_hooks(hooks: Hooks) -> None:
    """Raise InvalidInput (13) for an address that is not HTTPS, or has no secret to sign with."""
    for name, to in (("on_failure", hooks.on_failure), ("on_quarantine", hooks.on_quarantine)):
        if to.startswith("http://"):
            raise InvalidInputError(f"{name} is an address without TLS: write https://..., or a command.")
        if to.startswith(HTTPS):
            webhooks.check_webhook(Webhook(to, hooks.secret), name, "hook_secret")
        try:
            shlex.split(to)
        except ValueError as error:
            raise InvalidInputError(f"{name} is not a command: {error}.") from None
    if hooks.secret:
        webhooks.check_secret(hooks.secret, "hook_secret")


def notify(
    hooks: Hooks, to: str, message: Mapping[str, object], folder: Path, clock: Clock, say: Callable[[str], None]
) -> bool:
    """Tell a hook, three times at most; say it if the hook cannot be told, and return False."""
    body = json.dumps(message, default=str).encode()

    def act() -> None:
        if to.startswith(HTTPS):
            webhooks.post(Webhook(to, hooks.secret, hooks.internal), body, clock.now_ms() // 1000)
        else:
            _call(to, body, folder)

    why = webhooks.attempt(act, clock)
    if why:
        say(f"The hook of {message['event']} was not told: {why}")
    return not why


def _call(command: str, body: bytes, folder: Path) -> None:
    words, limit = shlex.split(command), webhooks.TIMEOUT_S
    try:
        done = subprocess.run(words, input=body, cwd=folder, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{words[0]} did not end in {limit:g} s") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()[-200:]
        raise OSError(f"{words[0]} ended with {done.returncode}: {told}")
