"""Build hook of the wheel: compiles the Spark jar and packs it, with its sources, into `headwater/spark/`.

PySpark, whose jars the sources are compiled against, is a build requirement of the wheel (pyproject.toml), so a build
in isolation has it. A JDK cannot be one: without `javac` the build stops and says so, because a wheel without the jar
would leave its users without SQL. HEADWATER_WITHOUT_JAR=1 asks for such a wheel.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WITHOUT_JAR = "HEADWATER_WITHOUT_JAR"


class SparkJarHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # a checkout builds its jar when it is first needed
            return
        build_data["force_include"][str(Path(self.root, "java"))] = "headwater/spark/java"
        if os.environ.get(WITHOUT_JAR):
            self.app.display_warning("The wheel has no Spark jar, as asked: its users have no SQL without a JDK.")
            return
        builder = _builder(Path(self.root))
        self._folder = tempfile.TemporaryDirectory()
        try:
            jar = builder.build(Path(self._folder.name) / "headwater-spark.jar")
        except (builder.JarNotBuiltError, ImportError) as error:
            raise SystemExit(f"{error} To build a wheel without SQL for Spark, set {WITHOUT_JAR}=1.") from None
        build_data["force_include"][str(jar)] = "headwater/spark/headwater-spark.jar"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _builder(root: Path) -> ModuleType:
    """`headwater/spark/build.py` by its path: the package's own requirements are not there while it is built."""
    spec = importlib.util.spec_from_file_location("headwater_spark_build", root / "headwater" / "spark" / "build.py")
    if spec is None or spec.loader is None:
        raise SystemExit("headwater/spark/build.py is missing from the sources.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
