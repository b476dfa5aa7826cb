"""Runs `headwater` in this process and keeps what it printed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.cli import main


class Cli:
    """One catalog; a call is one line: its exit, what it printed, and what it complained of."""

    def __init__(self, root: str, captured: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._captured = captured

    def __call__(self, verb: str, *arguments: str) -> tuple[int, str, str]:
        try:
            status = main([*verb.split(), self.root, *arguments])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        out, err = self._captured.readouterr()
        return status, out, err

    def ok(self, verb: str, *arguments: str) -> str:
        status, out, err = self(verb, *arguments)
        assert status == 0, err
        return out

    def json(self, verb: str, *arguments: str) -> Any:
        return json.loads(self.ok(verb, *arguments, "--json"))

    def records(self, verb: str, *arguments: str) -> list[Any]:
        """What a verb prints one object a line."""
        return [json.loads(line) for line in self.ok(verb, *arguments, "--json").splitlines()]
