"""The wheel has the Spark jar or is not built, and the README runs where it is installed."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.docs.blocks import blocks_of

CHECKOUT = Path(__file__).parents[2]
PIPELINE = "docs/guides/first-pipeline.md"
JAR = "headwater/spark/headwater-spark.jar"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources -> wheel in isolation."""
    folder = tmp_path_factory.mktemp("wheel")
    if run(*PIP, "download", "--no-deps", "-d", "seen", "hatchling", cwd=folder).returncode:
        pytest.skip("no package index is reachable from here: the wheel cannot be built in isolation")
    made = run(sys.executable, "-m", "build", "--sdist", "-o", str(folder), str(CHECKOUT), cwd=folder)
    assert made.returncode == 0, made.stderr[-2000:]
    (source,) = folder.glob("headwater-*.tar.gz")
    built = run(*PIP, "wheel", "--no-deps", "-w", str(folder), str(source), cwd=folder)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (made_wheel,) = folder.glob("headwater-*.whl")
    assert JAR in zipfile.ZipFile(made_wheel).namelist()
    return made_wheel


def installed(wheel: Path, extras: str, folder: Path) -> Path:
    """The programs of an empty environment that the wheel was installed into."""
    assert run(sys.executable, "-m", "venv", "env", cwd=folder).returncode == 0
    programs = folder / "env" / "bin"
    done = run(str(programs / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[{extras}]", cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return programs


@pytest.mark.long
def test_the_readme_runs_where_the_wheel_is_installed(wheel: Path, tmp_path: Path) -> None:
    """An empty environment, an empty folder: all its Python, that of Spark too."""
    programs = installed(wheel, "pipeline", tmp_path)
    (empty := tmp_path / "empty").mkdir()
    blocks = [block.body for block in blocks_of("README.md") if block.language == "python" and block.is_run]
    (empty / "readme.py").write_text("\n".join(blocks))
    shown = run(str(programs / "python"), "readme.py", cwd=empty, timeout=280)
    assert shown.returncode == 0, shown.stderr[-3000:]
    assert re.search(r"\|\s+2\|", shown.stdout), "Spark counts the two people of the README"
    assert "Edsger" in shown.stdout
    listed = run(str(programs / "headwater"), "tree", "./lake", cwd=empty)
    assert "people" in listed.stdout


@pytest.mark.long
def test_a_new_user_gets_to_a_search_result_without_java_in_two_minutes(wheel: Path, tmp_path: Path) -> None:
    """From the wheel in an empty folder, with the guide's first pipeline: installed, published, indexed, searched."""
    began = time.monotonic()
    programs = installed(wheel, "server,sql", tmp_path)
    command = readme_pipeline(tmp_path / "empty").replace("run pipeline.toml", "run pipeline.toml --engine embedded")
    found = run("bash", "-ec", command, cwd=tmp_path / "empty", path=f"{programs}:/usr/bin:/bin", java=False)
    assert found.returncode == 0, found.stderr[-3000:]
    assert "warm light for reading" in found.stdout
    assert time.monotonic() - began < 120


@pytest.mark.long
def test_the_extras_bring_spark_and_java_to_a_machine_that_has_neither(wheel: Path, tmp_path: Path) -> None:
    """`pip install 'headwater[pipeline,java]'` in a new environment, with no `java` on the PATH and no JAVA_HOME."""
    programs = installed(wheel, "server,pipeline,java", tmp_path)
    command, tools = readme_pipeline(tmp_path / "empty"), tmp_path / "tools"
    tools.mkdir()
    for folder in (Path("/usr/bin"), Path("/bin")):
        for path in folder.iterdir():
            if "java" not in path.name and not (tools / path.name).exists():
                (tools / path.name).symlink_to(path)
    found = run("bash", "-ec", command, cwd=tmp_path / "empty", path=f"{programs}:{tools}", java=False)
    assert found.returncode == 0, found.stderr[-3000:]
    assert "Spark on local[*]" in found.stderr
    assert "warm light for reading" in found.stdout


def readme_pipeline(folder: Path) -> str:
    """The commands of the guide's first pipeline; its files are written."""
    for block in blocks_of(PIPELINE):
        if block.about.startswith("file: "):
            path = folder / block.about.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
    (command,) = [block.body for block in blocks_of(PIPELINE) if "headwater run pipeline.toml" in block.body]
    return command


def run(
    *command: str, cwd: Path, timeout: int = 580, path: str | None = None, java: bool = True
) -> subprocess.CompletedProcess[str]:
    left = ("PYTHONPATH", "PYTHONWARNINGS", "HEADWATER_ENGINE", *(() if java else ("JAVA_HOME",)))
    kept = {key: value for key, value in os.environ.items() if key not in left} | ({"PATH": path} if path else {})
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=timeout, env=kept)
