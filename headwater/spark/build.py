"""Build the jar: `python -m headwater.spark.build`. Java 17's `javac` against PySpark's own jars, nothing else.

The jar is kept beside this file and carries the digest of the sources it was made from, so a changed source or
another Spark makes it out of date. A machine without a JDK uses the jar of the wheel.
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

from headwater.errors import UnsupportedOperationError

HERE = Path(__file__).resolve().parent
JAR = HERE / "headwater-spark.jar"
STAMP = "META-INF/headwater-sources"
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"


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
    """What a jar is made of: every source, and the Spark it is compiled against."""
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
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin" / "javac" if home else None
    return str(beside) if beside and beside.exists() else shutil.which("javac")


def build(jar: Path = JAR) -> Path:
    """Compile every source and write the jar in one step, so that a reader never sees half of it."""
    folder, compiler = source_folder(), javac()
    if folder is None or compiler is None:
        missing = "the Java sources" if folder is None else "a JDK (javac 17 or newer)"
        raise UnsupportedOperationError(f"The Spark jar cannot be built: {missing} is not on this machine.")
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
            raise UnsupportedOperationError(f"The Spark jar cannot be built:\n{result.stderr}")
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
    """The jar, built if it is missing or older than its sources and this machine can; None if there is none."""
    folder = source_folder()
    if folder is None or javac() is None or current_stamp() == digest(folder):
        return JAR if JAR.exists() else None
    try:
        return build()
    except OSError:  # a package folder that may not be written: the jar of the wheel is what there is
        return JAR if JAR.exists() else None


if __name__ == "__main__":
    print(build(), file=sys.stdout)
