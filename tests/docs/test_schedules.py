"""The schedules of the guide: their commands are ours, and the task of the DAG runs a pipeline."""

from __future__ import annotations

import configparser
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headwater.cli.parsing import read
from tests.docs.blocks import FENCE, ROOT

TEXT = (ROOT / "docs/guides/schedules.md").read_text()
BLOCKS = {match["about"].removeprefix("file: "): match["body"] for match in FENCE.finditer(TEXT)}


def _is_ours(command: str) -> None:
    words = shlex.split(command)
    assert words[0].endswith("/headwater")
    assert read(words[1:]).file == "pipeline.toml"


def test_cron_and_systemd_start_commands_that_there_are() -> None:
    (line,) = re.findall(r"^\*/10 .*&& (.*) >> run.log 2>&1$", TEXT, re.MULTILINE)
    _is_ours(line)
    for service in re.findall(r"^ExecStart=(.*)$", TEXT, re.MULTILINE):
        _is_ours(service)
    timer = configparser.ConfigParser()
    timer.read_string(BLOCKS["shop.timer"])
    assert timer["Timer"]["OnCalendar"] == "*:0/10"


def test_the_task_of_the_dag_runs_the_pipeline_and_a_retry_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow is not installed: its two decorators are stood in for, and the task is called as a worker does."""
    tasks: list[Callable[[], int]] = []
    decorators: Any = ModuleType("airflow.decorators")
    decorators.dag = lambda **options: lambda function: function
    decorators.task = lambda **options: lambda function: lambda: tasks.append(function)
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.decorators", decorators)
    for name in ("pipeline.toml", "landing/1.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BLOCKS[name])
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS["shop_dag.py"], "shop_dag.py", "exec"), {})
    (task,) = tasks
    assert [task(), task()] == [2, 0]
