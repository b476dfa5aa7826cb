"""Topics of Kafka: offsets to read, planned by the driver, and tasks that read them. Needs the extra `kafka`.

A range is read by one task: the messages of a partition from an offset up to another. Its rows are written as files of
the log, and the driver commits them with the offsets after them. Nothing is kept in a consumer group of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError, ServiceUnavailableError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.streams.reading.position_views import PositionView
from headwater.streams.serving.serving_copy import CatalogLocation
from headwater.streams.sources.intake import Intake, prepare_chunk
from headwater.streams.sources.message_values import HEADERS, KEY, TIMESTAMP, Messages, named_columns
from headwater.streams.stream_lookup import Stream
from headwater.work import Json, guarded

client = when_used("confluent_kafka")
admin = when_used("confluent_kafka.admin")
MISSING = "Kafka needs the module confluent_kafka: pip install 'headwater[kafka]', also where executors run."
WAIT_S = 30.0
"""A broker that answers nothing for so long is taken for one that is not there."""
POLL_S = 1.0
AT_ONCE = 10_000
"""A consumer returns at most so many messages from one call."""
EARLIEST, LATEST = "earliest", "latest"
FIXED = ("bootstrap.servers", "group.id", "enable.auto.commit", "auto.offset.reset", "enable.partition.eof")
"""Settings that are not to be set: the offsets are the catalog's."""
Offsets = dict[str, dict[str, int]]
"""The next offset of each partition, by topic and by the partition's number as text, as the catalog keeps it."""
Limits = Mapping[str, Mapping[int, tuple[int, int]]]
"""The first offset that a partition has, and the next that it will give, by topic and partition."""


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of a partition, from `start` up to `end`, which is not of the range."""

    topic: str
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def shown(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.start}-{self.end}"


def begun(known: Offsets, limits: Limits, start: str) -> Offsets:
    """Return where each partition is read from. Pure.

    A topic that is new begins at `start`; a partition that its topic got later begins at its first message. Partitions
    that are gone stay, for `checked_offsets`.
    """
    found: Offsets = {}
    for topic, partitions in limits.items():
        before = known.get(topic)
        found[topic] = dict(before or {})
        for partition, (low, high) in partitions.items():
            first = high if before is None and start == LATEST else low
            found[topic].setdefault(str(partition), first)
    return found


def checked_offsets(offsets: Offsets, limits: Limits, may_lose: bool) -> tuple[Offsets, list[str]]:
    """Return the offsets that can be read, and what was lost, in words. Pure.

    Raises InvalidInput (13) if a topic was cut behind an offset, or made anew, unless it may lose messages.
    """
    found, lost = {topic: dict(each) for topic, each in offsets.items()}, list[str]()
    for topic, partitions in offsets.items():
        anew = list(_made_anew(topic, partitions, limits[topic]))
        if anew:  # offsets of before mean nothing in any partition of it
            lost.append(f"{' and '.join(anew)}: the topic was made anew")
            found[topic] = {str(partition): low for partition, (low, _) in limits[topic].items()}
            continue
        for partition, offset in partitions.items():
            low, _ = limits[topic][int(partition)]
            if low > offset:
                lost.append(f"{low - offset:,} offsets of {topic}[{partition}] ({offset} to {low - 1})")
                found[topic][partition] = low
    if lost and not may_lose:
        raise InvalidInputError(
            f"Kafka has deleted messages that were not taken yet: {'; '.join(lost)}. Nothing was loaded. Rebuild the "
            'table with --full-refresh, or write on_lost = "continue" to go on with what is there.'
        )
    return found, lost


def _made_anew(topic: str, offsets: Mapping[str, int], limits: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    """Yield the signs that a topic is another one than the one that was read."""
    for partition, offset in offsets.items():
        if int(partition) not in limits:
            yield f"{topic}[{partition}] is gone"
        elif limits[int(partition)][1] < offset:
            yield f"{topic}[{partition}] ends at {limits[int(partition)][1]} and was read up to {offset}"


def check_partitions(known: Offsets, limits: Limits, topic: str) -> None:
    """Raise InvalidInput (13) if a topic that orders its rows by `_offset` got more partitions, or was made anew. Pure.

    A key may be in another partition since then, where offsets begin anew: its newest rows would count as late.
    """
    anew = list(_made_anew(topic, known.get(topic, {}), limits[topic]))
    if anew:
        raise InvalidInputError(
            f"{' and '.join(anew)}: the topic was made anew, and its table is ordered by _offset, which begins anew "
            "too. Nothing was loaded: run with --full-refresh."
        )
    more = [each for each in limits[topic] if topic in known and str(each) not in known[topic]]
    if more:
        raise InvalidInputError(
            f"{topic} got {len(more)} more partitions, and its table is ordered by _offset, which orders the messages "
            "of one partition only. Nothing was loaded: give another sequence_by and run with --full-refresh."
        )


def next_ranges(offsets: Offsets, limits: Limits, most: int, tasks: int) -> list[OffsetRange]:
    """Return the ranges of the next batch, in the order in which they land. Pure.

    `most`: the messages of one range at most. `tasks`: how many ranges can be read at the same time; a partition that
    has much is divided, so that all of them have work.
    """
    left = [
        (topic, int(partition), offset, limits[topic][int(partition)][1])
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
        if limits[topic][int(partition)][1] > offset
    ]
    pieces = max(1, tasks // max(1, len(left)))
    found = []
    for topic, partition, start, high in left:
        end = min(high, start + most * pieces)
        size = max(1, -(-(end - start) // pieces)) if end - start > most // 4 else end - start
        for first in range(start, end, size):
            found.append(OffsetRange(topic, partition, first, min(end, first + size)))
    return found


def after(offsets: Offsets, ranges: Sequence[OffsetRange]) -> Offsets:
    """Return the offsets after ranges were taken. Pure."""
    found = {topic: dict(each) for topic, each in offsets.items()}
    for each in ranges:
        found[each.topic][str(each.partition)] = max(found[each.topic][str(each.partition)], each.end)
    return found


# Asking the brokers -----------------------------------------------------------------------------------------------


class Broker:
    """Asks the brokers of topics for their offsets."""

    def __init__(self, settings: Mapping[str, str], topics: Sequence[str]) -> None:
        self._settings, self._topics = settings, topics
        self._admin = _client(lambda: admin.AdminClient(_quiet(settings)))

    def limits(self) -> Limits:
        """Return the offsets that the partitions have now; transactions of Kafka that are still open are left out."""
        parts = self._partitions()
        low, high = (self._offsets(parts, spec) for spec in (admin.OffsetSpec.earliest(), admin.OffsetSpec.latest()))
        limits: dict[str, dict[int, tuple[int, int]]] = {}
        for topic, partition in parts:
            limits.setdefault(topic, {})[partition] = low[topic, partition], high[topic, partition]
        return limits

    def _partitions(self) -> list[tuple[str, int]]:
        found = _raising_catalog_errors(lambda: self._admin.list_topics(timeout=WAIT_S), self._settings).topics
        parts: list[tuple[str, int]] = []
        for topic in self._topics:
            known = found.get(topic)
            if known is None or known.error is not None or not known.partitions:
                raise InvalidInputError(f"There is no topic {topic!r} at {self._settings['bootstrap.servers']}.")
            parts += [(topic, partition) for partition in sorted(known.partitions)]
        return parts

    def _offsets(self, parts: Sequence[tuple[str, int]], spec: object) -> dict[tuple[str, int], int]:
        wanted = {client.TopicPartition(*part): spec for part in parts}
        committed = client.IsolationLevel.READ_COMMITTED
        asked = self._admin.list_offsets(wanted, isolation_level=committed, request_timeout=WAIT_S)
        return {(each.topic, each.partition): self._answer(answer) for each, answer in asked.items()}

    def _answer(self, answer: Any) -> int:
        return int(_raising_catalog_errors(answer.result, self._settings).offset)


def _client(make: Any) -> Any:
    try:
        return make()
    except ModuleNotFoundError:
        raise UnsupportedOperationError(MISSING) from None
    except client.KafkaException as error:
        raise InvalidInputError(f"Kafka refuses its settings: {error.args[0].str()}.") from None


def _raising_catalog_errors(ask: Any, settings: Mapping[str, str]) -> Any:
    try:
        return ask()
    except client.KafkaException as error:
        raise _failure(error.args[0], settings) from None


def _failure(error: Any, settings: Mapping[str, str]) -> Exception:
    """Return an error of Kafka as one of ours: wrong credentials are the caller's, a broker that is away is not."""
    told = f"Kafka at {settings['bootstrap.servers']}: {str(error.str()).rstrip('.')}."
    return InvalidInputError(told) if _is_denied(error) else ServiceUnavailableError(told)


def _is_denied(error: Any) -> bool:
    return error.code() in (
        client.KafkaError._AUTHENTICATION,
        client.KafkaError.SASL_AUTHENTICATION_FAILED,
        client.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        client.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )


def _quiet(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with a logger of nobody: what goes wrong is raised."""
    return {**settings, "log_level": 2, "error_cb": lambda error: None}


# Reading ----------------------------------------------------------------------------------------------------------


def read_range(settings: Mapping[str, str], wanted: OffsetRange, columns: frozenset[str]) -> Messages:
    """Return the messages of a range. `columns`: the columns of a topic that the table names."""
    consumer = _consumer(tuple(sorted(settings.items())))
    consumer.assign([client.TopicPartition(wanted.topic, wanted.partition, wanted.start)])
    try:
        found = list(_consumed(consumer, settings, wanted))
    finally:
        consumer.unassign()
    return Messages(
        wanted.topic,
        wanted.partition,
        [each.value() for each in found],
        [each.offset() for each in found],
        [each.timestamp()[1] for each in found] if TIMESTAMP in columns else (),
        [each.key() for each in found] if KEY in columns else (),
        [each.headers() for each in found] if HEADERS in columns else (),
    )


@lru_cache(maxsize=4)
def _consumer(settings: tuple[tuple[str, str], ...]) -> Any:
    """Return the consumer of this process with these settings: to connect takes longer than a small range."""
    own = {
        "group.id": "headwater",  # a consumer needs one; nothing is committed to it
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
    }
    return _client(lambda: client.Consumer({**_quiet(dict(settings)), **own}))


def _consumed(consumer: Any, settings: Mapping[str, str], wanted: OffsetRange) -> Iterator[Any]:
    """Yield the messages of a range until its end; gaps are messages that were compacted, or marks of transactions."""
    waited, reached = 0.0, wanted.start
    while reached < wanted.end:
        some = consumer.consume(min(AT_ONCE, wanted.end - reached), POLL_S)
        waited = 0.0 if any(each.error() is None for each in some) else waited + POLL_S
        if waited >= WAIT_S:
            raise ServiceUnavailableError(
                f"Kafka at {settings['bootstrap.servers']} gave nothing of {wanted.shown} after {reached} for "
                f"{WAIT_S:.0f} s. Nothing was loaded: run again."
            )
        for each in some:
            error = each.error()
            if error is None:
                if each.offset() >= wanted.end:
                    return
                reached = each.offset() + 1
                yield each
            elif error.code() == client.KafkaError._PARTITION_EOF:
                reached = max(reached, each.offset())
            elif error.code() == client.KafkaError._AUTO_OFFSET_RESET:
                raise InvalidInputError(
                    f"Kafka has deleted messages of {wanted.shown} while they were read: nothing was loaded. Run again."
                )
            elif error.fatal() or _is_denied(error):
                raise _failure(error, settings)


# Tasks ------------------------------------------------------------------------------------------------------------


def prepare_range(
    location: CatalogLocation,
    stream: Stream,
    intake: Intake,
    known: int,
    view: PositionView | None,
    settings: Mapping[str, str],
    wanted: OffsetRange,
) -> Json | None:
    """Read a range and write its rows as files of the log. None: the state of the table is needed."""
    messages = read_range(settings, wanted, frozenset(named_columns(stream.definition)))
    return prepare_chunk(location.lake(), stream, intake, known, view, messages)


FRAME_ROWS = 100_000
"""A task that gets messages from Spark's own source holds so many at once."""


def prepare_frame(
    location: CatalogLocation,
    stream: Stream,
    intake: Intake,
    known: int,
    view: PositionView | None,
    reader: pa.RecordBatchReader,
) -> list[Json]:
    """Prepare messages that Spark's own source read; the rows of a task are those of one partition, in order.

    Each answer says where its messages begin, since the parts of a frame come in no order.
    """
    lake, made = location.lake(), list[Json]()
    for table in _tables(reader):
        first = [table.column(name)[0].as_py() for name in ("topic", "partition", "offset")]
        messages = messages_of(table)
        found = guarded(prepare_chunk, lake, stream, intake, known, view, messages)
        made.append({"first": first, "prepared": found})
    return made


def _tables(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in reader:
        if batch.num_rows:
            waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= FRAME_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def messages_of(table: pa.Table) -> Messages:
    """Return the messages of a frame of Spark's Kafka source. All must be of one partition."""
    names = table.schema.names
    pair = table.column("topic")[0].as_py(), table.column("partition")[0].as_py()
    stamps: Any = table.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    headers = table.column("headers").to_pylist() if "headers" in names else [None] * table.num_rows
    return Messages(
        *pair,
        table.column("value").to_pylist(),
        list[Any](table.column("offset").to_pylist()),
        stamps.to_pylist(),
        table.column("key").to_pylist(),
        [None if each is None else [(one["key"], one["value"]) for one in each] for each in headers],
    )
