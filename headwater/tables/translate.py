"""The one place where an error of pylance becomes an error of the table in `headwater/errors.py`.

pylance raises OSError, ValueError, RuntimeError, KeyError and its Rust panics with the meaning only in the text,
so the meaning is read from the text here, once. What the caller sees names the table and never a path, a source
line or a storage option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    ThrottlingError,
    UnsupportedOperationError,
)
from headwater.imports import lance
from headwater.store.object_stores import without_body

if TYPE_CHECKING:
    from headwater.tables.handle import TableHandle

MAX_MESSAGE_CHARS = 400
MAX_WORD_CHARS = 200
"""No more than this of one word of a message is shown: it may be what a caller sent."""
READ_HEAD, READ_TAIL = 3000, 1000
"""The length of the beginning and the end of a message that are searched. The middle may be a caller's text."""

UNKNOWN = re.compile(
    r"may have landed|may still be made|its outcome is not recorded|"
    r"Commit result for version \d+ is unknown"
)
"""Texts of CommitStateUnknownError, also inside another error of a server, and of pylance's own error."""
UNANSWERED = re.compile(
    r"Failed to execute request(?!.*(?:ConnectError|ConnectionRefused))|[Tt]imed out|RemoteDisconnected|"
    r"Connection (?:aborted|reset)|502 Bad Gateway|504 Gateway",
    re.DOTALL,
)
"""A request that was perhaps carried out: it was sent, and no answer came."""

OVERTAKEN = re.compile(r"would produce two fragments with id")
"""In a transaction, which numbers merged fragments itself: others have appended one of that number since."""

Kind = type[LanceNamespaceError]


class HoldsDataError(InvalidTableStateError):
    """There is a table already at the location of one to be created."""


class NoDataError(InvalidTableStateError):
    """There is no table at the location, or a file of it is gone."""


# First match wins. The left side is searched in pylance's message, which is all it tells.
RULES: tuple[tuple[re.Pattern[str], Kind], ...] = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        (r"No space left on device|os error 28\b|Disk quota exceeded|os error 122\b", InternalError),
        (r"Permission denied|os error 13\b|os error 1\b|Read-only file system|AccessDenied|403 Forbidden",
         PermissionDeniedError),
        (r"\bTable not found\b", TableNotFoundError),
        (r"SlowDown|429 Too Many Requests|Namespace error: Throttling", ThrottlingError),
        (r"503 Service Unavailable|Connection refused|error sending request|Namespace error: Service unavailable",
         ServiceUnavailableError),
        (r"[Cc]ommit conflict|[Cc]oncurrent ?[Mm]odification|Incompatible transaction|"
         r"preempted by concurrent|Too many concurrent writers",
         ConcurrentModificationError),
        (r"is referenced by .* can not delete", InvalidInputError),
        (r"Ref not found.*\btag\b", TableTagNotFoundError),
        (r"Ref conflict.*\btag\b", TableTagAlreadyExistsError),
        (r"Ref not found.*\b[Bb]ranch\b|Not found: \S*/tree/\S+/_versions", TableBranchNotFoundError),
        (r"Ref conflict.*\b[Bb]ranch\b|Clone operation should not enter", TableBranchAlreadyExistsError),
        (r"Ref is invalid", InvalidInputError),
        (r"[Vv]ersion not found|_versions/\d+\.manifest was not found|_versions/\d+\.manifest, ",
         TableVersionNotFoundError),
        (r"index not found|Index \"[^\"]*\" not found", TableIndexNotFoundError),
        (r"Index name '[^']*' already exists", TableIndexAlreadyExistsError),
        (r"Append with different schema|Duplicate field name|Unsupported data type|cannot contain `\.`|"
         r"already exists in the dataset|Cannot cast column|Can't cast value|cannot be made non-nullable|"
         r"All-null columns must|is a reserved name|[Ss]chema mismatch|non-null|contains a FixedSizeList with|"
         r"Cannot drop all columns|Nested lists are|duplicate column name",
         TableSchemaValidationError),
        (r"No field named|does not exist in|not found in schema|Field '[^']*' not found|Column .* does not exist|"
         r"column '[^']*' does not exist|is not in the dataset", TableColumnNotFoundError),
        (r"Not supported|not yet supported|not implemented|only support a single column|"
         r"This feature is not implemented", UnsupportedOperationError),
        (r"Dataset at path \S+ was not found|Not found: ", NoDataError),
        (r"Dataset already exists", HoldsDataError),
        (r"file size is too small|Invalid range|"
         r"Not a directory|[Cc]orrupt|[Mm]agic|DecodeError|failed to decode", InvalidTableStateError),
        (r"Error optimizing sql filter|Internal error: (?:Function|Failed to coerce)|Compute error: |"
         r"Execution error: (?!.*(?:LanceError\((?:IO|Internal)|External|Generic))",  # not what the storage raised
         InvalidInputError),
        (r"LanceError\((?:IO|Internal)\)|Encountered internal error", InternalError),
        (r"LanceError\(Index\)", InvalidInputError),
    )
)  # fmt: skip

FIX_THE_CALL = (ValueError, TypeError, KeyError, OverflowError)
"""Python types that, when no rule knows the text, mean that the request cannot be carried out as written."""

INVALID = re.compile(
    r"Invalid user input|Invalid argument|sql parser error|Error parsing|Error during planning|Cast error"
)
SOURCE_PLACE = re.compile(r"\.rs:\d+:\d+")
DUMPS = (": Schema {", "Schema {", ", location: Location {", ". Detail: Python exception", "Traceback (most recent")
"""Beginnings of dumps in pylance's messages."""
KIND = re.compile(r"LanceError\(\w+\): ")
"""pylance's own name of an error, which is removed."""
FOLDERS = re.compile(r"(?<!\S)/\S*/")


@contextmanager
def translating(table: TableHandle, doing: str, otherwise: Kind | None = None) -> Iterator[None]:
    """Translate whatever pylance raises in this block into an error of our table.

    `doing` completes "could not ..." in the message; `otherwise` is the error of a text that no rule knows.
    """
    try:
        yield
    except LanceNamespaceError:
        raise
    except Exception as error:
        raise named_error(table, doing, error, otherwise) from None
    except BaseException as error:
        if not is_panic(error):
            raise
        raise named_error(table, doing, error, otherwise or InternalError) from None


def named_error(
    table: TableHandle, doing: str, error: BaseException, otherwise: Kind | None = None
) -> LanceNamespaceError:
    """Return our error for one that pylance raised."""
    kind = kind_of(error, otherwise)
    if table.in_transaction and (kind is CommitStateUnknownError or OVERTAKEN.search(message_of(error))):
        return ConcurrentModificationError(
            f"Table {table.id} was changed by another writer after the transaction began. Begin it again, or use run()."
        )
    if kind is CommitStateUnknownError:
        return table.refusal or fate_unknown(table)
    return kind(f"Could not {doing[:MAX_WORD_CHARS]} table {table.id}: {clean(table, _full_message(error))}")


def fate_unknown(table: TableHandle) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"The commit to table {table.id} was not answered: it may have landed. Look at its newest version before "
        "repeating it."
    )


def kind_of(error: BaseException, otherwise: Kind | None = None) -> Kind:
    """Return the class of our error table for an error of pylance."""
    text = message_of(error)
    if UNKNOWN.search(text):
        return CommitStateUnknownError
    if isinstance(error, lance.commit.CommitConflictError):
        return ConcurrentModificationError
    for pattern, kind in RULES:
        if pattern.search(text):
            return kind
    if INVALID.search(text):
        return InvalidInputError
    return otherwise or _kind_by_type(error)


def _kind_by_type(error: BaseException) -> Kind:
    if isinstance(error, NotImplementedError):
        return UnsupportedOperationError
    if isinstance(error, PermissionError):
        return PermissionDeniedError
    return InvalidInputError if isinstance(error, FIX_THE_CALL) else InternalError


def message_of(error: BaseException) -> str:
    """Return the text of an error, also of one with several arguments; both ends of a long one."""
    return _ends(_full_message(error))


def _full_message(error: BaseException) -> str:
    return " ".join(str(part) for part in error.args) or type(error).__name__


def _ends(text: str) -> str:
    return text if len(text) <= READ_HEAD + READ_TAIL else f"{text[:READ_HEAD]} ... {text[-READ_TAIL:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without folders and source lines."""
    lines = message_of(error).splitlines() or ["no reason given"]
    return FOLDERS.sub("", lines[0].split(", /")[0])[:200]


def clean(table: TableHandle, text: str) -> str:
    """Return the text without source lines, dumps, paths and the values of storage options.

    Values are replaced before the text is cut, so that no half of a secret is left.
    """
    text = without_body(text)
    for secret in table.storage_options.values():
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    for path, shown in _paths(table.uri):
        text = text.replace(path, shown)
    text = _ends(text)
    for dump in DUMPS:
        text = text.partition(dump)[0]
    words = [word[:MAX_WORD_CHARS] for word in text.split() if not SOURCE_PLACE.search(word)]
    text = KIND.sub("", " ".join(words)).replace("Invalid user input: ", "").removesuffix("location:").rstrip(".,: ")
    return text[:MAX_MESSAGE_CHARS] + "."


def _paths(uri: str) -> list[tuple[str, str]]:
    """Return the spellings of a table's location in pylance's messages, each with its replacement."""
    path = uri.split("://", 1)[-1].rstrip("/")
    inside = path.lstrip("/")
    parent = inside.rpartition("/")[0]
    pairs = [(uri.rstrip("/"), "<table>"), (path, "<table>"), (inside, "<table>")]
    if "/" in parent:
        pairs += [("/" + parent, "<catalog>"), (parent, "<catalog>")]
    return [(found, shown) for found, shown in pairs if found]


def is_panic(error: BaseException) -> bool:
    """Return True for a panic of pylance's Rust code, which `except Exception` does not catch."""
    return type(error).__name__ == "PanicException"


def is_unanswered(error: BaseException) -> bool:
    """Return True if the failed request may have been carried out."""
    text = message_of(error)
    return isinstance(error, CommitStateUnknownError) or bool(UNKNOWN.search(text) or UNANSWERED.search(text))


def is_unshown_rewrite(error: TypeError) -> bool:
    """Return True if pylance 14 could not show a compaction that rewrote indices (operation Rewrite).

    Its message is "RewrittenIndex ... missing ... arguments".
    """
    return "RewrittenIndex" in message_of(error)
