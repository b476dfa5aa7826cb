"""What counting a request costs: our own counts, against prometheus-client in its multiprocess mode.

    python -m benchmarks.metrics [--request-us 77]

Needs prometheus-client, which Headwater itself does not: docs/design/009-server-hardening.md says why. Both are called
in turns as the server calls them, and CPU time is measured, so that a busy machine does not decide. `--request-us` is
the CPU time of a whole look-up over REST, to compare with.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from headwater.rest.status_pages import BUCKETS, Metrics

Count = Callable[[str, bool, int, int | None, float], None]
CALLS, ROUNDS = 50_000, 7


def prometheus_count(folder: str) -> Count:
    """The same counts with prometheus-client; the series of each operation are looked up once and kept."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    prometheus: Any = importlib.import_module("prometheus_client")

    requests = prometheus.Counter("requests_total", "n", ["operation", "status", "code"])
    seconds_taken = prometheus.Histogram("request_seconds", "s", ["operation"], buckets=BUCKETS)
    kept: dict[Any, Any] = {}

    def count(operation: str, changes: bool, status: int, code: int | None, seconds: float) -> None:
        series = kept.get((operation, status, code))
        if series is None:
            counter = requests.labels(operation, str(status), str(code))
            series = kept[operation, status, code] = (counter, seconds_taken.labels(operation))
        series[0].inc()
        series[1].observe(seconds)

    return count


def cost(count: Count) -> float:
    """Microseconds of CPU a call."""
    before = time.process_time()
    for _ in range(CALLS):
        count("DescribeTable", False, 200, None, 0.0004)
    return (time.process_time() - before) / CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--request-us", type=float, default=77.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Metrics().count, prometheus_count(folder)
        rounds = [(cost(ours), cost(theirs)) for _ in range(ROUNDS)]
    mine, other = (min(column) for column in zip(*rounds, strict=True))
    more = 100 * (other - mine) / given.request_us
    print(f"ours {mine:.2f} us a request, prometheus-client {other:.2f} us: {more:+.1f} % of a request")


if __name__ == "__main__":
    main()
