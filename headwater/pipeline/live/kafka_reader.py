"""Reader of Kafka topics: plans ranges of offsets, which tasks read and prepare inside the commit of their offsets.

Rows of a key keep the order of their partition, since the ranges of a partition land in order. Between partitions
there is no order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError
from headwater.pipeline.executors import ingest_parts
from headwater.pipeline.facts import changed_rows, infer_columns
from headwater.pipeline.live.live_source import LiveBatch, LiveContext
from headwater.pipeline.live.live_tables import RowsPart, fitted_table
from headwater.pipeline.live.source_specs import CONTINUE, KafkaSpec
from headwater.references import follow
from headwater.streams.definition import Definition
from headwater.streams.log.landing import LandingReport
from headwater.streams.reading.position_views import PositionView
from headwater.streams.sources.files import message_rows
from headwater.streams.sources.formats import DEBEZIUM, OP
from headwater.streams.sources.intake import Intake
from headwater.streams.sources.kafka import (
    Broker,
    OffsetRange,
    Offsets,
    after,
    begun,
    check_partitions,
    checked_offsets,
    next_ranges,
    read_range,
)
from headwater.streams.sources.message_values import OFFSET
from headwater.streams.stream_lookup import Stream
from headwater.wording import many
from headwater.work import HERE, Json, Runner, Task

if TYPE_CHECKING:
    from headwater.pipeline.grammar import TableSpec

MODULE = "headwater.streams.sources.kafka"
"""The module whose functions tasks run."""
MOST = 100_000
"""The most messages of one task: it holds them in memory."""
SAMPLE = 1000
"""The number of messages from which columns are inferred, for a table that the file does not describe."""
PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


class KafkaReader:
    """The topics of a source from the offsets in the catalog on."""

    def __init__(self, spec: KafkaSpec, context: LiveContext) -> None:
        self._spec, self._context = spec, context
        self._settings = spec.connected()
        self._broker = Broker(self._settings, spec.topics)
        self._goal = self._broker.limits()
        self._known: Offsets | None = context.state.offset
        self._offsets = begun(self._known or {}, self._goal, spec.start)
        self._has_source = has_spark_source(context.runner.spark)

    @property
    def is_caught_up(self) -> bool:
        ends = ((topic, str(part), high) for topic, parts in self._goal.items() for part, (_, high) in parts.items())
        return self._known is not None and all(
            self._offsets.get(topic, {}).get(part, 0) >= high for topic, part, high in ends
        )

    def take(self, wait_s: float) -> LiveBatch | None:
        """Return the messages that came since; None: there are none."""
        limits = self._broker.limits()
        for topic in self._spec.topics:
            if OFFSET in self._context.spec_of(self._table(topic)).sequence:
                check_partitions(self._known or {}, limits, topic)
        offsets = begun(self._offsets, limits, self._spec.start)
        offsets, lost = checked_offsets(offsets, limits, self._spec.on_lost == CONTINUE)
        for each in lost:
            self._context.say(f"warning: {self._context.source}: lost {each}")
        ranges = next_ranges(offsets, limits, MOST, 2 * self._context.runner.cores)
        self._offsets = offsets
        known = self._known or {}
        if not ranges and all(known.get(topic) == each for topic, each in offsets.items()):
            return None
        parts = [self._part(topic, [each for each in ranges if each.topic == topic]) for topic in self._spec.topics]
        return LiveBatch([part for part in parts if part.ranges], {**known, **after(offsets, ranges)})

    def acknowledge(self, batch: LiveBatch) -> None:
        """Go on after a batch. Kafka itself is told nothing."""
        self._known = self._offsets = batch.offset

    def close(self) -> None:
        """Nothing is open: consumers belong to the processes that read."""

    def _table(self, topic: str) -> str:
        return self._context.table(topic.replace(".", "_"))

    def _part(self, topic: str, ranges: Sequence[OffsetRange]) -> KafkaPart:
        table = self._table(topic)
        spec = self._context.spec_of(table)
        is_new = not (self._context.catalog.is_there and table in self._context.catalog)
        columns = self._inferred(table, spec, ranges) if ranges and is_new and spec.schema is None else {}
        from_spark = self._has_source and (not self._spec.settings or bool(self._spec.spark))
        return KafkaPart(
            table, tuple(ranges), self._spec, self._settings, spec, self._context.runner, columns, from_spark
        )

    def _inferred(self, table: str, spec: TableSpec, ranges: Sequence[OffsetRange]) -> dict[str, Any]:
        """Return the columns that the first messages have."""
        for each in ranges:
            few = OffsetRange(each.topic, each.partition, each.start, min(each.end, each.start + SAMPLE))
            messages = read_range(self._settings, few, frozenset())
            is_changes = self._spec.format == DEBEZIUM
            rows = changed_rows(messages.text) if is_changes else message_rows(messages, Definition(()))[0]
            if rows:
                leave = self._spec.options.get("op_column", "op") if self._spec.format == OP else None
                found = infer_columns(rows, spec.keys, spec.sequence)
                return {one.name: one.type for one in found if one.name != leave}
        raise InvalidInputError(
            f'No message of {ranges[0].topic} tells the columns of {table}: write the schema of [table."{table}"].'
        )


@dataclass(frozen=True)
class KafkaPart:
    """Ranges of one topic, which tasks read when they land.

    `columns`: of a table that is created and that the file does not describe.
    `from_spark`: Spark's own source reads them.
    """

    table: str
    ranges: tuple[OffsetRange, ...]
    kafka: KafkaSpec
    settings: Mapping[str, str] = field(repr=False)
    spec: TableSpec
    runner: Runner
    columns: Mapping[str, Any] = field(default_factory=dict)
    from_spark: bool = False
    is_whole: bool = False

    @property
    def origin(self) -> str:
        return self.ranges[0].topic

    def land(self, catalog: Catalog, source: str) -> LandingReport:
        """Land the messages inside the open transaction of `catalog`."""
        stream = fitted_table(catalog, RowsPart(self.table, (), columns=self.columns, spec=self.spec))
        intake = Intake((), self.kafka.format, source, False, tuple(self.spec.checks), self.kafka.options)
        at, count = stream.namespace.location(), sum(map(len, self.ranges))
        runner = HERE if self.runner.in_driver(count) else self.runner
        what = f"take {many(count, 'message')} into {self.table}"

        def prepare(
            ranges: Sequence[OffsetRange], opened: Stream, intake: Intake, known: int, view: PositionView | None
        ) -> list[Json | None]:
            about = (at, opened, intake, known, view)
            if self.from_spark and runner is not HERE:
                return _in_order(runner.map(self._frame(ranges), Task(f"{MODULE}:prepare_frame", about)))
            tasks = [Task(f"{MODULE}:prepare_range", (*about, self.settings, each)) for each in ranges]
            return runner.run(tasks, what)

        return ingest_parts(stream, intake, self.ranges, prepare)

    def _frame(self, ranges: Sequence[OffsetRange]) -> Any:
        """Return the messages of ranges as Spark's own source reads them."""
        first, last = dict[str, int](), dict[str, int]()
        for each in ranges:
            first.setdefault(str(each.partition), each.start)
            last[str(each.partition)] = each.end
        topic = ranges[0].topic
        how = {
            "kafka.bootstrap.servers": self.kafka.servers,
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({topic: [int(partition) for partition in first]}),
            "startingOffsets": json.dumps({topic: first}),
            "endingOffsets": json.dumps({topic: last}),
            "includeHeaders": "true",
            "minPartitions": str(max(len(ranges), self.runner.cores)),
            **{name: follow(text, f"kafka {name}") for name, text in self.kafka.spark.items()},
        }
        return self.runner.spark.read.format("kafka").options(**how).load()


def _in_order(answers: Sequence[Any]) -> list[Json | None]:
    """Return what tasks prepared in the order of the offsets."""
    return [each["prepared"] for each in sorted(answers, key=lambda each: each["first"])]


def has_spark_source(spark: Any) -> bool:
    """Return True if a session has Spark's own source of Kafka. One of Spark Connect cannot be asked."""
    virtual_machine = getattr(spark, "_jvm", None)
    if virtual_machine is None:
        return False
    try:
        loader = virtual_machine.java.lang.Thread.currentThread().getContextClassLoader()
        virtual_machine.java.lang.Class.forName(PROVIDER, False, loader)
    except Exception:  # py4j raises an error of its own for a class that is not there
        return False
    return True
