"""Every benchmark, one after the other, each in a process of its own: `python -m benchmarks`."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "directory",
    "catalog",
    "versions",
    "rest",
    "metastore",
    "limits",
    "streams",
    "workers",
    "web",
    "pipeline",
    "pipeline_reads",
    "pipeline_views",
    "pipeline_cluster",
    "spark",
)


def main() -> int:
    failed = [name for name in BENCHMARKS if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
