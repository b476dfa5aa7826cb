"""Errors of Spark as errors of the one table: one sentence that says what failed and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headwater.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    UnsupportedOperationError,
)

SEND = "send the environment with the job (examples/cluster shows how)"
REFUSED = {
    "AnalysisException", "ParseException", "ArithmeticException", "ArrayIndexOutOfBoundsException",
    "DateTimeException", "NumberFormatException", "IllegalArgumentException", "SparkRuntimeException",
}  # fmt: skip
GONE = {"Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "SparkConnectGrpcException"}
OF_WORKER = "headwater.spark.HeadwaterException: "
"""Before the words of the jar's Python worker."""
UNSENT = {"PicklingError", "PySparkPicklingError"}


@contextmanager
def naming_failures() -> Iterator[None]:
    """Raise what Spark raises as one sentence with a code of the error table."""
    try:
        yield
    except LanceNamespaceError:
        raise
    except Exception as error:
        found = failure(error)
        if found is None:
            raise
        raise found from error


def failure(error: BaseException) -> LanceNamespaceError | None:
    """Return the error of ours for one of Spark's; None: it is none of Spark's."""
    names = {each.__name__ for each in type(error).__mro__}
    text = str(error).strip()
    first = text.splitlines()[0][:300] if text else type(error).__name__
    if names & UNSENT:
        return InvalidInputError(
            f"A function cannot be sent to executors: {first} Use names of modules that they have."
        )
    if "PythonException" in names:
        return _task_failure(text)
    if is_refused(error):
        return InvalidInputError(f"Spark refuses it: {first}")
    if names & GONE:
        return ServiceUnavailableError(f"Spark has gone away ({first}): look at its log, then run again.")
    if not type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = text.partition(OF_WORKER)[2].splitlines()
    why = (told or [next((line for line in lines if "Exception: " in line or "Error: " in line), first)])[0][:300]
    if "PythonException" in why:
        return _task_failure(text)
    return InternalError(f"Spark failed: {why.rstrip('.')}.")


def is_refused(error: BaseException) -> bool:
    """Return True if Spark refuses SQL or a value in it: the same error comes again, however often it is tried."""
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & REFUSED) and type(error).__module__.startswith("pyspark")


def _task_failure(text: str) -> LanceNamespaceError:
    """Return the error of a task whose Python raised: the last line of its stack says what."""
    lines = [line.strip() for line in text.splitlines() if line and not line[0].isspace()]
    told = [line for line in lines if "Error: " in line or "Exception: " in line or "Error" in line.split(":")[0]]
    why = (told[-1] if told else lines[0] if lines else "no reason was given")[:300].rstrip(".")
    if "PYTHON_VERSION_MISMATCH" in text:
        return UnsupportedOperationError(
            f"Executors run another Python than the driver: set PYSPARK_PYTHON to the same Python, or {SEND}."
        )
    if "ModuleNotFoundError" in why or "ImportError" in why:
        return UnsupportedOperationError(f"Executors lack a module ({why}): install it where they run, or {SEND}.")
    return InternalError(f"A task failed on an executor: {why}.")
