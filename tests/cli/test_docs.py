"""The page on the command line, the help and the completion name what there is, and nothing else."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from headwater.cli import main
from headwater.cli.grammar import COMMANDS, COMMON, GROUPS, SHOWN
from headwater.cli.grammar.run import FORMATS
from headwater.cli.main import candidates, runner
from headwater.cli.parsing import overview, parser_of
from headwater.errors import ERRORS
from headwater.rest.auth.keys import PERMISSIONS, ROLES
from headwater.streams.sources import formats

CLI = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
EVERY = {name for arg in COMMON for name in arg.names}


def options(verb: str) -> set[str]:
    """The options of a verb that are shown, without those that every verb has."""
    shown = [arg for arg in COMMANDS[verb].args if arg.options["help"] is not argparse.SUPPRESS]
    return {name for arg in shown for name in arg.names if name.startswith("--")} - EVERY


def row(verb: str) -> str:
    found = [line for line in CLI.splitlines() if line.startswith(f"| `{verb}` |")]
    assert found, verb
    return found[0]


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_a_verb_is_on_the_page_with_its_arguments_and_runs_something(verb: str) -> None:
    command, line = COMMANDS[verb], row(verb)
    assert callable(runner(command.runner))
    if verb != "serve":  # its options are in rest.md
        arguments = re.findall(r"`([^`]*)`", line)[1] if line.count("`") > 2 else ""
        assert set(re.findall(r"--[a-z][a-z-]*", arguments)) - EVERY == options(verb)
    assert not command.json or command.json in line
    if command.group:
        assert command.about in line
        assert CLI.index(f"## {command.group}: {GROUPS[command.group]}") < CLI.index(line)


def test_the_page_names_no_verb_that_is_not_there() -> None:
    table = CLI[CLI.index("## look:") :]
    assert set(re.findall(r"^\| `([a-z -]+)` \|", table, re.MULTILINE)) == set(COMMANDS)


def test_help_lists_every_shown_verb_in_its_group() -> None:
    text = overview()
    assert [line.split("  ")[1].strip() for line in text.splitlines() if line.startswith("  ")] == [
        command.name for group in GROUPS for command in SHOWN if command.group == group
    ]
    assert [line.partition(":")[0] for line in text.splitlines() if line.partition(":")[0] in GROUPS] == list(GROUPS)


@pytest.mark.parametrize("verb", [command.name for command in SHOWN])
def test_a_verb_explains_itself_and_completes_what_its_help_names(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*verb.split(), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    completed = set(candidates([*verb.split(), "--"]))
    assert options(verb) <= completed
    known = {name for action in parser_of(COMMANDS[verb])._actions for name in action.option_strings}
    assert completed <= known
    assert options(verb) <= set(re.findall(r"--[a-z][a-z-]*", text))


def test_lists_of_words_are_those_of_who_uses_them() -> None:
    assert tuple(formats.FORMATS) == FORMATS
    shown = {arg.names[0]: arg.options["help"] for arg in COMMANDS["token create"].args}
    assert all(role in shown["--role"] for role in ROLES)
    permissions = COMMANDS["role set"].words[1].options["help"]
    assert all(permission in permissions for permission in PERMISSIONS)


def test_exits_on_the_page_are_those_of_the_error_table() -> None:
    for exit in {row.exit for row in ERRORS.values()}:
        codes = ", ".join(str(code) for code, row in sorted(ERRORS.items()) if row.exit == exit)
        assert re.search(rf"^\| {exit} \| .* \| {codes} \|$", CLI, re.MULTILINE), (exit, codes)
