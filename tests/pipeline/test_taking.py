"""Taking files in: what is wrong with one is told or quarantined, never half of it taken; stores, watching, undoing."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import boto3
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.catalog import Catalog
from headwater.cli.main import main
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.pipeline import ingest, undo, watch
from headwater.pipeline.watching import SignalledStop
from headwater.streams.sources.files import find_files
from headwater.streams.sources.source_files import digest_of_file

CHECKOUT = Path(__file__).parents[2]
ROWS = 300
SCHEMA = {"id": "bigint", "at": "bigint", "name": "string"}


def lake(folder: Path, **properties: str) -> Catalog:
    catalog = Catalog(str(folder / "lake"))
    catalog.create_stream_table("raw.t", SCHEMA, keys=["id"], sequence=["at"], properties=properties)
    return catalog


def objects(count: int = ROWS) -> list[dict[str, Any]]:
    return [{"id": number, "at": number, "name": f"n{number}"} for number in range(count)]


def lines(rows: list[Any]) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


def debezium(rows: list[Any]) -> bytes:
    return lines([row if isinstance(row, str) else {"op": "c", "after": row, "source": {"lsn": 1}} for row in rows])


def csv(rows: list[dict[str, Any]]) -> bytes:
    return ("id,at,name\n" + "".join(f"{row['id']},{row['at']},{row['name']}\n" for row in rows)).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def arrow(rows: list[dict[str, Any]]) -> bytes:
    sink, table = io.BytesIO(), pa.Table.from_pylist(rows)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def arrows(rows: list[dict[str, Any]], batches: int = 2) -> bytes:
    """A stream of Arrow, in so many batches, and their ends."""
    sink, table = io.BytesIO(), pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=len(rows) // batches)
    return sink.getvalue()


def with_row(place: int, row: Any) -> list[Any]:
    return [row if number == place else each for number, each in enumerate(objects())]


ALL = objects()
NO_KEY = [{"at": row["at"], "name": row["name"]} for row in ALL]
WRONG = [{**row, "at": f"x{row['at']}"} for row in ALL]
LATIN = lines(ALL).replace(b"n150", b"n\xe9150")
CASES: dict[str, tuple[str, str, bytes, str, dict[str, str]]] = {
    # name: (ending, format, content, what the error says or the reason in the quarantine, properties)
    "truncated json": ("json", "rows", lines(ALL)[:-9], "ends inside row 299", {}),
    "truncated debezium": ("json", "debezium", debezium(ALL)[:-9], "ends inside row 299", {}),
    "truncated parquet": ("parquet", "rows", parquet(ALL)[:-40], "cannot be read", {}),
    "truncated arrow": ("arrow", "rows", arrow(ALL)[:-400], "cannot be read", {}),
    "arrow stream cut between batches": ("arrows", "rows", arrows(ALL)[:-8], "it was cut off", {}),
    "arrow streams behind each other": ("arrows", "rows", arrows(ALL) * 2, "behind the end of its stream", {}),
    "csv that ends in a quoted value": (
        "csv", "rows", csv(ALL).replace(b"n150", b'"n150'), "begins in row 151", {},
    ),
    "truncated csv": ("csv", "rows", csv(ALL)[:-6], "=parse", {}),
    "wrong encoding of json": ("json", "rows", LATIN, r"not UTF-8: row 150, offset \d+", {}),
    "wrong encoding of csv": ("csv", "rows", csv(ALL).replace(b"n150", b"n\xe9150"), "not UTF-8: row 151", {}),
    "one bad line": ("json", "rows", lines(with_row(123, "{oops")), "=parse", {}),
    "one bad event": ("json", "debezium", debezium(with_row(123, "{oops")), "=parse", {}),
    "one bad value": ("json", "rows", lines(with_row(123, {"id": 1, "at": "soon", "name": "x"})), "=bad_value", {}),
    "one row without key": ("json", "rows", lines(with_row(123, {"id": None, "at": 1, "name": "x"})), "=null_key", {}),
    "one bad value in csv": ("csv", "rows", csv(with_row(7, {"id": "seven", "at": 1, "name": "x"})), "=bad_value", {}),
    "one bad row in parquet": (
        "parquet", "rows", parquet(with_row(7, {"id": None, "at": 1, "name": "x"})), "=null_key", {},
    ),
    "no key column": ("json", "rows", lines(NO_KEY), "'id'", {}),
    "no key column in parquet": ("parquet", "rows", parquet(NO_KEY), "'id'", {}),
    "schema drift, frozen": (
        "json", "rows", lines([{**row, "size": 1} for row in ALL]), "'size'", {"contract": "freeze"},
    ),
    "type drift": ("parquet", "rows", parquet(WRONG), "'at'", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_file_with_something_wrong_is_an_error_that_says_where_or_the_row_is_quarantined(
    tmp_path: Path, case: str
) -> None:
    ending, format, content, told, properties = CASES[case]
    catalog = lake(tmp_path, **properties)
    path = tmp_path / f"file.{ending}"
    path.write_bytes(content)
    table = catalog["raw.t"]
    if not told.startswith("="):
        with pytest.raises(InvalidInputError, match=told) as caught:
            ingest(None, catalog, "raw.t", path, format)
        if "'" not in told:
            assert str(path) in str(caught.value)
        assert (table.position, table.count(), table.quarantine().num_rows) == (0, 0, 0)
        path.write_bytes({"json": lines, "csv": csv, "parquet": parquet, "arrow": arrow, "arrows": arrows}[ending](ALL))
        assert ingest(None, catalog, "raw.t", path).rows == ROWS  # mended, it is another file
        return
    report = ingest(None, catalog, "raw.t", path, format)
    assert (report.rows, report.quarantined, table.count()) == (ROWS - 1, 1, ROWS - 1)
    kept = table.quarantine().to_pylist()
    assert [(row["reason"], row["source"]) for row in kept] == [(told[1:], str(path))]
    assert ingest(None, catalog, "raw.t", path, format).skipped == 1
    with pytest.raises(InvalidInputError, match="nothing was loaded"):
        ingest(None, catalog, "raw.t", path, format, name="strictly", strict=True)


def test_every_kind_of_file_is_taken_from_an_object_store_by_address_and_glob(
    s3_root: str, s3_options: dict[str, str], tmp_path: Path
) -> None:
    catalog = Catalog(s3_root, impl="metastore", **{f"storage.{key}": text for key, text in s3_options.items()})
    table = catalog.create_stream_table("raw.t", SCHEMA, keys=["id"], sequence=["at"])
    bucket = s3_root.split("/")[2]
    client = boto3.client(
        "s3",
        endpoint_url=s3_options["endpoint"],
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        region_name="us-east-1",
    )
    made = {"a.json": lines, "b.csv": csv, "c.parquet": parquet, "d.arrow": arrow}
    for place, (name, write) in enumerate(made.items()):
        row = {"id": place, "at": 1, "name": name}
        client.put_object(Bucket=bucket, Key=f"in/x/{name}", Body=write([row]))
    lance.write_dataset(
        pa.table({"id": [9], "at": [1], "name": ["e"]}), f"s3://{bucket}/in/x/e.lance", storage_options=s3_options
    )
    client.put_object(Bucket=bucket, Key="in/other.txt", Body=b"not ours")
    first = ingest(None, catalog, "raw.t", f"s3://{bucket}/in/x/[ab].*", name="s")
    assert (first.files, first.rows) == (2, 2)
    rest = ingest(None, catalog, "raw.t", f"s3://{bucket}/in/**/*.[!t]*", name="s")
    assert (rest.files, rest.skipped) == (3, 2)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 9]
    client.put_object(Bucket=bucket, Key="in/x/a.json", Body=lines([{"id": 0, "at": 2, "name": "again"}]))
    assert ingest(None, catalog, "raw.t", f"s3://{bucket}/in/x/a.json", name="s").rows == 1
    client.put_object(Bucket=bucket, Key="in/x/bad.json", Body=b'{"id": 1')
    with pytest.raises(InvalidInputError, match=r"s3://.*/in/x/bad\.json' ends inside row 0"):
        ingest(None, catalog, "raw.t", f"s3://{bucket}/in/x/bad.json", name="s")
    with pytest.raises(InvalidInputError, match="no file 's3://"):
        ingest(None, catalog, "raw.t", f"s3://{bucket}/in/x/missing.json", name="s")
    undone = undo(None, catalog, "raw.t", "s", f"s3://{bucket}/in/x/b.csv")
    assert undone.version > 0
    assert 1 not in table.to_arrow()["id"].to_pylist()


def test_files_are_the_same_whether_named_one_by_one_in_a_list_or_by_a_glob(tmp_path: Path) -> None:
    catalog, names = lake(tmp_path), [f"{number}.json" for number in range(3)]
    for name in names:
        (tmp_path / name).write_bytes(lines(objects(2)))
    sink = io.BytesIO()
    rows = pa.Table.from_pylist(objects(2))
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    (tmp_path / "3.arrows").write_bytes(sink.getvalue())
    first = ingest(None, catalog, "raw.t", [str(tmp_path / name) for name in (*names[:2], "3.arrows")])
    assert (first.files, first.rows) == (3, 6)
    every = ingest(None, catalog, "raw.t", str(tmp_path / "[0-9].*"))
    assert (every.files, every.skipped) == (1, 3)
    texts = ['{"op": "c", "after": {"id": 9, "at": 9}}', "null"]
    assert ingest(None, catalog, "raw.t", texts, "debezium").rows == 1


def test_values_of_a_csv_file_may_hold_lines_wherever_they_stand(tmp_path: Path) -> None:
    catalog, texts = lake(tmp_path), [f"{number},1\n" * 40 + "o'clock" for number in range(5_000)]
    rows = "".join(f'{number},1,"{text}"\n' for number, text in enumerate(texts))  # of more than a reader's block
    (tmp_path / "a.csv").write_text(f"id,at,name\n{rows}")
    assert ingest(None, catalog, "raw.t", tmp_path / "a.csv").quarantined == 0
    found = catalog["raw.t"].to_arrow().sort_by("id")
    assert (found["id"].to_pylist(), found["name"].to_pylist()) == (list(range(5_000)), texts)


def test_a_file_is_the_same_by_whatever_link_or_address_and_its_name_may_have_brackets(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table("raw.t", SCHEMA)  # without keys: a file taken twice is there twice
    folder = tmp_path / "in [1]"
    folder.mkdir()
    (folder / "a[1].json").write_bytes(lines(objects(2)))
    os.symlink(folder, tmp_path / "linked")
    os.symlink(folder / "a[1].json", folder / "latest.json")
    path = folder / "a[1].json"
    for name in (path, str(path), path.as_uri(), tmp_path / "linked" / "a[1].json", f"{tmp_path}/linked/*.json"):
        ingest(None, catalog, "raw.t", name, name="s")
    assert main(["ingest", str(tmp_path / "lake"), "raw.t", path.as_uri(), "--name", "s"]) == 0
    (folder / "p.toml").write_text(
        """
        pipeline = { name = "p", catalog = "../lake" }
        source = [{ name = "s", path = "*.json", into = "raw.t" }]
        """
    )
    assert main(["run", str(tmp_path / "linked" / "p.toml")]) == 0
    assert (table.position, table.count(), list(table.files("s"))) == (1, 2, [str(path)])
    (folder / "b[2].json").write_bytes(lines(objects(3)))
    assert main(["run", str(folder / "p.toml")]) == 0
    undo(None, catalog, "raw.t", "s", str(tmp_path / "linked" / "latest.json"))
    assert table.count() == 3


def test_an_undone_file_is_left_out_until_it_changes_or_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = lake(tmp_path)
    path = tmp_path / "a.json"
    path.write_bytes(lines([{"id": 1, "at": 1, "name": "a"}]))
    (tmp_path / "b.json").write_bytes(lines([{"id": 2, "at": 1, "name": "b"}]))
    files = str(tmp_path / "*.json")
    ingest(None, catalog, "raw.t", files, name="s")
    undo(None, catalog, "raw.t", "s", str(path))
    report = ingest(None, catalog, "raw.t", files, name="s")
    assert (report.files, report.skipped, report.undone, catalog["raw.t"].count()) == (0, 1, 1, 1)
    capsys.readouterr()
    assert main(["ingest", str(tmp_path / "lake"), "raw.t", files, "--name", "s"]) == 0
    assert "1 undone file left out (--again takes them)" in capsys.readouterr().out
    assert main(["ingest", str(tmp_path / "lake"), "raw.t", files, "--name", "s", "--again"]) == 0
    assert (catalog["raw.t"].count(), ingest(None, catalog, "raw.t", files, name="s").undone) == (2, 0)
    undo(None, catalog, "raw.t", "s", str(path))
    path.write_bytes(lines([{"id": 1, "at": 2, "name": "mended"}]))
    assert ingest(None, catalog, "raw.t", files, name="s").rows == 1
    assert sorted(catalog["raw.t"].to_arrow()["name"].to_pylist()) == ["b", "mended"]


def test_one_content_of_a_file_is_undone_by_its_digest_and_the_other_stays(tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    path = tmp_path / "a.json"
    digests = []
    for number in (1, 2):
        path.write_bytes(lines([{"id": number, "at": 1, "name": "a"}]))
        ingest(None, catalog, "raw.t", path, name="s")
        digests.append(digest_of_file(str(path)))
    command = ["undo", str(tmp_path / "lake"), "raw.t", "--file", str(path), "--digest", digests[0][:12]]
    assert main(command) == 0
    assert catalog["raw.t"].to_arrow()["id"].to_pylist() == [2]
    with pytest.raises(Exception, match="undone"):
        undo(None, catalog, "raw.t", digest="feed")


def test_a_watched_folder_is_taken_as_files_come_and_one_that_is_still_written_is_tried_again(tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    stop, told = threading.Event(), []
    (tmp_path / "0.json").write_bytes(lines([{"id": 0, "at": 0, "name": "a"}]))
    half = tmp_path / "1.json"
    half.write_bytes(b'{"id": 1, "at"')
    seen: list[Any] = []
    source = tmp_path / "*.json"
    for report in watch(
        None,
        catalog,
        "raw.t",
        source,
        name="s",
        stop=stop,
        every=0.01,
        publishes=True,
        failed=lambda f, e: told.append(f),
    ):
        seen.append(report)
        if len(seen) == 2:
            half.write_bytes(lines([{"id": 1, "at": 1, "name": "b"}]))
            (tmp_path / "2.json").write_bytes(lines([{"id": 2, "at": 1, "name": "b"}]))
        if len(seen) == 4:
            stop.set()
    assert [(report.job, report.rows) for report in seen] == [
        ("ingest", 1), ("publish", 1), ("ingest", 2), ("publish", 2),
    ]  # fmt: skip
    assert {file.path for file in told} == {str(half)}
    assert catalog["raw.t"].serving.count() == 3


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    path = tmp_path / "a.json"
    path.write_bytes(lines([{"id": 1, "at": 1, "name": "a"}]))
    (found,) = find_files(path)
    path.write_bytes(lines([{"id": 2, "at": 1, "name": "a"}, {"id": 3, "at": 1, "name": "a"}]))
    with pytest.raises(ConcurrentModificationError, match="changed while it was read"):
        catalog["raw.t"].ingest_file(found)
    assert (catalog["raw.t"].position, ingest(None, catalog, "raw.t", path).rows) == (0, 2)


def test_a_signal_stops_a_watch_wherever_it_interrupts_it() -> None:
    stop, seen = SignalledStop(), 0
    before = signal.signal(signal.SIGALRM, lambda *_: stop.set())
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(4000):  # an event does not survive this
            seen += stop.wait(0.0003)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen > 100


def test_a_watching_command_stops_cleanly_and_another_goes_on(tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    (tmp_path / "0.json").write_bytes(lines([{"id": 0, "at": 0, "name": "a"}]))
    command = [sys.executable, "-m", "headwater", "ingest", str(tmp_path / "lake"), "raw.t", str(tmp_path / "*.json")]
    watching = subprocess.Popen(
        [*command, "--watch", "--every", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    assert watching.stdout is not None
    assert "1 row, 1 file" in watching.stdout.readline()
    (tmp_path / "1.json").write_bytes(lines([{"id": 1, "at": 0, "name": "a"}]))
    assert "1 row, 1 file" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, out, err) == (0, "", "")
    assert catalog["raw.t"].count() == 2


def test_options_of_a_format_are_given_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catalog = lake(tmp_path)
    path = tmp_path / "a.json"
    path.write_bytes(lines([{"id": 1, "at": 1, "name": "a", "what": "insert"}]))
    asked = ["ingest", str(tmp_path / "lake"), "raw.t", str(path), "--format"]
    for format, option, told in (
        ("op", "column=what", "has no option 'column'"),
        ("snapshot", "allow_empty=maybe", "is true or false"),
        ("debezium", "time_unit=days", "none of s, ms, us, ns"),
    ):
        assert main([*asked, format, "--option", option]) != 0
        assert told in capsys.readouterr().err
    assert main([*asked, "op", "--option", "op_column=what"]) == 0
    assert catalog["raw.t"].count() == 1
    path.write_bytes(b"")
    assert main([*asked, "snapshot", "--option", "allow_empty=TRUE"]) == 0
    assert catalog["raw.t"].count() == 0
