"""A procedure in the worker of the driver has no session, but the jar that called it has one: tasks go back to it.

The answer `{"tasks": [...]}` of a call is a question. The jar runs each as a task of Spark, a `task_run` of an
executor's worker, and sends what they gave; then the call goes on.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headwater.errors import ServiceUnavailableError
from headwater.spark.framing import Wire
from headwater.spark.protocol import TaskRun

Json = dict[str, Any]
_answers = msgspec.json.Decoder(list[Json])


@dataclass(frozen=True)
class JarSession:
    """What a job needs of a Spark session, while the call of a procedure is open."""

    wire: Wire
    cores: int

    def distribute(self, tasks: int, run: Callable[[int], Json]) -> list[Json]:
        """What tasks on executors answer, in their order. `run` is made of what the package has: it is pickled."""
        function = base64.b64encode(pickle.dumps(run)).decode()
        asked = [TaskRun(function, number) for number in range(tasks)]
        self.wire.send({"ok": {"tasks": asked}})
        answers = self.wire.receive()
        if answers is None:
            raise ServiceUnavailableError("Spark did not finish the tasks of this procedure: see the error it raised.")
        return _answers.decode(answers)


def run_task(call: TaskRun) -> Json:
    """On an executor. What is unpickled comes from the driver, by Spark's own way of sending tasks."""
    run: Callable[[int], Json] = pickle.loads(base64.b64decode(call.function))
    return run(call.number)
