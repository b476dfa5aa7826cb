"""The Python worker of one JVM: `python -P -m headwater.spark.worker`, started by the jar, one per process.

It listens on a Unix socket in a directory only its owner may enter, prints the socket's path as its first line,
and ends when its standard input closes, so it never outlives the JVM that started it. On the driver it plans and
commits; on executors it reads and writes data files. Every call is a struct of the protocol and one row of `CALLS`.

One connection carries one call at a time. A call is a frame (its length as 4 bytes, big endian, then the JSON of a call
of `headwater.spark.protocol`); the answer is a frame `{"ok": value}` or `{"error": {"code", "message"}}`. A call
that reads sends, after its answer, an Arrow IPC stream and then one more frame, which reports an error in the middle of
the data. A call that writes receives an Arrow IPC stream before its answer.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable
from io import IOBase
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow as pa

from headwater.errors import ErrorCode, LanceNamespaceError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.spark import protocol
from headwater.spark.protocol import encode
from headwater.spark.wire_values import Json
from headwater.streams.reading.position_views import PositionView
from headwater.tables.scan.parts import InitialScan, Positions, kept
from headwater.work import JarRunner, Task
from headwater.work.tasks import named

# A task that takes rows into a log needs none of these, and pylance, pandas and the REST client come with them: a
# second of CPU, for which the first write of a session would wait.
calls = when_used("headwater.spark.calls")
following = when_used("headwater.spark.following")
fresh = when_used("headwater.spark.fresh")
stream_writes = when_used("headwater.spark.stream_writes")
scans = when_used("headwater.tables.scan.table_scan")
data_files = when_used("headwater.tables.write.data_files")
_importing = threading.Lock()
TAKES_ROWS = "headwater.streams.sources.intake:prepare_rows"

MAX_FRAME = 1 << 30
OTHER_VERSION = (
    "The jar and the Python package `headwater` of this worker do not speak the same protocol ({reason}): install the "
    "same version on the driver and on every executor."
)


class Wire:
    """One connection from the JVM."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._input = cast(BinaryIO, connection.makefile("rb", buffering=1 << 18))

    def receive(self) -> bytes | None:
        """Return the next frame; None when the other side has closed the connection."""
        header = self._input.read(4)
        if len(header) < 4:
            return None
        (size,) = struct.unpack(">I", header)
        if size > MAX_FRAME:
            raise ValueError(f"a frame of {size} bytes is longer than {MAX_FRAME}")
        body = self._input.read(size)
        return body if len(body) == size else None

    def send(self, message: dict[str, Any]) -> None:
        body = encode(message)
        self._socket.sendall(struct.pack(">I", len(body)) + body)

    def send_batches(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write an Arrow stream; it is closed properly also when `batches` raises."""
        sink = pa.PythonFile(cast(IOBase, _Sink(self._socket)), mode="w")
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    def receive_batches(self) -> pa.RecordBatchReader:
        return pa.ipc.open_stream(pa.PythonFile(cast(IOBase, self._input), mode="r"))

    def close(self) -> None:
        self._input.close()
        self._socket.close()


class _Sink:
    """A socket as pyarrow writes to it: every write is a whole one."""

    closed = False

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def write(self, data: bytes) -> int:
        self._socket.sendall(data)
        return len(data)

    def flush(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True


def serve(connection: socket.socket) -> None:
    """Answer the calls of one connection until it closes."""
    wire = Wire(connection)
    try:
        while (frame := wire.receive()) is not None:
            _serve_one(wire, protocol.decode(frame))
    except msgspec.ValidationError as error:  # what follows such a frame, if anything, cannot be told
        wire.send(_failure(UnsupportedOperationError(OTHER_VERSION.format(reason=error))))
    except (OSError, ValueError) as error:  # the JVM went away, or stopped a task in the middle of its data
        if not isinstance(error, BrokenPipeError | ConnectionError):
            print(f"headwater worker: a connection ended: {error}", file=sys.stderr)
    finally:
        wire.close()


def _serve_one(wire: Wire, call: protocol.AnyCall) -> None:
    if not isinstance(call, protocol.TaskRun | protocol.TakeRows):
        _import_all()
    if isinstance(call, protocol.Read):
        _read(wire, call)
    elif isinstance(call, protocol.Write | protocol.TakeRows):
        _write(wire, call)
    elif isinstance(call, protocol.JobCommit):
        wire.send(_guarded(lambda: calls.commit_job(call, JarRunner(wire, call.parallelism))))
    elif isinstance(call, protocol.TaskRun):
        wire.send(_guarded(lambda: _task(call.task).answer()))
    else:
        wire.send(_guarded(lambda: calls.answer(call)))


def _import_all() -> None:
    """Import what calls need, by one thread at a time: two that import the modules of one package from different ends
    wait for each other, and Python ends that with an error."""
    with _importing:
        _ = calls.CALLS


def _task(packed: str) -> Task:
    """Return a task whose modules are imported: of one that takes rows into a log only its own."""
    with _importing:
        found = Task.unpacked(packed)
        named(found.function)
    if found.function != TAKES_ROWS or any(isinstance(each, PositionView) for each in found.arguments):
        _import_all()  # it reads a serving copy
    return found


def _read(wire: Wire, call: protocol.Read) -> None:
    """Answer, then the data, then one more frame that says whether the data is complete."""
    opened = _guarded(lambda: _output_schema(call))
    if "error" in opened:
        wire.send(opened)
        return
    schema = opened["ok"]
    wire.send({"ok": None})
    failure: Json = {"ok": None}

    def batches() -> Any:
        nonlocal failure
        try:
            rows = calls.read_rows(call.scan, call.part, schema)
            yield from kept(rows, call.keys) if call.keys else rows
        except Exception as error:
            failure = _failure(error)

    wire.send_batches(schema, batches())
    wire.send(failure)


def _output_schema(call: protocol.Read) -> pa.Schema:
    found: pa.Schema
    if isinstance(call.part, InitialScan | Positions):
        found = following.output_schema(call.scan, call.part)
    elif call.scan.is_folded:
        found = fresh.output_schema(call.scan)
    else:
        found = scans.output_schema(call.scan.engine())
    return found


def _write(wire: Wire, call: protocol.Write | protocol.TakeRows) -> None:
    """The data first, then the answer; what is left of the data after an error is read and thrown away."""
    reader = wire.receive_batches()
    done = _guarded(lambda: _written(call, reader))
    if "error" in done:
        for _ in reader:
            pass
    wire.send(done)


def _written(call: protocol.Write | protocol.TakeRows, reader: pa.RecordBatchReader) -> object:
    if isinstance(call, protocol.TakeRows):
        return _task(call.task).run(reader)
    query = call.query
    if query is not None and call.table.is_stream:
        return stream_writes.prepare_batch(call.table, query, reader)
    if call.row_ids:
        return data_files.rewrite(call.table.writable(), reader)
    if call.table.is_stream:
        return stream_writes.write_events(call.table, reader, call.given, call.deletes)
    return data_files.write(call.table.writable(), reader, call.arrow)


def _guarded(action: Callable[[], object]) -> Json:
    try:
        return {"ok": action()}
    except Exception as error:
        return _failure(error)


def _failure(error: BaseException) -> Json:
    code = int(error.code) if isinstance(error, LanceNamespaceError) else int(ErrorCode.INTERNAL)
    message = str(error) if isinstance(error, LanceNamespaceError) else f"{type(error).__name__}: {error}"
    if os.environ.get("HEADWATER_DEBUG"):
        traceback.print_exception(error)
    return {"error": {"code": code, "message": message}}


def main() -> None:
    folder = tempfile.mkdtemp(prefix="headwater-")
    path = os.path.join(folder, "worker")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(128)
    print(json.dumps({"socket": path, "pid": os.getpid()}), flush=True)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    try:
        while sys.stdin.buffer.read(1):
            pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
