"""The official client of the Model Context Protocol, talking to `headwater mcp` as a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import StdioServerParameters
from mcp.client import Client


class Agent:
    """One session. `ask` is the answer of a tool, `refused` what it says when it cannot."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self.client = client

    def tools(self) -> list[Any]:
        return list(self._portal.call(self.client.list_tools).tools)

    def say(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        told: Any = self._portal.call(self.client.call_tool, tool, arguments)
        assert [part.type for part in told.content] == ["text"]
        return told.content[0].text, bool(told.is_error)

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        text, is_error = self.say(tool, **arguments)
        assert not is_error, text
        assert len(text.encode()) <= 1_000_000
        found: dict[str, Any] = json.loads(text)
        return found

    def refused(self, tool: str, **arguments: Any) -> str:
        text, is_error = self.say(tool, **arguments)
        assert is_error, text
        return text


@contextmanager
def agent(*line: str, **environment: str) -> Iterator[Agent]:
    """A session with `headwater mcp LINE`."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "headwater", "mcp", *line],
        env={"PYTHONPATH": os.pathsep.join(place for place in sys.path if place), **environment},
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server)) as client:
        yield Agent(portal, client)
