"""Kafka as a live source: offsets in the commit of the rows, poisoned messages in the quarantine, lost ones told."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("confluent_kafka", reason="pip install 'headwater[kafka]'")

from confluent_kafka import KafkaError

from headwater import Catalog
from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.pipeline import parse_pipeline, read_pipeline, run_pipeline, watch_pipeline
from headwater.pipeline.live import kafka_reader
from headwater.pipeline.live.live_source import live_state
from headwater.streams.sources import kafka
from headwater.streams.sources.kafka import after, begun, check_partitions, checked_offsets, next_ranges
from tests.pipeline.mock_kafka import MockKafka

HEAD = '[pipeline]\nname = "k"\ncatalog = "./lake"\nengine = "embedded"\n'
KEYED = '[table."raw.orders"]\nkeys = ["id"]\n'


@pytest.fixture(scope="module")
def cluster() -> MockKafka:
    return MockKafka()


class Shop:
    """A pipeline of one topic of its own."""

    def __init__(self, folder: Path, cluster: MockKafka, tables: str = KEYED, into: str = "raw.orders", **how: Any):
        self.cluster, self.topic = cluster, f"shop.{uuid.uuid4().hex}.orders"
        self.folder = folder
        self.write(tables, into, **how)

    def write(self, tables: str = KEYED, into: str = "raw.orders", more: str = "", **how: Any) -> None:
        given = {"servers": self.cluster.servers, "topics": self.topic, **how}
        told = ", ".join(f"{name} = {value!r}".replace("'", '"') for name, value in given.items())
        source = f'[[source]]\nname = "orders"\nkafka = {{ {told} }}\ninto = "{into}"\n'
        (self.folder / "pipeline.toml").write_text(HEAD + source + tables + more)

    def send(self, *messages: Any, partition: int = 0, **more: Any) -> None:
        self.cluster.send(self.topic, messages, partition, **more)

    @property
    def pipeline(self) -> Any:
        return read_pipeline(self.folder / "pipeline.toml")

    def run(self) -> Any:
        return run_pipeline(self.pipeline)

    @property
    def lake(self) -> Catalog:
        return Catalog(str(self.folder / "lake"))

    def rows(self, *columns: str, table: str = "raw.orders") -> list[Any]:
        found = self.lake[table].to_arrow(columns=list(columns)).to_pylist()
        return sorted(tuple(row.values()) for row in found)


@pytest.fixture
def shop(tmp_path: Path, cluster: MockKafka) -> Shop:
    return Shop(tmp_path, cluster)


def test_messages_of_all_partitions_are_taken_once_and_published(shop: Shop) -> None:
    for partition in range(3):
        shop.send(*({"id": 3 * n + partition, "v": "a"} for n in range(4)), partition=partition)
    shop.run()
    shop.send({"id": 1, "v": "b"}, partition=1)
    shop.run()
    shop.run()
    assert shop.rows("id", "v") == [(id, "b" if id == 1 else "a") for id in range(12)]
    assert shop.lake["raw.orders"].serving.count() == 12
    state: Any = live_state(shop.lake, "orders").offset
    offsets = state[shop.topic]
    assert {partition: offsets[partition] for partition in "012"} == {"0": 4, "1": 5, "2": 4}
    assert live_state(shop.lake, "orders").commits == 2


def test_a_table_that_names_them_gets_key_headers_and_place_of_a_message(tmp_path: Path, cluster: MockKafka) -> None:
    columns = "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _key STRING, _headers STRING"
    schema = f'[table."raw.orders"]\nschema = "id BIGINT, {columns}"\n'
    shop = Shop(tmp_path, cluster, schema)
    shop.send({"id": 7}, partition=2, key=b"seven", headers=[("trace", b"x")], timestamp=1_700_000_000_123)
    shop.run()
    (row,) = shop.lake["raw.orders"].to_arrow().to_pylist()
    assert row.pop("_timestamp").timestamp() == 1_700_000_000.123
    assert row == {
        "id": 7,
        "_topic": shop.topic,
        "_partition": 2,
        "_offset": 0,
        "_key": "seven",
        "_headers": '{"trace": "x"}',
    }


def test_poisoned_messages_go_to_the_quarantine_with_their_place(shop: Shop) -> None:
    shop.send({"id": 1}, b"\xff\xfe", b"{no", None, [1], {"id": None}, {"id": 2}, partition=1)
    shop.run()
    assert shop.rows("id") == [(1,), (2,)]
    bad = shop.rows("source", "reason", table="raw.orders__quarantine")
    assert bad == [
        ("orders", "null_key"),
        (f"{shop.topic}[1]@1", "parse"),
        (f"{shop.topic}[1]@2", "parse"),
        (f"{shop.topic}[1]@4", "parse"),
    ]
    shop.send({"id": 3, "a.b": 1}, {"id": 3, "ID": 1}, {"id": 3, "new": [1, "x"]}, {"id": 4})
    shop.run()
    assert shop.rows("id") == [(1,), (2,), (4,)]
    assert shop.rows("reason", table="raw.orders__quarantine").count(("unknown_column",)) == 3


def change(op: str, lsn: int, **row: Any) -> dict[str, Any]:
    return {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row, "source": {"lsn": lsn}}


def test_debezium_messages_are_ordered_by_the_log_of_their_database(tmp_path: Path, cluster: MockKafka) -> None:
    tables = '[table."raw.orders"]\nkeys = ["id"]\nsequence_by = ["_lsn"]\n'
    shop = Shop(tmp_path, cluster, tables, format="debezium")
    shop.send(change("c", 10, id=1, v="a"), change("c", 11, id=2, v="a"), partition=0)
    shop.send(change("u", 12, id=1, v="b"), None, b"broken", {"op": "?"}, partition=1)
    shop.run()
    shop.send(change("d", 13, id=2, v="a"), change("u", 9, id=1, v="too old"), partition=0)
    shop.run()
    assert shop.rows("id", "v", "_lsn") == [(1, "b", 12)]
    places = shop.rows("source", table="raw.orders__quarantine")
    assert places == [(f"{shop.topic}[1]@2",), (f"{shop.topic}[1]@3",)]


def test_debezium_rows_get_the_columns_of_their_message(tmp_path: Path, cluster: MockKafka) -> None:
    schema = 'schema = "id BIGINT, _offset BIGINT, _key STRING"'
    tables = f'[table."raw.orders"]\n{schema}\nkeys = ["id"]\nsequence_by = ["_offset"]\n'
    shop = Shop(tmp_path, cluster, tables, format="debezium")
    shop.send({"op": "c", "after": {"id": 1}}, {"op": "u", "before": {"id": 1}, "after": {"id": 2}}, key=b"k")
    shop.run()
    assert shop.rows("id", "_offset", "_key") == [(2, 1, "k")]


def test_topics_go_into_tables_by_a_pattern(tmp_path: Path, cluster: MockKafka) -> None:
    names = [f"{uuid.uuid4().hex}.{name}" for name in "ab"]
    shop = Shop(tmp_path, cluster, "", "raw.{table}", topics=names)
    for name in names:
        cluster.send(name, [{"id": 1, "of": name}])
    shop.run()
    tables = [f"raw.{name.replace('.', '_')}" for name in names]
    assert [shop.rows("of", table=table) for table in tables] == [[(names[0],)], [(names[1],)]]
    assert len([entry for entry in shop.lake.log(after=0) if entry.message.startswith("take")]) == 1


def test_a_start_at_the_end_is_kept_so_that_nothing_after_it_is_missed(tmp_path: Path, cluster: MockKafka) -> None:
    shop = Shop(tmp_path, cluster, start="latest")
    shop.send({"id": 1})
    shop.run()
    shop.send({"id": 2})
    shop.run()
    assert shop.rows("id") == [(2,)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["before the commit", "after the commit"])
def test_a_run_that_is_killed_takes_every_message_once(shop: Shop, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    shop.write(tables="")  # without keys a repeat would show
    shop.send({"id": 1}, {"id": 2})

    def dies(*args: object) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        if step == "before the commit":
            patch.setattr(kafka_reader, "ingest_parts", dies)
        else:
            patch.setattr(kafka_reader.KafkaReader, "acknowledge", dies)
        with pytest.raises(Killed):
            shop.run()
    shop.send({"id": 3})
    shop.run()
    assert shop.rows("id") == [(1,), (2,), (3,)]


def test_a_topic_that_is_not_there_fails_alone_and_the_others_go_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "WAIT_S", 0.5)
    dead = '[[source]]\nname = "dead"\nkafka = { servers = "127.0.0.1:9", topics = "t" }\ninto = "raw.dead"\n'
    shop.write(more=dead)
    shop.send({"id": 1})
    with pytest.raises(ServiceUnavailableError, match=r"Kafka at 127.0.0.1:9"):
        shop.run()
    assert shop.rows("id") == [(1,)]


class RefusingConsumer:
    """A consumer that the broker answers with the same error each time."""

    def __init__(self, code: int) -> None:
        self.code = code

    def assign(self, parts: object) -> None: ...

    def unassign(self) -> None: ...

    def consume(self, count: int, wait_s: float) -> list[Any]:
        return [self]

    def error(self) -> Any:
        return KafkaError(self.code)


def test_a_broker_that_refuses_a_reader_while_it_reads_is_an_error_and_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, wanted = {"bootstrap.servers": "127.0.0.1:9"}, kafka.OffsetRange("t", 0, 0, 1)
    consumer = RefusingConsumer(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    monkeypatch.setattr(kafka, "_consumer", lambda settings: consumer)
    with pytest.raises(InvalidInputError, match="authorization"):
        kafka.read_range(settings, wanted, frozenset())
    consumer.code = KafkaError._ALL_BROKERS_DOWN
    with pytest.raises(ServiceUnavailableError, match="gave nothing"):
        kafka.read_range(settings, wanted, frozenset())


def test_a_resident_run_takes_messages_as_they_come(shop: Shop) -> None:
    shop.send({"id": 1})
    stop = threading.Event()
    for number, _ in enumerate(watch_pipeline(shop.pipeline, stop, every=0.01), 2):
        if number > 3:
            stop.set()
        else:
            shop.send({"id": number})
    assert shop.rows("id") == [(1,), (2,), (3,)]


def test_a_topic_that_was_cut_behind_the_offset_is_an_error_that_counts_what_was_lost() -> None:
    offsets, limits = {"t": {"0": 5, "1": 9}}, {"t": {0: (12, 20), 1: (0, 9)}}
    with pytest.raises(InvalidInputError, match=r"7 offsets of t\[0\] \(5 to 11\).*--full-refresh") as raised:
        checked_offsets(offsets, limits, False)
    assert "t[1]" not in str(raised.value)
    assert checked_offsets(offsets, limits, True)[0] == {"t": {"0": 12, "1": 9}}
    with pytest.raises(InvalidInputError, match=r"t\[1\] ends at 3 and was read up to 9: the topic was made anew"):
        checked_offsets({"t": {"1": 9}}, {"t": {1: (0, 3)}}, False)


def test_a_topic_that_was_made_anew_is_read_from_its_beginning_in_all_partitions() -> None:
    """A partition that was gone went unnoticed, and the others went on at offsets of the old topic."""
    known, fewer = {"t": {"0": 5, "1": 5}}, {"t": {0: (0, 8)}}
    with pytest.raises(InvalidInputError, match=r"t\[1\] is gone: the topic was made anew"):
        checked_offsets(begun(known, fewer, "latest"), fewer, False)
    assert checked_offsets(begun(known, fewer, "latest"), fewer, True)[0] == {"t": {"0": 0}}
    shorter = {"t": {0: (0, 8), 1: (0, 2), 2: (0, 1)}}
    assert checked_offsets(begun(known, shorter, "latest"), shorter, True)[0] == {"t": {"0": 0, "1": 0, "2": 0}}
    with pytest.raises(InvalidInputError, match="ordered by _offset, which begins anew too"):
        check_partitions(known, {"t": {0: (0, 8), 1: (0, 2)}}, "t")  # its rows would all be late


def test_a_partition_that_its_topic_got_later_begins_at_its_first_message() -> None:
    limits = {"t": {0: (0, 7), 1: (0, 4)}}
    assert begun({}, limits, "latest") == {"t": {"0": 7, "1": 4}}
    assert begun({"t": {"0": 7}}, limits, "latest") == {"t": {"0": 7, "1": 0}}


def test_a_topic_that_is_ordered_by_offsets_may_get_no_more_partitions() -> None:
    check_partitions({"t": {"0": 7}}, {"t": {0: (0, 9)}}, "t")
    check_partitions({}, {"t": {0: (0, 9), 1: (0, 9)}}, "t")
    with pytest.raises(InvalidInputError, match=r"t got 1 more partitions.*--full-refresh"):
        check_partitions({"t": {"0": 7}}, {"t": {0: (0, 9), 1: (0, 9)}}, "t")


Lengths = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=5)


@given(Lengths, st.integers(1, 300), st.integers(1, 9))
def test_ranges_cover_each_partition_in_order_without_a_gap(lengths: Any, most: int, tasks: int) -> None:
    limits = {"t": {number: (0, start + more) for number, (start, more) in enumerate(lengths)}}
    offsets = {"t": {str(number): start for number, (start, _) in enumerate(lengths)}}
    seen = {number: start for number, (start, _) in enumerate(lengths)}
    while ranges := next_ranges(offsets, limits, most, tasks):
        for each in ranges:
            assert seen[each.partition] == each.start
            assert 0 < len(each) <= most
            seen[each.partition] = each.end
        offsets = after(offsets, ranges)
    assert all(seen[number] == start + more for number, (start, more) in enumerate(lengths))


REFUSED = {
    'servers = "h:1"': "topics",
    'servers = "h:1", topics = ["a", "b"]': r"\{table\} in into",
    'servers = "h:1", topics = "t", format = "snapshot"': "not a snapshot",
    'servers = "h:1", topics = "t", start = "middle"': "start is 'earliest' or 'latest'",
    'servers = "h:1", topics = "t", settings = { "group.id" = "g" }': "the source itself sets",
    'servers = "h:1", topics = "t", settings = { "sasl.password" = "plain" }': "is a secret",
    'servers = "h:1", topics = "t", offsett = 1': "offsett",
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_is_wrong_in_the_file_is_said(told: str) -> None:
    text = f'{HEAD}[[source]]\nname = "s"\nkafka = {{ {told} }}\ninto = "raw.t"\n'
    with pytest.raises(InvalidInputError, match=REFUSED[told]):
        parse_pipeline(text, Path())
