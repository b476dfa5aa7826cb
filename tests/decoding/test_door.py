"""Hostile data of each format is refused before it is decoded, or before a row of it is used."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.decoding import arrow
from headwater.decoding.arrow import read_file, read_stream
from headwater.decoding.bounds import MAX_FIELDS, REQUEST, Bounds, check_schema
from headwater.decoding.files import FORMATS, read_bytes, read_csv, read_json_lines
from headwater.decoding.parquet import ParquetRows
from headwater.errors import InvalidInputError
from headwater.rest.server import RunningServer, start_in_thread
from headwater.streams.rows.input_rows import SENT_FILES, as_input_rows
from tests.decoding.seeds import ROWS, arrays, file, parquet, plain, stream, table

SMALL = Bounds(1 << 20)
FIELDS: list[Any] = [("id", pa.int64()), ("name", pa.string())]
SCHEMA = pa.schema(FIELDS)


Form = Callable[[pa.Table], bytes]


def changed(form: Form, values: Any, old: bytes, new: bytes) -> bytes:
    """Three rows, of whose bytes some are others."""
    sound = form(pa.table({"id": [1, 2, 3], "name": values}))
    assert sound.count(old) == 1
    return sound.replace(old, new)


def view(offset: int) -> bytes:
    return struct.pack("<i4sii", 20, b"xxxx", 0, offset)


def offsets(*numbers: int) -> bytes:
    return struct.pack("<iiii", *numbers)


TEXTS = pa.array(["ab", "cd", "ef"])
LISTS = pa.array([[1, 2], [3, 4], [5, 6]])
OUTSIDE: dict[str, Callable[[Form], bytes]] = {
    "views": lambda form: changed(form, pa.array(["x" * 20] * 3, pa.string_view()), view(20), view(3000)),
    "lists": lambda form: changed(form, LISTS, offsets(0, 2, 4, 6), offsets(0, 2, 3000, 6)),
    "texts": lambda form: changed(form, TEXTS, offsets(0, 2, 4, 6), offsets(0, 2, 3000, 6)),
    "the last text": lambda form: changed(form, TEXTS, offsets(0, 2, 4, 6), offsets(0, 2, 4, 3000)),
    "texts before": lambda form: changed(form, TEXTS, offsets(0, 2, 4, 6), offsets(-3000, 2, 4, 6)),
}
"""Rows with values that lie outside of their own bytes. Before, the views were bytes of the server's heap, and
the lists ended the server."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    namespace = MetastoreNamespace(root=str(tmp_path_factory.mktemp("lake") / "root"))
    catalog = Catalog(namespace)
    catalog.create_stream_table("a.t", SCHEMA, keys="id", properties={"contract": "freeze"})
    lists = pa.schema([("id", pa.int64()), ("name", pa.list_(pa.int64()))])
    catalog.create_stream_table("a.lists", lists, keys="id")
    catalog.create_stream_table("a.log", pa.schema([("n", pa.int64())]))
    discards = {"contract": "discard"}
    catalog.create_stream_table("a.discarding", pa.schema([("n", pa.int64())]), properties=discards)
    running = start_in_thread(namespace)
    yield running
    running.stop()


def sent_file(name: str, content: bytes) -> bytes:
    """The body of an ingest that sends one file."""
    return stream(pa.table([pa.array([name]), pa.array([content], pa.large_binary()), pa.array(["d"])], SENT_FILES))


@pytest.mark.parametrize("form", [stream, file])
@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_file_in_a_body_returns_none_of_the_servers_memory(server: RunningServer, kind: str, form: Form) -> None:
    """Before, an Arrow file sent to `/stream/ingest` was not validated: its rows were the server's heap, or it died."""
    name = "lists" if kind == "lists" else "t"
    with httpx.Client(base_url=server.url) as http:
        for query in ("?format=rows", "?format=snapshot"):
            sent = sent_file("x.arrow", OUTSIDE[kind](form))
            answer = http.post(f"/headwater/v1/table/a${name}/stream/ingest{query}", content=sent)
            assert (answer.status_code, answer.json().get("code")) == (400, 13), answer.text
    table = Catalog(server.url)[f"a.{name}"]
    assert (table.count(), len(table.quarantine())) == (0, 0)


def test_a_compressed_file_in_a_body_is_read_as_one_on_disk(server: RunningServer, tmp_path: Path) -> None:
    name = tmp_path / "rows.v2.json.gz"
    name.write_bytes(gzip.compress(b'{"id": 1, "name": "a"}\n'))
    table = Catalog(server.url).create_stream_table("a.packed", SCHEMA, keys="id")
    assert table.ingest(str(name)).rows == 1
    assert table.to_arrow().to_pylist() == [{"id": 1, "name": "a"}]


def packed(**columns: Any) -> bytes:
    """A small body of many rows."""
    return stream(pa.table({name: pa.array([0] * 50_000, kind) for name, kind in columns.items()}), "zstd")


def columns_of(form: Form) -> bytes:
    """A file of many rows with a column that the table has not."""
    return form(pa.table({"id": range(50_000), "op": ["u"] * 50_000, "other": range(50_000)}))


def statement(rows: bytes) -> bytes:
    return stream(pa.table({"kind": ["upserted"], "rows": pa.array([rows], pa.binary())}))


UNFIT: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "append": ("log/stream/append", lambda: packed(n=pa.int64(), other=pa.int64()), "no column 'other'"),
    "upsert": ("t/stream/upsert", lambda: packed(id=pa.int64(), other=pa.int64()), "no column 'other'"),
    "ingest": ("t/stream/ingest?format=rows", lambda: packed(id=pa.int64(), other=pa.int64()), "no column 'other'"),
    "ingest of a type": ("t/stream/ingest?format=rows", lambda: packed(id=pa.date64()), "cannot be cast"),
    "ingest of changes": (
        "t/stream/ingest?format=op",
        lambda: packed(id=pa.int64(), op=pa.int64(), other=pa.int64()),
        "no column 'other'",
    ),
    "ingest of changes of a type": (
        "t/stream/ingest?format=op&options=%7B%22op_column%22%3A%22do%22%7D",
        lambda: packed(id=pa.date64(), do=pa.int64()),
        "cannot be cast",
    ),
    "ingest of a snapshot": (
        "t/stream/ingest?format=snapshot",
        lambda: packed(id=pa.int64(), other=pa.int64()),
        "no column 'other'",
    ),
    "ingest of a snapshot without keys": (
        "log/stream/ingest?format=snapshot",
        lambda: packed(n=pa.int64()),
        "has no keys",
    ),
    "ingest of messages without an order": (
        "t/stream/ingest?format=debezium",
        lambda: packed(value=pa.int64()),
        "need a sequence",
    ),
    "ingest of no messages": ("log/stream/ingest?format=debezium", lambda: packed(n=pa.int64()), "in a column 'value'"),
    "ingest of a Parquet file": (
        "t/stream/ingest?format=op",
        lambda: sent_file("x.parquet", columns_of(parquet)),
        "no column 'other'",
    ),
    "ingest of an Arrow file": (
        "t/stream/ingest?format=snapshot",
        lambda: sent_file("x.arrow", columns_of(file)),
        "no column 'op'",
    ),
    "ingest of a dataset": (
        "t/stream/ingest",
        lambda: sent_file("x.lance", b"anything"),
        "kind that is not known",
    ),
    "delete without keys": ("log/stream/delete", lambda: packed(n=pa.int64()), "append-only"),
    "delete of a type": ("t/stream/delete", lambda: packed(id=pa.date64()), "cannot be cast"),
    "apply": ("t/stream/apply", lambda: statement(packed(id=pa.int64(), other=pa.int64())), "no column 'other'"),
    "apply of no statement": ("t/stream/apply", lambda: packed(id=pa.int64()), "not a statement"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_body_that_does_not_fit_the_table_is_refused_before_it_is_decoded(
    server: RunningServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, body, told = UNFIT[name]
    rows, validated = list[int](), arrow._validated

    def counted(*args: Any) -> Iterator[pa.RecordBatch]:
        for batch in validated(*args):
            rows.append(batch.num_rows)
            yield batch

    decoded = ParquetRows._batches

    def counted_too(*args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in decoded(*args, **options):
            rows.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(arrow, "_validated", counted)
    monkeypatch.setattr(ParquetRows, "_batches", counted_too)
    with httpx.Client(base_url=server.url) as http:
        answer = http.post(f"/headwater/v1/table/a${route}", content=body())
        assert (answer.status_code, answer.json()["code"]) == (400, 13)
        assert told in answer.text
        assert max(rows, default=0) <= 1, "a statement or a file has one row, with the rows in it"
        assert http.post("/headwater/v1/table/a$log/stream/append", content=packed(n=pa.int64())).status_code == 200
    assert max(rows) > 1, "what fits is decoded, and counted"


@pytest.mark.parametrize("name", sorted(arrays()))
def test_columns_of_every_type_are_compared_with_the_table_before_a_row_is_there(
    server: RunningServer, name: str
) -> None:
    """Before, a union made the check itself fail, and the answer was an internal error."""
    sent = stream(pa.table({"n": pa.array(range(ROWS), pa.int64()), name: arrays()[name]}))
    with httpx.Client(base_url=server.url, timeout=60) as http:
        answer = http.post("/headwater/v1/table/a$discarding/stream/ingest", content=sent)
        assert answer.status_code == 200, answer.text
        answer = http.post("/headwater/v1/table/a$log/stream/append", content=sent)
        assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.text


ALL_IN_ONE = 2000


def aliased() -> bytes:
    """A body whose columns are all the same bytes of it: a header of 16 bytes makes a column of 4 KiB."""
    data = bytearray(stream(pa.table({f"c{n:04}": pa.array([n] * 512, pa.int64()) for n in range(ALL_IN_ONE)})))
    body = ALL_IN_ONE * 4096
    del data[len(data) - 8 - body + 4096 : -8]
    whole = data.rfind(struct.pack("<q", body), 0, len(data) - 4096)
    data[whole : whole + 8] = struct.pack("<q", 4096)
    buffers = data.find(struct.pack("<qqqq", 0, 0, 0, 4096))  # of each column, its validity and its values
    data[buffers : buffers + 32 * ALL_IN_ONE] = struct.pack("<qqqq", 0, 0, 0, 4096) * ALL_IN_ONE
    return bytes(data)


def decoded_size(body: bytes) -> int:
    """Return the decoded size of a stream by its own account, which a reader says before it decodes."""
    sizes: list[int] = []
    read_stream(body, sizes.append, Bounds(1 << 30, 16))
    return sizes[0]


def test_columns_that_are_the_same_bytes_are_counted_each() -> None:
    body = aliased()
    assert len(body) < 400_000
    assert pa.ipc.open_stream(body).read_all().nbytes == ALL_IN_ONE * 4096, "pyarrow itself sees nothing wrong"
    assert decoded_size(body) == ALL_IN_ONE * 4096
    with pytest.raises(InvalidInputError, match="unpacks to"):
        read_stream(body, bounds=Bounds(1 << 20, 16))


def growing() -> bytes:
    """A dictionary that grows by a value before each batch, which Arrow copies for each."""
    sink = io.BytesIO()
    schema = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])
    words = ["x" * 10_000]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for number in range(200):
            words.append(str(number))
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(words))
            writer.write_batch(pa.RecordBatch.from_arrays([column], schema=schema))
    return sink.getvalue()


def test_a_dictionary_that_grows_is_counted_for_each_batch_that_has_it() -> None:
    body = growing()
    assert len(body) < 150_000
    assert decoded_size(body) > 2_000_000
    with pytest.raises(InvalidInputError, match="unpacks to"):
        read_stream(body, bounds=Bounds(1 << 20, 1))


def test_a_footer_that_names_one_batch_many_times_reads_it_once() -> None:
    rows = plain()
    found = read_file(file(rows)).read_all()
    assert found.equals(rows)
    whole = file(pa.concat_tables([rows, rows]))
    one = pa.ipc.open_file(file(rows)).num_record_batches
    assert read_file(whole).read_all().num_rows == 2 * rows.num_rows
    assert one == 1


BOMBS: dict[str, Callable[[], bytes]] = {
    "one long text, many times": lambda: parquet(pa.table({"x": ["a" * 500_000] * 40}), compression="zstd"),
    "a long text in lists": lambda: parquet(pa.table({"x": [["a" * 500_000] * 40]}), compression="zstd"),
    "vectors that are NULL": lambda: parquet(pa.table({"x": pa.array([None] * 50, pa.list_(pa.float32(), 100_000))})),
    "a number, many times": lambda: parquet(pa.table({"x": pa.array([1] * 2_000_000, pa.int64())})),
    "prefixes": lambda: parquet(
        pa.table({"x": ["a" * 100_000 + str(number) for number in range(100)]}),
        use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY", compression="zstd",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_parquet_file_that_unpacks_to_far_more_than_was_sent_is_refused(name: str) -> None:
    data = BOMBS[name]()
    assert len(data) < 40_000
    bounds = Bounds(1 << 20, 16)
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidInputError, match=r"unpacks to|far more"):
        ParquetRows(data, bounds).table()
    assert pa.total_allocated_bytes() <= before


def test_parquet_pages_that_lie_about_their_size_are_measured_by_what_would_be_allocated() -> None:
    data = bytearray(
        parquet(pa.table({"x": pa.array(range(1000), pa.int64())}), compression="none", use_dictionary=False)
    )
    column = pq.ParquetFile(io.BytesIO(bytes(data))).metadata.row_group(0).column(0)
    at = column.data_page_offset
    assert data[at : at + 3] == bytes([0x15, 0x00, 0x15]), "a page header: type, then the size when unpacked"
    data[at + 3 : at + 5] = b"\xff\x7f"
    with pytest.raises(InvalidInputError):
        ParquetRows(bytes(data), SMALL).table()


def test_sound_parquet_is_read_as_pyarrow_reads_it(tmp_path: Path) -> None:
    words = pa.table({"s": [f"word {number % 9000} {'x' * 90}" for number in range(40_000)], "n": range(40_000)})
    nested = pa.table(
        {"l": [[f"{n % 7000:0100}"] for n in range(20_000)], "m": [[("k", "v" * (n % 50))] for n in range(20_000)]}
    )
    for rows, options in (
        (plain(), {}),
        (plain(), {"data_page_version": "2.0"}),
        (words, {"row_group_size": 7000}),
        (words, {"use_dictionary": False, "column_encoding": {"s": "DELTA_BYTE_ARRAY", "n": "DELTA_BINARY_PACKED"}}),
        (nested, {"compression": "zstd"}),
        (plain().slice(0, 0), {}),
    ):
        data = parquet(rows, **options)
        (tmp_path / "x.parquet").write_bytes(data)
        found = ParquetRows(str(tmp_path / "x.parquet"), REQUEST).table()
        assert found.equals(pq.read_table(io.BytesIO(data)))
        assert ParquetRows(data, Bounds(1 << 24)).table().equals(found)
        some = rows.schema.names[-2:]
        assert pa.Table.from_batches(ParquetRows(data).batches(some), found.select(some).schema).equals(
            found.select(some)
        )


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "zstd": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}


@pytest.mark.parametrize("codec", PACKERS)
def test_compressed_text_is_unpacked_to_a_bound(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(PACKERS[codec](b"a" * 5_000_000))
    assert read_bytes(str(path)) == b"a" * 5_000_000
    with pytest.raises(InvalidInputError, match="unpacks to"):
        read_bytes(str(path), SMALL)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InvalidInputError):
        read_bytes(str(path))
    path.write_bytes(PACKERS[codec](b""))
    assert read_bytes(str(path)) == b""
    path.write_bytes(b"BZh9,b\n1,2\n")
    assert read_bytes(str(path)) == b"BZh9,b\n1,2\n"


def test_lines_that_are_nested_too_deeply_for_a_parser_are_refused() -> None:
    for deep in ("[" * 100_000, '{"a":' * 100_000):
        for text in ('{"x":' + deep, '{"t":"]]]]}}}}","x":\n' + deep + "1"):
            with pytest.raises(InvalidInputError):
                read_json_lines(text.encode())


OBJECTS = ['{"a":1}', '\ufeff{"a":1}\n', '{"a":1} {"a":2}', '{"a":1}\r{"a":2}\r\n', '{\n"a":\nnull\n}']
OBJECTS += ['{"a":"}null{"}', '\n {"a":1}\n\n']
NO_OBJECTS = ["null", '{"a":1}\nnull', '{"a":1} null', '{"a":1}\rnull', 'null{"a":1}', "\ufeffnull", "null, 3"]
NO_OBJECTS += ['"{null}"', "[null]", "1", '{"a":1}{null', '{"a":1}}\nnull', '{"a":1}"{"\nnull', '{"a":1}\x00null']


def test_json_outside_of_objects_is_refused() -> None:
    """A null for a row ended the process of Arrow's parser if it came first, and was a row of NULLs elsewhere."""
    for text in OBJECTS:
        assert read_json_lines(text.encode()).column_names == ["a"]
    for text in NO_OBJECTS:
        with pytest.raises(InvalidInputError):
            read_json_lines(text.encode())
        with pytest.raises(InvalidInputError):
            read_json_lines(text.encode(), pa.schema({"a": pa.int64()}))


def test_arrow_does_not_begin_a_block_inside_a_value_of_several_lines() -> None:
    text = '{"a":["' + "x" * ((1 << 20) - 100) + '",\n' + "null," * 100 + "null]}"
    assert len(read_json_lines(text.encode())["a"][0]) == 102


def test_a_name_that_is_no_text_is_refused_at_every_depth() -> None:
    for line in (b'{"\xd9": 1}', b'{"a": {"\xd9": 1}}', b'{"a": [{"b": {"\xd9": 1}}]}'):
        with pytest.raises(InvalidInputError):
            read_json_lines(line)
    nested = stream(pa.table({"a": pa.array([{"long_name": 1}])})).replace(b"long_name", b"long_nam\xd9")
    with pytest.raises(InvalidInputError):
        read_stream(nested)
    nested = parquet(pa.table({"a": pa.array([{"long_name": 1}])}), store_schema=False)
    with pytest.raises(InvalidInputError):
        ParquetRows(nested.replace(b"long_name", b"long_nam\xd9")).table()


def test_wide_data_is_read_up_to_a_bound_of_columns() -> None:
    names = [f"c{number}" for number in range(MAX_FIELDS)]
    rows = read_csv((",".join(names) + "\n" + ",".join("1" * len(names)) + "\n").encode(), {})
    assert len(as_input_rows(rows).columns) == MAX_FIELDS
    with pytest.raises(InvalidInputError, match="more than"):
        read_csv((",".join(f"c{number}" for number in range(MAX_FIELDS + 1)) + "\n").encode(), {})


def test_rows_with_a_name_of_their_own_each_do_not_make_a_square_of_cells() -> None:
    rows = [json.loads(f'{{"c{number}": 1}}') for number in range(6000)]
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="cells"):
        as_input_rows(rows)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_a_schema_has_no_more_metadata_than_a_schema_needs() -> None:
    with pytest.raises(InvalidInputError, match="metadata"):
        check_schema(pa.schema([pa.field("a", pa.int8(), metadata={"x": "y" * 5_000_000})]))


@pytest.mark.parametrize("kind", FORMATS)
def test_garbage_of_every_kind_is_an_error_of_the_table(kind: str) -> None:
    for data in (b"", b"x", b"PAR1" * 5, b"ARROW1\0\0" * 5, b"ORC" * 9, stream(table())[:-20]):
        with pytest.raises(InvalidInputError):
            list(FORMATS[kind](data).batches())


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_values_of_a_body_that_stands_at_any_address_can_be_written(tmp_path: Path, offset: int) -> None:
    rows = pa.table({"a": [1.5, 2.5, None], "b": [1, 2, 3], "c": ["x", "y", None]})
    sent = pa.py_buffer(bytes(offset) + stream(rows)).slice(offset)
    batches = list(read_stream(sent))
    numbers = [column.buffers()[1] for batch in batches for column in batch.columns[:2]]
    assert all(each is not None and each.address % 8 == 0 for each in numbers)
    found = Catalog(str(tmp_path)).create_table("t", pa.Table.from_batches(batches))
    assert found.to_arrow().equals(rows)
