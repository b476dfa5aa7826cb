"""Every benchmark, one after the other, each in a process of its own, then the page of all figures.

`python -m benchmarks [NAME ...]`: all of them, or those that are named.
"""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "starts",
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
    "pipeline_merge",
    "pipeline_first",
    "spark",
    "tpch",
)
PAGE = "page"


def main() -> int:
    unknown = sorted(set(sys.argv[1:]) - {*BENCHMARKS, PAGE})
    if unknown:
        print(f"no benchmark has the name {', '.join(unknown)}: say some of {', '.join(BENCHMARKS)}")
        return 2
    chosen = [name for name in BENCHMARKS if name in sys.argv[1:]] if sys.argv[1:] else list(BENCHMARKS)
    failed = [
        name for name in [*chosen, PAGE] if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode
    ]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
