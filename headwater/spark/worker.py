"""The Python worker of one JVM: `python -m headwater.spark.worker`, started by the jar, one per process.

It listens on a Unix socket in a directory only its owner may enter, prints the socket's path as its first line,
and ends when its standard input closes, so it never outlives the JVM that started it. On the driver it plans and
commits; on executors it reads and writes data files. Every operation is one row of `CALLS`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from headwater.errors import ErrorCode, LanceNamespaceError
from headwater.spark.calls import CALLS
from headwater.spark.wire import Wire
from headwater.tables import changes
from headwater.tables import scan as scans
from headwater.tables.handle import TableHandle
from headwater.tables.write import rewrite, write

Json = dict[str, Any]


def serve(connection: socket.socket) -> None:
    """Answer the calls of one connection until it closes."""
    wire = Wire(connection)
    try:
        while (call := wire.receive()) is not None:
            _STREAMS.get(call["op"], _answer)(wire, call)
    except (OSError, ValueError) as error:  # the JVM went away, or stopped a task in the middle of its data
        if not isinstance(error, BrokenPipeError | ConnectionError):
            print(f"headwater worker: a connection ended: {error}", file=sys.stderr)
    finally:
        wire.close()


def _answer(wire: Wire, call: Json) -> None:
    wire.send(_guarded(lambda: CALLS[call["op"]](call)))


def _read(wire: Wire, call: Json) -> None:
    """Answer, then the data, then one more frame that says whether the data is complete."""
    scan, part = scans.Scan.from_json(call["scan"]), call["part"]
    opened = _guarded(lambda: scans.output_schema(scan))
    if "error" in opened:
        wire.send(opened)
        return
    schema = opened["ok"]
    wire.send({"ok": None})
    failure: Json = {"ok": None}

    def batches() -> Any:
        nonlocal failure
        try:
            yield from (changes.read if scan.changes else scans.read)(scan, part, schema)
        except Exception as error:
            failure = _failure(error)

    wire.send_batches(schema, batches())
    wire.send(failure)


def _write(wire: Wire, call: Json) -> None:
    """The data first, then the answer; what is left of the data after an error is read and thrown away."""
    table = TableHandle.from_json(call["table"])
    reader = wire.receive_batches()
    if call.get("row_ids"):
        answer = _guarded(lambda: rewrite(table, reader))
    else:
        answer = _guarded(lambda: write(table, reader, call.get("arrow")))
    if "error" in answer:
        for _ in reader:
            pass
    wire.send(answer)


_STREAMS: dict[str, Callable[[Wire, Json], None]] = {"read": _read, "write": _write}


def _guarded(action: Callable[[], Any]) -> Json:
    try:
        return {"ok": action()}
    except Exception as error:
        return _failure(error)


def _failure(error: BaseException) -> Json:
    code = int(error.code) if isinstance(error, LanceNamespaceError) else int(ErrorCode.INTERNAL)
    message = str(error) if isinstance(error, LanceNamespaceError) else f"{type(error).__name__}: {error}"
    if os.environ.get("HEADWATER_DEBUG"):
        import traceback

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
