"""Build hook of the wheel: compiles the Spark jar and packs it, with its sources, into `headwater/spark/`.

Without a JDK or PySpark the wheel is made without the jar, and says so; such a wheel builds the jar where it is used.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SparkJarHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # a checkout builds its jar when it is first needed
            return
        build_data["force_include"][str(Path(self.root, "java"))] = "headwater/spark/java"
        sys.path.insert(0, self.root)
        try:
            from headwater.spark.build import build

            build_data["force_include"][str(build())] = "headwater/spark/headwater-spark.jar"
        except Exception as error:
            self.app.display_warning(f"The wheel has no Spark jar: {error}")
        finally:
            sys.path.remove(self.root)
