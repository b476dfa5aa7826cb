"""Functions of derived columns: found again by every verb, and known to a plan by their text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import Catalog
from headwater.errors import InvalidInputError
from headwater.pipeline import backfill, plan_pipeline, publish, run_pipeline, undo
from headwater.pipeline.grammar import read_pipeline
from headwater.rest.server import start_in_thread
from headwater.streams.definition import derived_of
from headwater.streams.serving.derived_columns import identity, planned_identity

PIPELINE = """
[pipeline]
name = "p"
catalog = "./lake"
[[source]]
name = "s"
path = "landing/*.json"
into = "raw.p"
[table."raw.p"]
keys = ["id"]
[table."raw.p".columns.vector]
function = "own_features:embed"
inputs = ["text"]
type = "int64"
version = "1"
"""
PLAIN = "import own_words\n\n\ndef embed(text):\n    return own_words.count(text)\n    # of each\n"
WORDS = "def count(text):\n    return [len(each) for each in text.to_pylist()]\n"
RUNS = "open(__file__ + '.ran', 'w').close()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A pipeline whose function lies beside it and imports a module beside it."""
    made = tmp_path / "project"
    (made / "landing").mkdir(parents=True)
    (made / "pipeline.toml").write_text(PIPELINE)
    (made / "own_features.py").write_text(PLAIN)
    (made / "own_words.py").write_text(WORDS)
    for number in (1, 2):
        (made / "landing" / f"{number}.json").write_text(json.dumps({"id": number, "text": "x" * number}) + "\n")
    yield made
    _forget()


def _forget() -> None:
    for name in ("own_features", "own_words"):
        sys.modules.pop(name, None)


def _values(catalog: Catalog) -> dict[int, int | None]:
    return {row["id"]: row["vector"] for row in catalog["raw.p"].serving.to_arrow().to_pylist()}


def test_every_verb_finds_a_function_that_lies_beside_the_pipeline_file(folder: Path, tmp_path: Path) -> None:
    run_pipeline(read_pipeline(folder / "pipeline.toml"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own_features.py").write_text("def embed(text):\n    return [-1] * len(text)\n")
    env = {**os.environ, "PYTHONPATH": ""}

    def line(*words: str) -> None:
        told = [sys.executable, "-P", "-m", "headwater", *words]
        done = subprocess.run(told, cwd=elsewhere, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    lake = str(folder / "lake")
    line("undo", lake, "--source", "s", "--file", str(folder / "landing" / "1.json"), "--yes")
    catalog = Catalog(lake)
    assert _values(catalog) == {2: 2}
    catalog["raw.p"].upsert([{"id": 3, "text": "xyz"}])
    line("publish", lake, "raw.p")
    assert _values(catalog) == {2: 2, 3: 3}
    (folder / "own_features.py").write_text(PLAIN.replace("count(text)", "count(text)[:]"))
    _forget()
    assert backfill(None, catalog, "raw.p").rows == 2
    catalog["raw.p"].upsert([{"id": 4, "text": "four"}])
    server = start_in_thread(catalog.namespace)
    try:
        far = Catalog(server.url)["raw.p"]
        assert str(folder) not in str(far.definition.properties)
        far.publish()
    finally:
        server.stop()
    assert _values(catalog) == {2: 2, 3: 3, 4: 4}


def test_a_moved_pipeline_tells_the_table_where_its_function_is_now(folder: Path, tmp_path: Path) -> None:
    run_pipeline(read_pipeline(folder / "pipeline.toml"))
    moved = folder.rename(tmp_path / "moved")
    _forget()
    catalog = Catalog(str(moved / "lake"))
    with pytest.raises(InvalidInputError, match=r"own_features.* run that pipeline again"):
        undo(None, catalog, "raw.p", "s")
    assert len(catalog["raw.p"].files("s")) == 2, "nothing was undone"
    done = run_pipeline(read_pipeline(moved / "pipeline.toml"))
    assert done.plan.steps[0].do == "alter"
    assert _values(catalog) == {1: 1, 2: 2}
    assert run_pipeline(read_pipeline(moved / "pipeline.toml")).plan.steps == ()


def test_an_undo_that_cannot_publish_says_that_it_took_out(folder: Path) -> None:
    (folder / "own_words.py").write_text(WORDS + "\nFAIL = __file__ + '.fail'\n")
    (folder / "own_features.py").write_text(
        "import os\nimport own_words\n\n\ndef embed(text):\n    if os.path.exists(own_words.FAIL):\n"
        "        raise ValueError('no model')\n    return own_words.count(text)\n"
    )
    run_pipeline(read_pipeline(folder / "pipeline.toml"))
    catalog = Catalog(str(folder / "lake"))
    catalog["raw.p"].upsert([{"id": 5, "text": "five"}])
    (folder / "own_words.py.fail").write_text("")
    with pytest.raises(
        InvalidInputError, match=r"no model.*taken out of raw\.p.*not published.*headwater publish raw\.p"
    ):
        undo(None, catalog, "raw.p", "s", str(folder / "landing" / "1.json"))
    (folder / "own_words.py.fail").unlink()
    publish(None, catalog, "raw.p")
    assert _values(catalog) == {2: 2, 5: 4}


def test_a_plan_runs_no_code_of_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("own_features.py", "own_words.py", "pyarrow_helper.py"):
        with (folder / name).open("a") as file:
            file.write(RUNS)
    (folder / "json.py").write_text(RUNS)
    monkeypatch.chdir(folder)
    said: list[str] = []
    pipeline = read_pipeline(folder / "pipeline.toml")
    _, plan = plan_pipeline(pipeline, say=said.append)
    assert (list(folder.glob("*.ran")), said) == ([], [])
    done = run_pipeline(pipeline, plan_id=plan.id)
    assert (folder / "own_features.py.ran").exists()
    assert done.plan.id == plan.id
    for ran in folder.glob("*.ran"):
        ran.unlink()
    _forget()
    (folder / "own_features.py").write_text(PLAIN.replace("count(text)", "count(text)[:]") + RUNS)
    _, plan = plan_pipeline(read_pipeline(folder / "pipeline.toml"), say=said.append)
    assert [(step.do, step.rows) for step in plan.steps] == [("backfill", 2)]
    assert (list(folder.glob("*.ran")), said) == ([], [])


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        (PLAIN, False),
        ("embed = lambda text: [1] * len(text)", False),
        ("class embed:\n    def __call__(self, text):\n        return [1] * len(text)\n", False),
        ("def embed(text):\n    return 1\n\n\nif __name__ == '__main__':\n    embed([])\n", False),
        ("import functools\n\n\n@functools.cache\ndef embed(text):\n    return 1\n", True),
        ("from own_words import count as embed\n", True),
        ("from own_words import *\n\nembed = count\n", True),
        ("def embed(text):\n    return 1\n\n\ndef embed(text):\n    return 2\n", True),
        ("try:\n    import nothing\nexcept ImportError:\n    def embed(text):\n        return 2\n", True),
    ],
)
def test_a_function_is_known_by_its_text_as_by_its_import(folder: Path, text: str, imports: bool) -> None:
    (folder / "own_features.py").write_text(text)
    (derived,) = derived_of(read_pipeline(folder / "pipeline.toml").tables[0].properties)
    said: list[str] = []
    planned = planned_identity(derived, said.append)
    assert bool(said) is imports is ("own_features" in sys.modules)
    assert planned == identity(derived)


@pytest.mark.parametrize("text", ["def other(): ...\n", "def embed(:\n", None])
def test_a_plan_refuses_a_function_that_is_not_there(folder: Path, text: str | None) -> None:
    (folder / "own_features.py").unlink() if text is None else (folder / "own_features.py").write_text(text)
    with pytest.raises(InvalidInputError, match="own_features:embed"):
        plan_pipeline(read_pipeline(folder / "pipeline.toml"))
