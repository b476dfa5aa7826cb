"""What is printed: fitted on a terminal, whole in a pipe, and text whatever is in it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

import headwater
from headwater.cli import main, output
from headwater.cli.output import Bytes, ago, cell, grid, visible
from tests.cli.running import Cli

CHECKOUT = str(Path(__file__).parents[2])
HOSTILE = "red\x1b[31m\x07\n\u202eevil\u2066 [bold]x[/bold] :smile:"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed goes to a terminal of sixty columns."""
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    for module in ("look", "moments"):
        monkeypatch.setattr(f"headwater.cli.{module}.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")


@pytest.fixture
def odd(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """A catalog with hostile names and cells."""
    rows = pa.table(
        {
            "id": [1, 2],
            "text": [HOSTILE, None],
            "v": pa.array([[0.123456789, 2, 3, 4]] * 2, pa.list_(pa.float32(), 4)),
            "long": ["x" * 300, "y"],
            "[red]head[/red]": [b"\x00\x01", None],
        }
    )
    catalog = headwater.Catalog(str(tmp_path / "odd"))
    with mock.patch("headwater.names.INVISIBLE", ()):  # a catalog of before such names were refused
        catalog.create_table(["ns", "a\u202eb [bold]"], rows, properties={"comment": HOSTILE})
    catalog.create_table("ns.t", rows)
    return Cli(str(tmp_path / "odd"), capfd)


def harmless(text: str) -> bool:
    """Nothing in it acts on a terminal."""
    return not any(char in text for char in "\x1b\x07\u202e\u2066")


def test_hostile_names_and_cells_are_text(odd: Cli) -> None:
    for line in ("ls ns", "tree", "show ns.t", "head ns.t", "find e", "log", "schema ns.t", "diff 0"):
        verb, *words = line.split()
        out = odd.ok(verb, *words)
        assert harmless(out), line
    assert "\\u202e" in odd.ok("ls", "ns")
    assert "[bold]x[/bold] :smile:" in odd.ok("head", "ns.t")
    assert json.loads(odd.ok("head", "ns.t", "--json").splitlines()[0])["text"] == HOSTILE
    status, _, err = odd("count", "ns.\u202enone")
    assert status == 3
    assert harmless(err)


@pytest.mark.usefixtures("terminal")
def test_hostile_names_and_cells_are_text_on_a_terminal(odd: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for line in ("ls ns", "head ns.t", "find e", "log", "schema ns.t", "diff 0"):
        verb, *words = line.split()
        assert harmless(odd.ok(verb, *words).replace("\x1b[2m", "").replace("\x1b[0m", "").replace("\x1b[1m", "")), line


@pytest.mark.usefixtures("terminal")
def test_rows_fit_a_terminal(odd: Cli) -> None:
    shown = odd.ok("head", "ns.t")
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert "NULL" in shown
    assert "x" * 61 not in shown
    history = odd.ok("versions", "ns.t")
    assert " ago)" in history or "now)" in history


@pytest.mark.usefixtures("terminal")
def test_a_long_column_squeezes_no_other_away(odd: Cli) -> None:
    lines = odd.ok("log").splitlines()
    assert all(len(line) <= 60 for line in lines[1:])
    numbers = [line.split()[0] for line in lines[2:] if line[:6].strip()]
    assert numbers == [str(entry["slot"]) for entry in odd.records("log")]
    wide = output._table([{f"c{number}": "x" * 50 for number in range(40)}], 60, "NULL", ())
    assert output.widths([4, 100, 30], 60) == [4, 28, 28]
    assert len(wide.columns) == 6
    assert "34 more columns" in str(wide.caption)


def test_in_a_pipe_nothing_is_cut_and_a_row_is_a_line(odd: Cli) -> None:
    shown = odd.ok("head", "ns.t").splitlines()
    assert len(shown) == 3
    assert "x" * 300 in shown[1]
    assert "NULL" in shown[2]
    assert "0.12345" in shown[1]


def test_values_are_told_short_on_a_terminal_and_exactly_in_a_pipe() -> None:
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert ago(now - timedelta(minutes=3), now) == "3 min ago"
    assert [ago(now - timedelta(seconds=s), now) for s in (0, 5, 7200, 3 * 86400, 90 * 86400)] == [
        "now", "5 s ago", "2 h ago", "3 days ago", "3 months ago"
    ]  # fmt: skip
    assert cell(now, False) == "2026-05-01T12:00:00Z"
    assert (cell(Bytes(12_345_678), True), cell(Bytes(12_345_678), False)) == ("12.3 MB", "12.3 MB")
    assert cell([0.123456, 2.0, 3.0, 4.0], True) == "[0.1235, 2, 3, … 4 numbers]"
    assert grid([{"a": None, "b": 1}], "NULL") == ["a     b", "NULL  1"]
    assert visible("ünï ☃ 👩\u200d🔬") == "ünï ☃ 👩\u200d🔬"


def test_errors_are_one_line_or_one_object(odd: Cli) -> None:
    status, out, err = odd("head", "ns.none")
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("headwater: ")
    status, out, err = odd("head", "ns.none", "--json")
    assert (status, out) == (3, "")
    assert set(json.loads(err)) == {"error", "code"}


def test_a_verb_or_option_that_is_not_there_names_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for line, meant in ((["haed", "x", "y"], "head"), (["head", "x", "y", "--limt", "3"], "--limit")):
        with pytest.raises(SystemExit) as stopped:
            main(line)
        assert stopped.value.code == 2
        assert f"did you mean {meant}?" in capsys.readouterr().err


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "headwater", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, cwd=CHECKOUT,
    )  # fmt: skip


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    headwater.Catalog(str(tmp_path / "l")).create_table("t", pa.table({"x": ["y" * 100] * 20_000}))
    process = started("head", str(tmp_path / "l"), "t", "--limit", "20000")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), complaint) == (0, b"")


def test_an_interrupt_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    headwater.Catalog(str(tmp_path / "l")).create_table("t", pa.table({"x": [1]}))
    process = started("insert", str(tmp_path / "l"), "t", "-")
    assert process.stdin is not None
    process.stdin.write(b"{")  # it waits for the rest
    process.stdin.flush()
    wait_until_reading(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def wait_until_reading(pid: int) -> None:
    """Until the process sleeps in a read of its stdin."""
    for _ in range(2400):
        if Path(f"/proc/{pid}/wchan").read_text().startswith(("pipe_read", "anon_pipe_read")):
            return
        time.sleep(0.05)
    raise AssertionError("it does not read its stdin")


def test_show_takes_no_more_lines_than_a_terminal_has(
    lake: Cli, terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lake.ok("properties", "prod.users", f"comment={'long words ' * 50}", *(f"key{n}={'x' * 300}" for n in range(9)))
    lines = lake.ok("show", "prod.users").splitlines()
    assert len(lines) <= 24
    assert max(len(line) for line in lines) <= 40
    assert any(line.endswith("…") for line in lines)


def test_show_cuts_no_text_in_a_pipe(lake: Cli) -> None:
    lake.ok("properties", "prod.users", f"comment={'word ' * 100}end")
    assert f"{'word ' * 100}end" in lake.ok("show", "prod.users")


@pytest.mark.usefixtures("terminal")
def test_history_and_log_fit_eighty_columns_with_all_that_was_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    catalog = headwater.Catalog(str(tmp_path / "lake"))
    table = catalog.create_table("prod.measurements", [{"id": 1}, {"id": 2}])
    table.append([{"id": 3}])
    with catalog.transaction("close the month of November for the shops in Europe") as tx:
        tx["prod.measurements"].append([{"id": 4}])
        tx.create_table("prod.closed", [{"id": 1}])
    cli = Cli(str(tmp_path / "lake"), capfd)
    shown = cli.ok("history", "prod.measurements")
    assert max(map(len, shown.splitlines())) <= 80
    assert "append 1 row " in shown
    assert "append 1 row to" not in shown  # its message says no more
    assert "…" not in shown
    shown = cli.ok("log")
    assert max(map(len, shown.splitlines())) <= 80
    words = " ".join(shown.split())
    assert "append 1 row to prod.measurements (version 2)" in words
    assert "create table prod.closed" in words
