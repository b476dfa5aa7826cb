"""A procedure in the worker of the driver has no session, but the jar that called it has one: tasks go back to it.

The answer `{"tasks": [...]}` of a call is a question. The jar runs each as a task of Spark, a `task_run` of an
executor's worker, and sends what they gave; then the call goes on. A task is a value: it says what to do, and the
executor looks up the rest in the catalog at the same slot.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from headwater.errors import ServiceUnavailableError
from headwater.spark.framing import Wire
from headwater.spark.fresh import opened
from headwater.spark.protocol import ShareTask, TakeTask, TaskRun
from headwater.streams.checks import Check
from headwater.streams.log_files import Share
from headwater.streams.opening import open_stream
from headwater.streams.publishing import work_of
from headwater.streams.shares import share_of_work
from headwater.streams.sources.files import SourceFile

Json = dict[str, Any]
_answers = msgspec.json.Decoder(list[Json])


@dataclass(frozen=True)
class JarSession:
    """What a job needs of a Spark session, while the call of a procedure is open."""

    wire: Wire
    cores: int

    def distribute(self, tasks: Sequence[TaskRun]) -> list[Json]:
        """What tasks on executors answer, in their order."""
        self.wire.send({"ok": {"tasks": list(tasks)}})
        answers = self.wire.receive()
        if answers is None:
            raise ServiceUnavailableError("Spark did not finish the tasks of this procedure: see the error it raised.")
        return _answers.decode(answers)


def run_task(call: TaskRun) -> Json:
    """On an executor."""
    from headwater.pipeline.executors import Intake, prepare_file
    from headwater.pipeline.hands import Code, Storehouse, guarded, ready

    found, task = opened(call.lake), call.task
    snapshot = found.metastore.at(call.slot)
    stream = open_stream(snapshot, call.id)
    if isinstance(task, ShareTask):
        ready(Code(*each) for each in task.code)
        run = partial(share_of_work, found, work_of(snapshot, stream))
        done: Json = guarded(run, Share(task.number, task.count))
        return done
    checks = tuple(Check(*each) for each in task.checks)
    intake = Intake((), task.format, task.source, task.strict, checks, task.options)
    take = partial(prepare_file, Storehouse(**json.loads(call.lake)), stream, intake, task.known)
    return {"files": [guarded(take, SourceFile(*file)) for file in task.files]}


def take_task(files: Sequence[SourceFile], intake: Any, known: int) -> TakeTask:
    """Files of an intake as a task; how each looked travels with it."""
    return TakeTask(
        [(file.path, file.digest, file.size, dict(file.storage), file.stamp) for file in files],
        intake.format,
        intake.source,
        intake.strict,
        [(check.name, check.sql, check.action) for check in intake.checks],
        dict(intake.options),
        known,
    )
