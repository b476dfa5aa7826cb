"""A source of dlt in a pipeline file: its state is in the commit of its rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dlt", reason="pip install 'headwater[dlt]'")

from headwater import Catalog
from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.pipeline import parse_pipeline, read_pipeline, run_pipeline, watch_pipeline
from headwater.pipeline.live import dlt_reader
from headwater.pipeline.live.live_source import live_state
from headwater.pipeline.run_records import runs

TEXT = """
[pipeline]
name = "api"
catalog = "./lake"
engine = "embedded"
[[source]]
name = "shop"
dlt = { source = "shop_api:shop", arguments = { size = 2 }, every = "1 second" }
into = "raw.{table}"
[table."raw.orders"]
stored_as_scd_type = 2
"""
MODULE = """
import dlt
from pathlib import Path

@dlt.source
def shop(size):
    @dlt.resource(primary_key="id", write_disposition="merge")
    def orders(at=dlt.sources.incremental("id", initial_value=0)):
        if (Path(__file__).parent / "broken").exists():
            raise ConnectionError("the API is away")
        yield [{"id": id, "v": "x"} for id in range(at.last_value + 1, at.last_value + 1 + size)]

    @dlt.resource(write_disposition="append")
    def events(at=dlt.sources.incremental("n", initial_value=0)):
        yield [{"n": n} for n in range(at.last_value + 1, at.last_value + 1 + size)]

    return orders, events
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.toml").write_text(TEXT)
    (tmp_path / "shop_api.py").write_text(MODULE)
    return tmp_path


def column(folder: Path, table: str, name: str) -> list[Any]:
    return sorted(Catalog(str(folder / "lake"))[table].to_arrow(columns=[name]).column(name).to_pylist())


def run(folder: Path) -> Any:
    return run_pipeline(read_pipeline(folder / "pipeline.toml"))


class Killed(BaseException):
    pass


def test_each_run_goes_on_from_the_state_in_the_catalog(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder)
    assert column(folder, "raw.orders", "id") == [1, 2]
    lake = Catalog(str(folder / "lake"))
    assert lake["raw.orders"].definition.keys == ("id",)
    assert lake["raw.orders"].serving.count() == 2
    assert "raw.orders__history" in lake, "what the file says of a table holds for it"
    assert len([entry for entry in lake.log(after=0) if entry.message.startswith("take")]) == 1

    def dies(*args: object) -> Any:
        raise Killed

    for step in ("land", "acknowledge"):
        with monkeypatch.context() as patch:
            patch.setattr(dlt_reader.DltPart if step == "land" else dlt_reader.DltReader, step, dies)
            with pytest.raises(Killed):
                run(folder)
    run(folder)
    assert column(folder, "raw.events", "n") == [1, 2, 3, 4, 5, 6]
    assert column(folder, "raw.orders", "id") == [1, 2, 3, 4, 5, 6]
    assert live_state(lake, "shop").commits == 3


def test_a_source_that_fails_is_said_in_one_sentence_and_goes_on_later(folder: Path) -> None:
    (folder / "broken").touch()
    with pytest.raises(ServiceUnavailableError, match=r"^The source shop_api:shop of dlt failed: .*the API is away"):
        run(folder)
    (folder / "broken").unlink()
    run(folder)
    assert column(folder, "raw.orders", "id") == [1, 2]


@pytest.mark.parametrize("place", ["call", "import"])
def test_a_source_that_cannot_be_made_fails_alone_and_tells_no_secret_of_an_address(folder: Path, place: str) -> None:
    """An error of the source's function ended a whole run, with a trace, and a resident one too."""
    told = 'raise ConnectionError("401 for url: https://me:pw1@api.example.com/v1?key=s3cret (try again)")'
    text = f"{told}\n" if place == "import" else f"def shop(size):\n    {told}\n"
    (folder / f"broken_{place}.py").write_text(text)
    (folder / "pipeline.toml").write_text(TEXT.replace("shop_api:shop", f"broken_{place}:shop"))
    with pytest.raises(
        ServiceUnavailableError, match=r"401 for url: https://api\.example\.com/v1 \(try again"
    ) as raised:
        run(folder)
    (record,) = runs(Catalog(str(folder / "lake")))
    assert record["state"] == "failed"
    assert not any(each in f"{record} {raised.value}" for each in ("s3cret", "pw1"))


def test_a_resident_run_asks_the_source_again(folder: Path) -> None:
    stop = threading.Event()
    failures: list[str] = []

    def say(text: str) -> None:
        if "failed" in text:
            failures.append(text)
            stop.set()

    for number, _ in enumerate(watch_pipeline(read_pipeline(folder / "pipeline.toml"), stop, every=0.01, say=say)):
        if number:
            stop.set()
    assert failures == []
    assert column(folder, "raw.events", "n")[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("shop_api:shop", "shop_api", "is not a source"),
        ("raw.{table}", "raw.all", r"into needs \{table\}"),
        ("1 second", "often", "is not a duration"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        parse_pipeline(TEXT.replace(old, new), Path())


def test_a_source_that_cannot_be_imported_is_named(folder: Path) -> None:
    (folder / "pipeline.toml").write_text(TEXT.replace("shop_api:shop", "shop_api:shopp"))
    with pytest.raises(InvalidInputError, match="'shop_api:shopp' of dlt cannot be imported"):
        run(folder)
