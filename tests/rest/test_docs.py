"""The page on the server names what there is, and nothing else."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from headwater.cli.grammar import COMMANDS
from headwater.rest.auth.keys import PERMISSIONS, ROLES, names_of
from headwater.rest.extensions import EXTENSIONS
from headwater.rest.routes import ROUTES, Match, RouteTable
from headwater.rest.settings import Limits
from headwater.rest.status_pages import HELP

DOCS = Path(__file__).parents[2] / "docs"
REST = (DOCS / "rest.md").read_text()


def options(verb: str) -> set[str]:
    """The options a verb takes, without those that every verb has."""
    return {name for arg in COMMANDS[verb].args for name in arg.names if name.startswith("--")}


def test_every_option_of_serve_is_on_the_page_and_no_other() -> None:
    table = REST[REST.index("| option |") : REST.index("Several servers")]
    assert set(re.findall(r"`(--[a-z-]+)`", table)) - {"--help"} >= options("serve")
    assert set(re.findall(r"--[a-z][a-z-]+", table)) <= options("serve") | {"--property"}


def test_extensions_metrics_and_roles_are_on_the_page() -> None:
    for extension in EXTENSIONS:
        assert f"`{extension.route.verb} {extension.route.path}`" in REST
    listed = set(re.findall(r"`\w+ (/headwater/v1/[^`]+)`", REST))
    assert listed == {extension.route.path for extension in EXTENSIONS}
    assert set(re.findall(r"headwater_[a-z_]+", REST)) == set(HELP)
    assert set(re.findall(r"^\| `(\w+)` \| to ", REST, re.MULTILINE)) == set(PERMISSIONS)
    roles = dict(re.findall(r"^\| (\w+) \| (describe.*) \|$", REST, re.MULTILINE))
    assert roles == {name: ", ".join(names_of(role)) for name, role in ROLES.items()}


def test_every_curl_line_names_a_route_and_its_verb() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    lines = re.findall(r"^curl .*/v1/.*$", readme + REST, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        named = re.search(r"-X (\w+)", line)
        verb = named[1] if named else "POST" if " -d " in line or "--data" in line else "GET"
        url = next(word for word in shlex.split(line) if "/v1/" in word)
        path = url[url.index("/v1/") :].partition("?")[0]
        assert isinstance(RouteTable(ROUTES).find(path, verb), Match), line


def test_limits_on_the_page_are_the_defaults() -> None:
    limits = Limits()
    assert f"{limits.arrow_body // 2**30} GiB" in REST
    assert f"| {limits.page} |" in REST
    assert f"| depth of an id | {limits.depth} levels |" in REST
    assert f"| JSON body | {limits.json_body // 2**20} MiB |" in REST
    assert f"| properties of an object | {limits.properties // 2**20} MiB |" in REST
    assert f"abandoned after {limits.body_idle_seconds:g} s" in REST
    assert f"{limits.head // 1024} KiB, complete within {limits.head_seconds:g} s" in REST
    assert f"cut off after {limits.write_idle_seconds:g} s" in REST
    assert f"| {limits.spooled // 2**30} GiB |" in REST
    assert limits.spooled_per_caller * 2 == limits.spooled
    assert f"| {limits.running_per_caller} |" in REST
    assert f"| {limits.bad_keys_burst}, then one every {1 / limits.bad_keys_per_second:g} s " in REST
