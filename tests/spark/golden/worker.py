"""A worker that answers from the golden frames, started by the jar as the real one is: `worker.py frames.json`."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from headwater.spark import protocol
from headwater.spark.worker import Wire


def main() -> None:
    golden: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/worker")
        listener.listen()
        print(json.dumps({"socket": f"{folder}/worker"}), flush=True)
        connection, _ = listener.accept()
        wire = Wire(connection)
        for each in golden:
            frame = wire.receive()
            assert frame is not None
            call = protocol.decode(frame)
            expected = protocol.decode(protocol.encode(each["call"]))
            wrong = {"error": {"code": 18, "message": f"{call} is not {expected}"}}
            wire.send(each["answer"] if call == expected else wrong)
        sys.stdin.read()


if __name__ == "__main__":
    main()
