"""The rows of a frame on their shorter way: from Spark's tasks through the jar to our own workers, as Arrow.

Spark's own way to Python (`mapInArrow`) takes half as much again for the same rows. Where a session has no jar, or is
one of Connect, there is only that.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headwater.spark.protocol import TakeRows, encode
from headwater.streams.checks import Check
from headwater.streams.definition import from_properties
from headwater.streams.opening import Stream

Json = dict[str, Any]


def of_jar(session: Any, name: str) -> Any:
    """A class of the jar; None: the session has no jar."""
    from py4j.java_gateway import JavaClass

    jvm = getattr(session, "_jvm", None)  # a Connect session has none
    found = getattr(jvm.headwater.spark, name) if jvm is not None else None
    return found if isinstance(found, JavaClass) else None


def send_frame(frame: Any, call: TakeRows) -> list[Json | None] | None:
    """What workers answered of all rows of a frame, in the order of its partitions; None: the session has no jar.

    The frame is planned anew, as for every action of Spark's; a task that is tried twice leaves files that nothing
    refers to.
    """
    jar = of_jar(frame.sparkSession, "FrameRows")
    if jar is None:
        return None
    answers = jar.send(frame.select("*")._jdf, encode(call).decode())
    return [each for answer in answers for each in json.loads(answer)]


def take_frame_rows(call: TakeRows, reader: pa.RecordBatchReader) -> list[Json | None]:
    """On an executor."""
    from headwater.pipeline.executors import Intake, prepare_rows
    from headwater.pipeline.hands import Storehouse

    definition = from_properties(call.properties)
    assert definition is not None
    stream = Stream(call.id, call.version, call.home, definition)
    checks = tuple(Check(*each) for each in call.checks)
    intake = Intake((), call.format, call.source, False, checks, call.options)
    return prepare_rows(Storehouse(**json.loads(call.lake)), stream, intake, call.known, reader)
