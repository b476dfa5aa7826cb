"""Arrow bodies, in and out. What comes in is hostile until it has been read whole and checked.

A body is an Arrow IPC *stream*; an answer is an Arrow IPC *file* (lance-rest-openapi.yaml, the binary operations).
Every check is made before a table is touched, so a refused body changes nothing and leaves no files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.tables.ipc import BatchSize, batch_size
from headwater.tables.unpacked import repeats, unpacked_bytes

MAX_FIELDS = 10_000
MAX_DEPTH = 32
FREE_BYTES = 256 * 1024 * 1024
"""A batch may become this large whatever its body's size; beyond, see MAX_RATIO."""
MAX_RATIO = 64
"""How many times its body's size a batch may become."""
FREE_ROWS = 1_000_000
"""A batch may have this many rows whatever its size; beyond, each row takes at least a bit."""
END_MARKER_BYTES = 4
"""A stream ends with a length of zero, which old writers put alone and new ones after a continuation mark."""
FILE_MAGIC = b"ARROW1"

Body = bytes | bytearray | memoryview | pa.Buffer


def read_stream(data: Body, accept: Callable[[int], None] | None = None) -> pa.RecordBatchReader:
    """A reader over a body that has been checked from end to end; InvalidInput (13) when it is not what it should be.

    Checked: a well-formed stream with its end marker (so a cut body is seen even when it is cut between two
    batches), a schema of sane depth and width, no batch that unpacks to absurdly more than was sent, and
    every offset, length and text inside the batches. `accept` is told how many bytes the body unpacks to before any
    of it is unpacked, and may refuse them.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    with _reading():
        unpacked = _check_messages(buffer)
        if accept is not None:
            accept(unpacked)
        _check_batches(buffer)
        return pa.ipc.open_stream(buffer)


def measure_stream(data: Body) -> int:
    """How many bytes a body unpacks to, by its own account: nothing is unpacked. Errors as `read_stream`."""
    with _reading():
        return _check_messages(data if isinstance(data, pa.Buffer) else pa.py_buffer(data))


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except InvalidInputError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError, struct.error, MemoryError) as error:
        raise InvalidInputError(f"The body is not a valid Arrow IPC stream: {_first_line(error)}") from None


def _check_messages(buffer: pa.Buffer) -> int:
    """Walk the messages without unpacking them; how many bytes they unpack to."""
    if bytes(buffer.slice(0, min(6, buffer.size)).to_pybytes()) == FILE_MAGIC:
        raise InvalidInputError("The body is an Arrow IPC file: send an Arrow IPC stream.")
    source = pa.BufferReader(buffer)
    messages = pa.ipc.MessageReader.open_stream(source)
    total = end = 0
    for number, message in enumerate(_messages(messages)):
        end = source.tell()
        if (number == 0) != (message.type == "schema"):
            raise InvalidInputError("The body is not a valid Arrow IPC stream: it starts with one schema.")
        size = batch_size(message)
        if size is not None:
            _check_size(size, message.body.size if message.body is not None else 0)
            total += size.bytes
    if total > MAX_RATIO * max(buffer.size, FREE_BYTES):
        raise InvalidInputError(f"The body unpacks to {total} bytes, far more than was sent: send it uncompressed.")
    if source.tell() < end + END_MARKER_BYTES:
        raise InvalidInputError("The body was cut short: it lacks the end marker of an Arrow stream. Send it whole.")
    return total


def _messages(messages: pa.MessageReader) -> Iterator[pa.Message]:
    while True:
        try:
            yield messages.read_next_message()
        except StopIteration:
            return


def _check_size(size: BatchSize, sent: int) -> None:
    if size.bytes > max(FREE_BYTES, MAX_RATIO * sent):
        raise InvalidInputError(
            f"A batch of {sent} bytes unpacks to {size.bytes}: send smaller batches, or send them uncompressed."
        )
    if size.rows < 0 or size.rows > FREE_ROWS + 8 * size.bytes:
        raise InvalidInputError(f"A batch claims {size.rows} rows in {size.bytes} bytes: send rows that hold data.")


def _check_batches(buffer: pa.Buffer) -> None:
    """Unpack every batch once, one at a time, and check its insides."""
    reader = pa.ipc.open_stream(buffer)
    check_schema(reader.schema)
    repeating = any(repeats(field.type) for field in reader.schema)  # else a batch holds what its message says
    for batch in reader:
        if repeating:
            batch.validate()
            _check_unpacked(sum(unpacked_bytes(column) for column in batch.columns), buffer.size)
        batch.validate(full=True)


def _check_unpacked(size: int, sent: int) -> None:
    """Views, dictionaries and runs say one thing many times: what they say when written out is counted too."""
    if size > max(FREE_BYTES, MAX_RATIO * sent):
        raise InvalidInputError(
            f"A batch of a body of {sent} bytes holds {size} bytes when its views, dictionaries and runs are written "
            "out: send smaller batches."
        )


def check_schema(schema: pa.Schema) -> None:
    """A table's schema has columns, each with its own name, and is neither absurdly deep nor absurdly wide."""
    if not schema.names:
        raise InvalidInputError("The data has no columns: send at least one.")
    if len(set(schema.names)) < len(schema.names):
        raise InvalidInputError("Two columns of the data have the same name: give every column its own.")
    if "" in schema.names:
        raise InvalidInputError("A column of the data has an empty name: name it.")
    seen = 0
    level = [field.type for field in schema]
    for _ in range(MAX_DEPTH):
        seen += len(level)
        if seen > MAX_FIELDS:
            raise InvalidInputError(f"The data has more than {MAX_FIELDS} fields.")
        level = [child for kind in level for child in _children(kind)]
        if not level:
            return
    raise InvalidInputError(f"The data's types are nested deeper than {MAX_DEPTH} levels.")


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    return [kind.field(position).type for position in range(kind.num_fields)]


def to_file(reader: pa.RecordBatchReader) -> bytes:
    """An answer: the batches as one Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def read_file(data: Body) -> pa.RecordBatchReader:
    """The rows of an Arrow IPC file that a catalog answered."""
    file = pa.ipc.open_file(pa.py_buffer(data))
    batches = (file.get_batch(number) for number in range(file.num_record_batches))
    return pa.RecordBatchReader.from_batches(file.schema, batches)


def to_stream(reader: pa.RecordBatchReader) -> bytes:
    """A body: the batches as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def with_metadata(reader: pa.RecordBatchReader, metadata: Mapping[str, str]) -> pa.RecordBatchReader:
    """The same batches under a schema that has these keys in its metadata too."""
    if not metadata:
        return reader
    given = {key.encode(): value.encode() for key, value in metadata.items()}
    schema = reader.schema.with_metadata({**(reader.schema.metadata or {}), **given})
    batches = (batch.replace_schema_metadata(schema.metadata) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, batches)


class Counted:
    """A reader that passes batches on, counts their rows, and remembers the error that ended them.

    pylance makes an OSError of whatever a reader raises; `raising` brings the error itself back.
    """

    def __init__(self, source: pa.RecordBatchReader) -> None:
        self.rows = 0
        self._source = source
        self._failure: Exception | None = None
        self.reader = pa.RecordBatchReader.from_batches(source.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._source:
                self.rows += batch.num_rows
                yield batch
        except Exception as error:
            self._failure = error
            raise

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Around all that reads: what the rows ended with comes out as it was, be it ours or the application's."""
        try:
            yield
        except BaseException:
            if self._failure is not None:
                raise self._failure from None
            raise


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
