"""Runs by the million: blocks of seeds, each a line of a log, so that a run goes on where it was stopped.

    python -m tests.simulation.long_runs commits 1000000 2000000 --log build/commits.log [--worker 0 --workers 2]
    python -m tests.simulation.long_runs --sum build/*.log

A line: profile, first seed, runs, steps, seconds of CPU, digest of the histories (`-` where Lance makes its own ids),
and every seed that breaks a promise. Exits with the number of those seeds, at most 100.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import sys
import time
from collections import Counter
from pathlib import Path

from headwater.testing.simulation import PROFILES, RunSettings, simulate

BLOCK = 100


def block_line(profile: str, first: int, runs: int) -> str:
    """Carry out the runs of one block and return its line."""
    began, steps, digest, broken = time.process_time(), 0, hashlib.sha256(), []
    for seed in range(first, first + runs):
        found = simulate(RunSettings(seed, profile=profile))
        steps += int(found.lines[-1].split()[0])
        digest.update("\n".join(found.lines).encode())
        if found.violations:
            broken.append(str(seed))
    told = "-" if PROFILES[profile].native else digest.hexdigest()[:16]
    return " ".join([profile, str(first), str(runs), str(steps), f"{time.process_time() - began:.2f}", told, *broken])


def total(logs: list[Path]) -> int:
    """Print the sums of some logs by profile; return how many seeds break a promise."""
    sums: dict[str, Counter[str]] = {}
    broken: list[str] = []
    for log in logs:
        for line in log.read_text().splitlines():
            profile, _, runs, steps, seconds, _, *seeds = line.split()
            sums.setdefault(profile, Counter()).update(
                runs=int(runs), steps=int(steps), milliseconds=int(float(seconds) * 1000)
            )
            broken += [f"{profile} {seed}" for seed in seeds]
    for profile, found in sums.items():
        cpu = found["milliseconds"] // 1000
        print(f"{profile:9} {found['runs']:>9,} runs {found['steps']:>13,} steps {cpu:>7,} s of CPU")
    print(f"{len(broken)} seeds break a promise: {', '.join(broken) or 'none'}")
    return min(len(broken), 100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", nargs="?", choices=PROFILES)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("end", type=int, nargs="?", default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--sum", type=Path, nargs="+", dest="logs")
    args = parser.parse_args()
    if args.logs:
        return total(args.logs)
    gc.disable()  # an eighth of the time of a run: what refers to itself is collected after each block
    done = {int(line.split()[1]) for line in args.log.read_text().splitlines()} if args.log.exists() else set()
    for first in range(args.first + args.worker * BLOCK, args.end, args.workers * BLOCK):
        if first not in done:
            line = block_line(args.profile, first, min(BLOCK, args.end - first))
            with args.log.open("a") as log:
                log.write(line + "\n")
            gc.collect()
    return total([args.log])


if __name__ == "__main__":
    sys.exit(main())
