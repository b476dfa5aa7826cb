"""Build the jar: `python -m headwater.spark.build`. Java 17's `javac` against PySpark's own jars, nothing else.

The jar is kept beside this file and carries the digest of the sources it was made from, so a changed source or
another Spark makes it out of date. A machine without a JDK uses the jar of the wheel. The build of the wheel runs this
file alone, so it imports nothing of Headwater.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
JAR = HERE / "headwater-spark.jar"
NO_COMPILER = "there is no `javac` on the PATH or in JAVA_HOME (a JRE has none: install a JDK, 17 or newer)"
STAMP = "META-INF/headwater-sources"
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"


class JarNotBuiltError(Exception):
    """The jar cannot be made here; the message says what is missing."""


def source_folder() -> Path | None:
    """`java/` of a checkout, or the sources packed into the wheel."""
    for folder in (HERE.parents[1] / "java", HERE / "java"):
        if (folder / "headwater" / "spark").is_dir():
            return folder
    return None


def spark_jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def digest(folder: Path) -> str:
    """Return the digest of a jar's sources and of the Spark version it is compiled against."""
    total = hashlib.sha256(",".join(sorted(jar.name for jar in spark_jars().glob("spark-sql*.jar"))).encode())
    for path in sorted(folder.rglob("*.java")):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def current_stamp() -> str | None:
    if not JAR.exists():
        return None
    with zipfile.ZipFile(JAR) as jar:
        return jar.read(STAMP).decode() if STAMP in jar.namelist() else None


def javac() -> str | None:
    return tool("javac")


def tool(name: str) -> str | None:
    """Return a program of Java's: in JAVA_HOME, as Spark looks for it, or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin" / name if home else None
    return str(beside) if beside and beside.exists() else shutil.which(name)


def build(jar: Path = JAR) -> Path:
    """Compile every source and write the jar in one step, so that a reader never sees half of it."""
    folder, compiler = source_folder(), javac()
    if folder is None or compiler is None:
        missing = "its Java sources are not here" if folder is None else NO_COMPILER
        raise JarNotBuiltError(f"The Spark jar cannot be built: {missing}.")
    with tempfile.TemporaryDirectory() as temporary:
        classes = Path(temporary) / "classes"
        command = [
            compiler,
            "-nowarn",
            "-parameters",
            "--release",
            "17",
            "-cp",
            f"{spark_jars()}/*",
            "-d",
            str(classes),
        ]
        result = subprocess.run(
            [*command, *map(str, sorted(folder.rglob("*.java")))], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise JarNotBuiltError(f"The Spark jar cannot be built:\n{result.stderr}")
        _pack(classes, digest(folder), jar)
    return jar


def _pack(classes: Path, stamp: str, jar: Path) -> None:
    handle, partial = tempfile.mkstemp(dir=jar.parent, suffix=".partial")
    os.close(handle)
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
        archive.writestr(STAMP, stamp)
        archive.writestr(SERVICE, "headwater.spark.DefaultSource\n")
        for path in sorted(classes.rglob("*.class")):
            archive.write(path, str(path.relative_to(classes)))
    os.chmod(partial, 0o644)
    os.replace(partial, jar)


def ensure_jar() -> Path | None:
    """Return the jar, built if it is missing or older than its sources and this machine can; None if there is none."""
    folder = source_folder()
    if folder is None or javac() is None or current_stamp() == digest(folder):
        return JAR if JAR.exists() else None
    try:
        return build()
    except (OSError, JarNotBuiltError):  # a package folder that may not be written, another Spark than the wheel's
        if JAR.exists() and folder.parent == HERE:
            return JAR
        raise


if __name__ == "__main__":
    try:
        print(build(), file=sys.stdout)
    except JarNotBuiltError as error:
        sys.exit(str(error))
