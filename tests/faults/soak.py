"""A soak: many processes do everything to one catalog at once, and are killed; a model says what must be there.

    python -m tests.faults.soak --minutes 30 --store local
    python -m tests.faults.soak --minutes 30 --store s3 [--endpoint http://127.0.0.1:8333]

Nothing acknowledged is lost, nothing is there twice, nobody sees half a transaction. `SOAK_MINUTES` is the default of
`--minutes`, and the length of the long tests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from headwater.testing.bucket_server import BucketServer
from headwater.testing.simulation.commits import OK, Operation, Value, check_lists, check_snapshots
from tests.children import PROCESSES
from tests.faults import soak_writers as work
from tests.faults.processes import kill

KEYS = {"access_key_id": "testing", "secret_access_key": "testing", "region": "us-east-1"}
OPTIONS = {"allow_http": "true", "virtual_hosted_style_request": "false"}
KINDS = {*work.APPENDED, "a.log", "pair", "published", "rename of a table", "move of a table"}
KINDS |= {"rename of a namespace", "drop", "undrop", "grow", "undo", "collection"}
"""All that is done at once."""
MINUTES = float(os.environ.get("SOAK_MINUTES", "1"))


class Soak:
    """The processes of one soak, and what they noted. Each that ends or is killed is followed by another."""

    def __init__(self, folder: Path, properties: Mapping[str, str], seconds: float) -> None:
        self.folder = folder
        self.properties = properties
        self.end = time.monotonic() + seconds
        self.running: dict[str, tuple[Any, Callable[[int], Any]]] = {}
        self.count = 0
        self.kills = 0

    def start(self, name: str, what: Callable[..., None], *args: Any) -> None:
        def begin(number: int) -> Any:
            left = max(self.end - time.monotonic(), 0.1)
            file = str(self.folder / f"{name}-{number}.notes")
            given = args if what is work.serve else (*args, number)
            process = PROCESSES.Process(target=what, args=(*given, file, left), name=f"{name}-{number}")
            process.start()
            return process

        self.count += 1
        self.running[name] = begin(self.count), begin

    def again(self, name: str) -> None:
        """Another process in the place of one that is gone."""
        _, begin = self.running[name]
        self.count += 1
        self.running[name] = begin(self.count), begin

    def work(self, every: tuple[float, float] | None) -> None:
        """Until the time is up: kill one after the other, and put another in its place."""
        chance = random.Random(4)
        while (left := self.end - time.monotonic()) > 0:
            time.sleep(min(chance.uniform(*every) if every else 1.0, left))
            for name, (process, _) in list(self.running.items()):
                if not process.is_alive() and time.monotonic() < self.end:
                    self.again(name)
            if every and time.monotonic() < self.end:
                name = chance.choice([name for name in sorted(self.running) if self._is_at_work(name)])
                kill(self.running[name][0])
                self.kills += 1
                self.again(name)

    def _is_at_work(self, name: str) -> bool:
        """Whether it has begun: to kill what only starts proves nothing, and a server has to answer in between."""
        process, _ = self.running[name]
        if name.startswith("server"):
            return _answers(int(name.removeprefix("server")))
        file = self.folder / f"{name}-{process.name.rsplit('-', 1)[-1]}.notes"
        return name == "collector" or (file.exists() and file.stat().st_size > 0) or name.startswith("reader")

    def finish(self) -> None:
        for name, (process, _) in self.running.items():
            if not name.startswith("server"):
                process.join(300)
        for process, _ in self.running.values():
            kill(process)

    def notes(self) -> dict[str, list[list[Any]]]:
        """By process. The last line of one that was killed may be half a line."""
        found: dict[str, list[list[Any]]] = {}
        for file in sorted(self.folder.glob("*.notes")):
            lines = file.read_text().split("\n")
            found[file.stem] = [json.loads(line) for line in lines[:-1]]
        return found


def soak(
    folder: Path,
    properties: Mapping[str, str],
    seconds: float,
    writers: int,
    servers: int,
    kill_every: tuple[float, float] | None,
) -> Counter[str]:
    """So many writers, two that read and one that collects beside, in this process or behind servers; what was
    acknowledged, by kind, once all of it was checked."""
    work.prepare(properties)
    run = Soak(folder, properties, seconds)
    ports = [_free_port() for _ in range(servers)]
    for port in ports:
        run.start(f"server{port}", work.serve, properties, port)
    for port in ports:
        _wait_for(port)
    targets: list[work.Target] = [properties, *(f"http://127.0.0.1:{port}" for port in ports)]
    for number in range(writers):
        run.start(f"writer{number}", work.write, targets[number % len(targets)])
    for number, target in enumerate(targets[:2]):
        run.start(f"reader{number}", work.read, target)
    run.start("collector", work.collect, targets[-1])
    try:
        run.work(kill_every)
    finally:
        run.finish()
    notes = run.notes()
    every = [note for one in notes.values() for note in one]
    check(properties, notes)
    wrong = [note for note in every if note[0] in ("failed", "half")]
    assert not wrong, "\n".join(str(value) for note in wrong for value in note)
    done = Counter(str(note[1]) for note in every if note[0] == "done")
    done["killed"], done["read"] = run.kills, sum(note[0] == "read" for note in every)
    return done


def check(properties: Mapping[str, str], notes: Mapping[str, list[list[Any]]]) -> None:
    """The catalog against the model: what was acknowledged is there, and what was tried is there once at the most."""
    catalog = work.open_at(properties)
    every = [note for one in notes.values() for note in one]
    kinds = {name: [name] for name in work.APPENDED} | {"a.log": ["a.log"], "pair": list(work.PAIR)}
    tried = {kind: {note[2] for note in every if note[:2] == ["tried", kind]} for kind in kinds}
    done = {kind: {note[2] for note in every if note[:2] == ["done", kind]} for kind in kinds}
    for id in sorted(tried["a.log"] - done["a.log"]):
        work.land(catalog, id)  # by its token: it is there once, whether it was there or not
    done["a.log"] = tried["a.log"]
    for kind, tables in kinds.items():
        for table in tables:
            found = work.ids(catalog, table)
            assert len(found) == len(set(found)), f"{table}: {[id for id, n in Counter(found).items() if n > 1]} twice"
            lost = sorted(done[kind] - set(found))
            assert not lost, f"{table}: lost {lost[:5]} of {len(done[kind])}"
            assert set(found) <= tried[kind] | {-1}, table
    wrong_order = list(check_history(notes, {name: work.ids(catalog, name) for name in work.LISTS}))
    assert wrong_order == [], "\n".join(wrong_order)
    assert work.is_whole(catalog)
    for name, one in notes.items():
        _check_own(catalog, name, [note for note in one if note[0] in ("own", "own?")])
    catalog.publish(["a.log", "pair.log"])
    for name in ("a.log", "pair.log"):
        assert len(catalog[name].serving) == catalog[name].count()
    catalog.close()
    wrong = [problem for problem in catalog.verify() if not problem.note]
    assert wrong == [], "\n".join(str(problem) for problem in wrong)
    catalog.collect(grace=timedelta(0))
    left = catalog.verify()
    assert left == [], "\n".join(str(problem) for problem in left)


def check_history(notes: Mapping[str, list[list[Any]]], final: Mapping[str, list[int]]) -> Iterator[str]:
    """Give the checker of the simulator what the processes noted: a serial order of appends and reads must explain it.

    The clock is that of the machine, which all processes share.
    """
    history: list[Operation] = []
    past: list[tuple[Hashable, object]] = []
    for name, one in notes.items():
        tried: dict[tuple[str, int], Operation] = {}
        for what, *values in one:
            if what == "tried":
                kind, id, began_ns = values
                lists = [kind] if kind in work.LISTS else work.PAIR if kind == "pair" else ()
                tried[kind, id] = Operation(len(history), name, began_ns, [(each, id) for each in lists])
                history.append(tried[kind, id])
            elif what == "done" and (values[0], values[1]) in tried:
                done = tried[values[0], values[1]]
                done.answered, done.outcome = values[2], OK
            elif what == "read":
                moment, began_ns, ended_ns, found = values
                reads = [(each, _appended(ids)) for each, ids in found.items()]
                history.append(Operation(len(history), name, began_ns, [], reads, ended_ns, OK))
                past.append((moment, reads))
    yield from check_lists(history, {name: _appended(ids) for name, ids in final.items()})
    yield from check_snapshots(past)


def _appended(ids: list[int]) -> list[Value]:
    """Return the rows that processes have appended: every table begins with one of -1."""
    return [id for id in ids if id >= 0]


def _check_own(catalog: Any, name: str, notes: list[list[Any]]) -> None:
    """The table of one writer is as it was acknowledged last, or as what it was about to do then makes it."""
    if not notes:
        return
    last = max((at for at, note in enumerate(notes) if note[0] == "own"), default=0)
    allowed = [note[1:] for note in notes[last:]]
    there = [state for state in allowed if _is_so(catalog, *state)]
    assert there, f"{name}: its table is none of {allowed}"


def _is_so(catalog: Any, place: str, is_there: bool, rows: int) -> bool:
    if (place in catalog) != is_there:
        return False
    return not is_there or len(catalog[place]) == rows


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + 120
    while not _answers(port):
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def storage(store: str, folder: Path, endpoint: str | None = None) -> Iterator[dict[str, str]]:
    """The properties of a metastore that is not there yet: on local disk, or in a bucket of its own on loopback."""
    if store == "local":
        yield {"root": str(folder / "lake")}
        return
    import boto3

    with BucketServer() if endpoint is None else nullcontext(None) as server:
        url, bucket = endpoint or str(server and server.url), f"b{uuid.uuid4().hex}"
        keys = {f"aws_{name}": value for name, value in KEYS.items() if name != "region"}
        boto3.client("s3", endpoint_url=url, region_name=KEYS["region"], **keys).create_bucket(Bucket=bucket)
        options = {f"storage.{name}": value for name, value in (KEYS | OPTIONS | {"endpoint": url}).items()}
        yield {"root": f"s3://{bucket}/lake", **options}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--store", choices=("local", "s3"), default="local")
    parser.add_argument("--endpoint", help="an S3 server on loopback; without it one is started (moto)")
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--kill-every", type=float, nargs=2, default=(0.5, 3.0), metavar=("FROM", "TO"), help="seconds")
    parser.add_argument("--no-kills", action="store_true")
    given = parser.parse_args()
    kills = None if given.no_kills else (given.kill_every[0], given.kill_every[1])
    with tempfile.TemporaryDirectory(prefix="soak-") as name, storage(given.store, Path(name), given.endpoint) as root:
        done = soak(Path(name), root, given.minutes * 60, given.writers, given.servers, kills)
    print(json.dumps(dict(sorted(done.items()))))
    print("Nothing was lost, and nothing is there twice.")


if __name__ == "__main__":
    main()
