"""The protocol between the jar and its Python worker: golden frames that both languages read."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest

from headwater.spark import build, protocol
from headwater.spark.calls import CALLS, STREAM_JOBS
from headwater.spark.jobs import JOBS
from headwater.spark.worker import Wire, serve
from headwater.tables.scan.parts import AnyPart
from headwater.work import Task
from headwater.work.tasks import named

TOP = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
FRAMES: list[dict[str, Any]] = json.loads((GOLDEN / "frames.json").read_text())
ON_EXECUTORS = {protocol.Read, protocol.Write, protocol.TakeRows, protocol.TaskRun}


def without_nulls(value: Any) -> Any:
    """A frame without what says nothing: an absent field and a null one are the same call."""
    if isinstance(value, dict):
        kept = {key: without_nulls(item) for key, item in value.items() if item is not None and item is not False}
        return {key: item for key, item in kept.items() if key != "fields"} | (
            {"fields": value["fields"]} if value.get("fields") else {}
        )
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("frame", FRAMES, ids=[frame["call"]["op"] for frame in FRAMES])
def test_a_golden_call_is_read_as_its_struct_and_written_back_the_same(frame: dict[str, Any]) -> None:
    call = protocol.decode(json.dumps(frame["call"]).encode())
    assert without_nulls(json.loads(protocol.encode(call))) == without_nulls(frame["call"])


def test_every_call_and_every_kind_of_part_has_a_golden_frame_and_every_call_an_answer() -> None:
    calls = set(get_args(protocol.AnyCall))
    assert {type(protocol.decode(json.dumps(frame["call"]).encode())) for frame in FRAMES} == calls
    assert set(CALLS) == calls - ON_EXECUTORS
    read = [protocol.decode(json.dumps(f["call"]).encode()) for f in FRAMES if f["call"]["op"] == "read"]
    assert {type(call.part) for call in read if isinstance(call, protocol.Read)} == set(get_args(AnyPart))
    assert set(get_args(protocol.JobName)) == {*JOBS, *STREAM_JOBS}
    assert all(callable(named(function)) for function in STREAM_JOBS.values())


@pytest.mark.parametrize(
    "change",
    [
        {"op": "drop_everything"},
        {"unknown": 1},
        {"id": "prod"},
        {"id": [1]},
        {"catalog": None},
        {"id": None},
    ],
)
def test_a_call_of_another_shape_is_refused_with_what_to_do(change: dict[str, Any]) -> None:
    frame = json.dumps({"op": "list_tables", "catalog": {}, "id": ["prod"], **change}).encode()
    with pytest.raises(msgspec.ValidationError):
        protocol.decode(frame)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs,), daemon=True)
    thread.start()
    ours.sendall(len(frame).to_bytes(4, "big") + frame)
    answered = Wire(ours).receive()
    thread.join(30)
    ours.close()
    assert answered is not None
    error = json.loads(answered)["error"]
    assert error["code"] == 0
    assert "install the same version" in error["message"]


def test_a_new_worker_answers_calls_of_several_threads_at_once() -> None:
    """It imports what a call needs when the call comes: of another kind in each thread, which share most modules."""
    frames: list[dict[str, Any]] = [
        {"op": "list_tables", "catalog": {}, "id": []},
        *(
            {"op": "task_run", "task": Task(function, arguments, plain=True).packed()}
            for function, arguments in (
                ("headwater.streams.sources.intake:are_few", (pa.table({"a": [1]}),)),
                ("headwater.streams.serving.publish_tasks:task_count", (1, 2, False)),
                ("headwater.streams.serving.scd2:is_step", ()),
                ("headwater.tables.write.data_files:no_such", ()),
            )
        ),
    ]
    command = [sys.executable, "-P", "-m", "headwater.spark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        place = json.loads(worker.stdout.readline())["socket"]
        wires = []
        for frame in frames * 2:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(place)
            wires.append(Wire(connection))
            wires[-1].send(frame)
        answers = [json.loads(wire.receive() or b"{}") for wire in wires]
        for wire in wires:
            wire.close()
        worker.communicate("")
    for listed, few, count, *unknown in (answers[: len(frames)], answers[len(frames) :]):
        assert "The catalog has no 'uri'" in listed["error"]["message"]
        assert (few, count) == ({"ok": True}, {"ok": 1})
        assert ["has no attribute" in each["error"]["message"] for each in unknown] == [True, True], unknown


@pytest.mark.long
def test_java_reads_the_golden_frames_over_the_workers_own_wire(tmp_path: Path) -> None:
    compiler, jar = build.javac(), build.ensure_jar()
    if compiler is None or jar is None:
        pytest.skip("no JDK on this machine: Java cannot read the frames here")
    path = os.pathsep.join([str(jar), f"{build.spark_jars()}/*"])
    made = [compiler, "-cp", path, "-d", str(tmp_path), str(GOLDEN / "GoldenFrames.java")]
    subprocess.run(made, check=True, capture_output=True, timeout=120)
    python = (
        tmp_path / "python"
    )  # the jar starts `python -P -m headwater.spark.worker`: this one reads the frames instead
    start = f'exec "{sys.executable}" "{GOLDEN / "worker.py"}" "{GOLDEN / "frames.json"}"'
    python.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/line"\n{start}\n')
    python.chmod(0o755)
    command = ["java", "-cp", os.pathsep.join([str(tmp_path), path]), "headwater.spark.GoldenFrames"]
    done = subprocess.run(
        [*command, str(GOLDEN / "frames.json"), str(python)],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "PYTHONPATH": str(TOP)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{len(FRAMES)} frames read" in done.stdout
    line = (tmp_path / "line").read_text().split()
    assert line == ["-P", "-m", "headwater.spark.worker"], "a module in the working directory would run in the worker"
