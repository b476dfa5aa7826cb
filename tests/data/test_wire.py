"""Arrow bodies: what is refused before a table is touched."""

from __future__ import annotations

import contextlib
import io
import pathlib
import random
import struct

import pyarrow as pa
import pytest
from lance_namespace import InsertIntoTableRequest, MergeInsertIntoTableRequest

from headwater.decoding import arrow, bounds
from headwater.errors import InvalidInputError
from headwater.namespace import data
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, body, rows, snapshot


def refused(hostile: bytes) -> str:
    with pytest.raises(InvalidInputError) as caught:
        arrow.read_stream(hostile).read_all()
    return str(caught.value)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_whole_body_is_read_as_it_was_written(compression: str | None) -> None:
    sent = rows()
    assert arrow.read_stream(body(sent, compression=compression)).read_all() == sent


def test_a_body_without_batches_is_read() -> None:
    assert arrow.read_stream(body(rows(count=0))).read_all().schema == rows().schema


def test_a_body_with_dictionaries_is_read() -> None:
    sent = pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode(), "x": [1, 2, 3]})
    assert arrow.read_stream(body(sent, compression="zstd")).read_all() == sent


@pytest.mark.parametrize("hostile", [b"", b"garbage", b"\0" * 100, b"\xff" * 100, b"ARROW1\0\0", b"{}", b"PK\3\4"])
def test_a_body_that_is_no_arrow_stream_is_refused(hostile: bytes) -> None:
    refused(hostile)


def test_an_arrow_file_is_refused_with_the_advice_to_send_a_stream() -> None:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, rows().schema) as writer:
        writer.write_table(rows())
    assert "send an Arrow IPC stream" in refused(sink.getvalue())


def test_a_body_cut_anywhere_is_refused() -> None:
    whole = body(pa.concat_tables([rows(0, 5), rows(5, 5)]))
    for end in range(0, len(whole) - 1, 7):
        refused(whole[:end])


def test_a_body_cut_between_two_batches_is_refused() -> None:
    one, two = body(rows(0, 5)), body(pa.concat_tables([rows(0, 5), rows(5, 5)]))
    cut = two[: len(one) - 8]
    assert pa.ipc.open_stream(cut).read_all().num_rows == 5, "pyarrow itself sees nothing wrong"
    assert "cut short" in refused(cut)


def test_damaged_bodies_are_refused_or_read_but_never_crash() -> None:
    chance = random.Random(7)
    whole = body(rows(count=40), compression="zstd")
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with contextlib.suppress(InvalidInputError):
            arrow.read_stream(bytes(damaged)).read_all()


def test_a_decompression_bomb_is_refused_without_being_unpacked() -> None:
    bomb = bytearray(body(pa.table({"x": pa.array([0] * 4096, pa.int64())}), compression="zstd"))
    length = struct.pack("<q", 4096 * 8)
    at = bytes(bomb).index(length, 200)
    bomb[at : at + 8] = struct.pack("<q", 1 << 40)
    before = pa.total_allocated_bytes()
    assert "unpacks to" in refused(bytes(bomb))
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_real_bomb_that_unpacks_to_much_more_than_was_sent_is_refused() -> None:
    bomb = body(pa.table({"x": pa.array([0] * 500_000, pa.int64())}), compression="zstd")
    assert len(bomb) < 10_000
    with pytest.raises(InvalidInputError, match="unpacks to"):
        arrow.read_stream(bomb, bounds=bounds.Bounds(1 << 20))


def test_a_batch_that_claims_rows_without_data_is_refused() -> None:
    assert "claims" in refused(body(pa.table({"n": pa.Array.from_buffers(pa.null(), 1 << 30, [None])})))


def test_absurdly_deep_types_are_refused() -> None:
    kind: pa.DataType = pa.int8()
    for _ in range(bounds.MAX_DEPTH + 1):
        kind = pa.list_(kind)
    refused(body(pa.schema([("x", kind)]).empty_table()))


def test_absurdly_wide_schemas_are_refused() -> None:
    wide = pa.schema([(f"c{number}", pa.int8()) for number in range(bounds.MAX_FIELDS + 1)])
    assert "more than" in refused(body(wide.empty_table()))


@pytest.mark.parametrize(
    "schema",
    [pa.schema([]), pa.schema([("a", pa.int8()), ("a", pa.int8())]), pa.schema([("", pa.int8())])],
    ids=["no columns", "one name twice", "an empty name"],
)
def test_a_schema_that_cannot_be_a_tables_is_refused(schema: pa.Schema) -> None:
    refused(body(schema.empty_table()))


def test_offsets_that_point_outside_their_data_are_refused() -> None:
    sound = pa.array(["ab", "cd"])
    offsets = pa.py_buffer(struct.pack("<iii", 0, 1 << 20, 4))
    crooked = pa.Array.from_buffers(pa.string(), 2, [None, offsets, sound.buffers()[2]])
    batch = pa.RecordBatch.from_arrays([crooked], ["x"])
    refused(_raw(batch))


def test_text_that_is_not_utf8_is_refused() -> None:
    crooked = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    refused(_raw(pa.RecordBatch.from_arrays([crooked], ["x"])))


def _raw(batch: pa.RecordBatch) -> bytes:
    """A batch put into a stream as it is; the writer of pyarrow copies buffers without looking into them."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def test_a_refused_body_changes_nothing_and_leaves_no_file(table: TableHandle) -> None:
    files = sorted(path for path in _files(table.uri))
    before = snapshot(table.uri)
    whole = body(rows(900, 50))
    for hostile in (b"junk", whole[: len(whole) // 2], whole[:-8]):
        with pytest.raises(InvalidInputError):
            data.insert_into_table(table, InsertIntoTableRequest(id=ID), hostile)
        with pytest.raises(InvalidInputError):
            data.merge_insert_into_table(
                table, MergeInsertIntoTableRequest(id=ID, on=["id"], when_not_matched_insert_all=True), hostile
            )
    assert snapshot(table.uri) == before
    assert sorted(_files(table.uri)) == files


def _files(root: str) -> list[str]:

    return [str(path) for path in pathlib.Path(root).rglob("*") if path.is_file()]
