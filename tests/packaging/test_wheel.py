"""The wheel has the Spark jar or is not built, and the README runs where it is installed."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
JAR = "headwater/spark/headwater-spark.jar"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The build hook of the wheel, as hatchling makes it."""
    spec = importlib.util.spec_from_file_location("hatch_build", CHECKOUT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told: list[str] = []
    app = SimpleNamespace(display_warning=told.append, told=told)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return module.SparkJarHook(str(CHECKOUT), {}, None, None, str(CHECKOUT / "dist"), "wheel", app)


def test_a_machine_with_only_a_jre_builds_no_wheel_and_is_told_why(
    hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"no `javac`.*JRE has none: install a JDK.*HEADWATER_WITHOUT_JAR=1"):
        hook.initialize("standard", {"force_include": {}})


def test_a_wheel_without_the_jar_is_only_made_when_asked_for(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_WITHOUT_JAR", "1")
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    assert list(data["force_include"].values()) == ["headwater/spark/java"]
    assert "no Spark jar" in hook.app.told[0]


def test_the_jar_is_built_without_anything_of_headwater() -> None:
    """A build in isolation has PySpark and hatchling, and none of what Headwater runs on."""
    tree = ast.parse((CHECKOUT / "headwater" / "spark" / "build.py").read_text())
    named = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert named <= sys.stdlib_module_names | {"pyspark"}


@pytest.mark.long
def test_the_readme_runs_where_the_wheel_is_installed(tmp_path: Path) -> None:
    """Sources -> wheel in isolation -> an empty environment -> an empty folder."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    if run(*pip, "download", "--no-deps", "-d", "seen", "hatchling", cwd=tmp_path).returncode:
        pytest.skip("no package index is reachable from here: the wheel cannot be built in isolation")
    made = run(sys.executable, "-m", "build", "--sdist", "-o", str(tmp_path), str(CHECKOUT), cwd=tmp_path)
    assert made.returncode == 0, made.stderr[-2000:]
    (source,) = tmp_path.glob("headwater-*.tar.gz")
    built = run(*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(source), cwd=tmp_path)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (wheel,) = tmp_path.glob("headwater-*.whl")
    assert JAR in zipfile.ZipFile(wheel).namelist()

    assert run(sys.executable, "-m", "venv", "env", cwd=tmp_path).returncode == 0
    python = str(tmp_path / "env" / "bin" / "python")
    installed = run(python, "-m", "pip", "install", "--quiet", f"{wheel}[spark]", cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr[-2000:]
    (empty := tmp_path / "empty").mkdir()
    readme = (CHECKOUT / "README.md").read_text()
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", readme, re.DOTALL)
    (empty / "readme.py").write_text("\n".join(blocks))
    shown = run(python, "readme.py", cwd=empty, timeout=280)
    assert shown.returncode == 0, shown.stderr[-3000:]
    assert re.search(r"\|\s+2\|", shown.stdout), "Spark counts the two people of the README"
    listed = run(str(tmp_path / "env" / "bin" / "headwater"), "tree", "./lake", cwd=empty)
    assert "people" in listed.stdout


def run(*command: str, cwd: Path, timeout: int = 580) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONWARNINGS")}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=timeout, env=kept)
