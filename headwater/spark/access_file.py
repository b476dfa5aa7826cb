"""Access of Spark's processes to a catalog: secrets travel in a file that only its owner can read.

The settings of a session stand on the JVM's command line, which everybody on the machine can list, and anybody who may
run SQL can `SET` more of them. So a setting only names the file; address, token and headers stand in it together, and a
file that others could have written or read is refused.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from functools import cache

import msgspec

from headwater.errors import InvalidInputError, PermissionDeniedError

ACCESS_FILE = "access_file"
"""The option of a catalog that names the file: `spark.sql.catalog.NAME.access_file`."""

ENVIRONMENT = "HEADWATER_SPARK_CATALOG_"
"""Before a catalog's name: the variable that names the file to the data source in Python, which sees no session."""


class Access(msgspec.Struct, frozen=True, tag="headwater-access", tag_field="kind"):
    """Content of an access file: the options of one catalog, such as `uri`, `token` and `header.*`."""

    options: dict[str, str]


_accesses = msgspec.json.Decoder(Access)


@cache
def _folder() -> str:
    """Return a folder of this process that only its owner may enter; it goes when the process ends."""
    folder = tempfile.mkdtemp(prefix="headwater-access-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_access(options: Mapping[str, str]) -> str:
    """Return the path of a new file with these options, readable by this user alone."""
    handle, path = tempfile.mkstemp(dir=_folder(), suffix=".json")  # made with mode 0600
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(Access(dict(options))))
    return path


def read_access(path: str) -> dict[str, str]:
    """Return the options in such a file; PermissionDenied (15) if it is not this user's alone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInputError(
            f"The catalog's access file cannot be opened ({error.strerror}): prepare the session with "
            "headwater.spark.configure() on the machine where its driver runs."
        ) from None
    seen = os.fstat(handle)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.getuid() or stat.S_IMODE(seen.st_mode) & 0o077:
        os.close(handle)
        raise PermissionDeniedError("The catalog's access file must be this user's own, with mode 0600.")
    with os.fdopen(handle, "rb") as file:
        content = file.read()
    try:
        return _accesses.decode(content).options
    except msgspec.MsgspecError:
        raise InvalidInputError("The catalog's access file is not one of headwater.spark.configure().") from None


def options_of(given: Mapping[str, object]) -> dict[str, str]:
    """Return the options of a catalog as a session names them: those of its access file, or themselves."""
    if ACCESS_FILE in given:
        return read_access(str(given[ACCESS_FILE]))
    return {key: str(value) for key, value in given.items()}
