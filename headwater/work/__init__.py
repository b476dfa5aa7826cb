"""The one way to executors: a `Task` is a value, and a `Runner` runs tasks in this process or on Spark."""

from headwater.work.runners import HERE, JarRunner, LocalRunner, SparkRunner, runner_of
from headwater.work.tasks import DRIVER, DRIVER_ROWS, EMBEDDED, EXECUTORS, Json, Runner, Task, Where, guarded, named

__all__ = [
    "DRIVER",
    "DRIVER_ROWS",
    "EMBEDDED",
    "EXECUTORS",
    "HERE",
    "JarRunner",
    "Json",
    "LocalRunner",
    "Runner",
    "SparkRunner",
    "Task",
    "Where",
    "guarded",
    "named",
    "runner_of",
]
