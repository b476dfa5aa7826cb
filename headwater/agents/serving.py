"""The Model Context Protocol on stdio: tools are told, calls are checked, bounded in time, and answered."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import headwater
from headwater.agents.asking import INSTRUCTIONS, TOOLS, AgentTool
from headwater.cli.output import visible
from headwater.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError
from headwater.workers import Host, Pool, WorkerLimits

CALL_SECONDS = 30.0
START_SECONDS = 60.0
MEMORY = 2 << 30
AT_ONCE = 2
HINTS = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


def serve(named: str | None, properties: dict[str, str], seconds: float = CALL_SECONDS) -> None:
    """Answer on stdin and stdout until stdin ends. The catalog's error, before anything is said, if there is none."""
    pool = Pool(
        Host("headwater.agents.looking:host", [named, properties]), WorkerLimits(MEMORY, START_SECONDS, AT_ONCE)
    )
    try:
        pool.run("check", {})
        anyio.run(_answer, pool, seconds)
    finally:
        pool.close()


async def _answer(pool: Pool, seconds: float) -> None:
    async def tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_shown(tool) for tool in TOOLS.values()])

    async def call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            return _told(await _run(pool, params.name, params.arguments, seconds))
        except LanceNamespaceError as error:
            return _told(visible(f"{error} (code {int(error.code)})"), is_error=True)

    server: Server[Any] = Server(
        "headwater",
        version=headwater.__version__,
        title="Headwater catalog",
        instructions=INSTRUCTIONS,
        on_list_tools=tools,
        on_call_tool=call,
    )
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _shown(tool: AgentTool) -> types.Tool:
    return types.Tool(
        name=tool.name, title=tool.title, description=tool.about, input_schema=tool.schema, annotations=HINTS
    )


def _told(text: str, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)


async def _run(pool: Pool, name: str, arguments: Any, seconds: float) -> str:
    """One call in a worker, which is ended when the time is over or nobody waits for it any more."""
    tool = TOOLS.get(name)
    if tool is None:
        raise InvalidInputError(f"There is no tool {name[:80]!r}: {', '.join(TOOLS)}.")
    asked = tool.read(arguments)
    stops: list[Any] = []
    work = partial(pool.run, tool.name, asked, None, False, stops.append)
    done = False
    try:
        with anyio.fail_after(seconds):
            text: str = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            done = True
            return text
    except TimeoutError:
        raise ServiceUnavailableError(
            f"{name} was not done within {seconds:g} seconds and was ended: ask for less, with a condition, fewer "
            "tables or a smaller limit."
        ) from None
    except LanceNamespaceError:
        done = True
        raise
    except Exception as error:
        done = True
        raise ServiceUnavailableError(f"{name} failed unexpectedly ({type(error).__name__}): {error}") from None
    finally:
        if not done:
            for stop in stops:
                stop()
