"""One row to many: child tables that a function makes of the rows of another table."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater import Catalog
from headwater.errors import InvalidInputError
from headwater.pipeline import check_pipeline, plan_pipeline, publish, run_pipeline, undo
from headwater.pipeline.grammar import parse_pipeline, read_pipeline
from headwater.pipeline.lineage import drawing, upstream
from headwater.streams.sources import child_rows

PIPELINE = """
[pipeline]
name = "docs"
catalog = "./lake"
engine = "embedded"
[[source]]
name = "files"
path = "landing/*.json"
format = "op"
into = "raw.documents"
[table."raw.documents"]
schema = "id BIGINT NOT NULL, title STRING, text STRING, likes BIGINT"
keys = ["id"]
[table."docs.chunks"]
from = "raw.documents"
function = "own_chunks:chunk"
inputs = ["text"]
schema = "id BIGINT NOT NULL, text STRING, start BIGINT"
child_id = ["text"]
[table."docs.chunks".columns.vector]
function = "own_chunks:embed"
inputs = ["text"]
type = "int64"
"""
CHUNKS = """
from pathlib import Path
def noted(name, count):
    with open(Path(FOLDER) / name, "a") as file:
        file.write("x" * count)
def chunk(row):
    noted("chunked", 1)
    place = 0
    for part in (row["text"] or "").split("."):
        if part:
            yield {"text": part, "start": place}
        place += len(part) + 1
def embed(text):
    noted("embedded", len(text))
    return [sum(map(ord, each)) for each in text.to_pylist()]
"""


class Folder:
    """A pipeline with documents, and the number of calls of its functions."""

    def __init__(self, folder: Path, pipeline: str = PIPELINE, chunks: str = CHUNKS) -> None:
        self.folder = folder
        self.documents: dict[int, dict[str, Any]] = {}
        (folder / "landing").mkdir(parents=True, exist_ok=True)
        (folder / "pipeline.toml").write_text(pipeline)
        self.write(chunks)

    def write(self, chunks: str) -> None:
        (self.folder / "own_chunks.py").write_text(f"FOLDER = {str(self.folder)!r}\n{chunks}")

    def deliver(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / "landing" / f"{name}.json").write_text(text)
        for row in rows:
            known = {key: value for key, value in row.items() if key != "op"}
            if row["op"] == "d":
                self.documents.pop(row["id"], None)
            else:
                self.documents[row["id"]] = known

    def run(self, **options: Any) -> Any:
        return run_pipeline(read_pipeline(self.folder / "pipeline.toml"), **options)

    @property
    def catalog(self) -> Catalog:
        return Catalog(str(self.folder / "lake"))

    def calls(self, name: str) -> int:
        """Return the calls since this was asked last: of `chunked` rows, or `embedded` chunks."""
        file = self.folder / name
        found = len(file.read_text()) if file.exists() else 0
        file.write_text("")
        return found

    def chunks(self) -> list[tuple[Any, ...]]:
        """The published chunks by document and place, with their vectors."""
        rows = self.catalog["docs.chunks"].serving.to_arrow().to_pylist()
        return sorted((row["id"], row["child_number"], row["start"], row["text"], row["vector"]) for row in rows)

    def expected(self) -> list[tuple[Any, ...]]:
        """All documents chunked anew."""
        found = []
        for id, row in self.documents.items():
            place = number = 0
            for part in (row["text"] or "").split("."):
                if part:
                    found.append((id, number, place, part, sum(map(ord, part))))
                    number += 1
                place += len(part) + 1
        return sorted(found)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    yield Folder(tmp_path / "project")
    sys.modules.pop("own_chunks", None)


def _document(id: int, text: str | None, op: str = "u", likes: int = 0) -> dict[str, Any]:
    return {"op": op, "id": id, "title": "t", "text": text, "likes": likes}


def _edits(rng: random.Random, held: dict[int, list[str]]) -> list[dict[str, Any]]:
    """Random inserts, changes and deletes of documents; `held` has their parts after it."""
    rows = []
    for _ in range(rng.randrange(1, 6)):
        id = rng.randrange(8)
        if rng.random() < 0.2:
            held.pop(id, None)
            rows.append(_document(id, None, "d"))
            continue
        parts = held.setdefault(id, [])
        parts.insert(rng.randrange(len(parts) + 1), "".join(rng.choices("abcdefgh", k=rng.randrange(1, 3))))
        if len(parts) > 3 and rng.random() < 0.5:
            parts.pop(rng.randrange(len(parts)))
        rows.append(_document(id, ".".join(parts), likes=rng.randrange(3)))
    return rows


def _counted(rows: Sequence[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Chunks by document and text: one that occurs twice in a document has two rows."""
    return Counter((row[0], row[3]) for row in rows)


@pytest.mark.parametrize("seed", [1, 2])
def test_children_follow_random_edits_and_the_model_is_called_for_new_chunks_only(folder: Folder, seed: int) -> None:
    rng, held, before = random.Random(seed), dict[int, list[str]](), Counter[tuple[Any, ...]]()
    for step in range(8):
        texts = {id: row["text"] for id, row in folder.documents.items()}
        folder.deliver(f"{step:02}", _edits(rng, held))
        folder.run()
        found = folder.chunks()
        assert found == folder.expected()
        changed = [id for id, row in folder.documents.items() if texts.get(id) != row["text"]]
        assert folder.calls("chunked") == len(changed)
        assert folder.calls("embedded") == (_counted(found) - before).total()
        before = _counted(found)


def test_a_chunk_inserted_in_the_middle_is_the_only_one_that_is_embedded(folder: Folder) -> None:
    folder.deliver("1", [_document(1, "aa.bb.cc.dd"), _document(2, "ee")])
    folder.run()
    assert (folder.calls("chunked"), folder.calls("embedded")) == (2, 5)
    ids = {row["text"]: row["child_id"] for row in folder.catalog["docs.chunks"].to_arrow().to_pylist()}
    folder.deliver("2", [_document(1, "aa.new.bb.cc.dd")])
    folder.run()
    assert (folder.calls("chunked"), folder.calls("embedded")) == (1, 1)
    now = {row["text"]: row["child_id"] for row in folder.catalog["docs.chunks"].to_arrow().to_pylist()}
    assert ids.items() <= now.items()
    assert folder.chunks() == folder.expected()


def test_a_parent_whose_inputs_stay_is_not_given_to_the_function(folder: Folder) -> None:
    folder.deliver("1", [_document(1, "aa.bb")])
    folder.run()
    folder.calls("chunked")
    folder.deliver("2", [_document(1, "aa.bb", likes=5)])
    folder.run()
    assert folder.calls("chunked") == 0
    assert folder.run().reports == ()


def test_parent_and_children_are_published_in_one_commit_and_lineage_names_the_position(folder: Folder) -> None:
    folder.deliver("1", [_document(1, "aa.bb")])
    done = folder.run()
    (report,) = [each for each in done.reports if each.job == "publish"]
    assert {part.table for part in report.parts} == {"raw.documents", "docs.chunks"}
    catalog = folder.catalog
    parent, child = catalog["raw.documents"], catalog["docs.chunks"]
    assert parent.published is not None
    known = child.lineage()["inputs"]["raw.documents"]
    assert known == {"position": parent.published.position, "version": parent.published.version}
    text = "\n".join(drawing(upstream(catalog, "docs.chunks")))
    assert "rows = own_chunks:chunk" in text
    assert "raw.documents" in text


def test_undoing_a_file_of_the_parent_takes_its_children_out_in_the_same_commit(folder: Folder) -> None:
    folder.deliver("1", [_document(1, "aa.bb")])
    folder.run()
    before = folder.chunks()
    kept = dict(folder.documents)
    folder.deliver("2", [_document(1, "cc"), _document(2, "dd")])
    folder.run()
    undo(None, folder.catalog, source="files", file=str(folder.folder / "landing" / "2.json"))
    folder.documents = kept
    assert folder.chunks() == before == folder.expected()
    assert folder.run().reports == ()


def test_rows_that_land_in_the_parent_before_its_publish_bring_their_children(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.deliver("1", [_document(1, "aa.bb")])
    folder.run()
    late = iter([[{"id": 9, "title": "t", "text": "late", "likes": 0}]])

    def landing_first(*args: Any, **options: Any) -> Any:
        for rows in late:
            folder.catalog["raw.documents"].upsert(rows)
        return publish(*args, **options)

    monkeypatch.setattr("headwater.pipeline.children.publish", landing_first)
    folder.deliver("2", [_document(2, "cc")])
    folder.documents[9] = {"text": "late"}
    folder.run()
    assert folder.chunks() == folder.expected()


def test_another_function_makes_all_children_again_and_keeps_equal_ones(folder: Folder) -> None:
    folder.deliver("1", [_document(1, "aa.bb"), _document(2, "cc,dd")])
    folder.run()
    folder.calls("chunked"), folder.calls("embedded")
    folder.write(CHUNKS.replace('.split(".")', '.replace(",", ".").split(".")'))
    plan = plan_pipeline(read_pipeline(folder.folder / "pipeline.toml"))[1]
    assert [(step.do, step.why) for step in plan.steps if step.do == "expand"] == [
        ("expand", "recomputed: its function changed")
    ]
    folder.run()
    assert (folder.calls("chunked"), folder.calls("embedded")) == (2, 2)
    assert [row[3] for row in folder.chunks()] == ["aa", "bb", "cc", "dd"]


@pytest.mark.parametrize("is_published", [True, False])
def test_a_remake_in_parts_takes_out_the_children_of_parents_that_are_gone(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, is_published: bool
) -> None:
    monkeypatch.setattr(child_rows, "ORPHAN_KEYS", 2)
    folder.deliver("1", [_document(number, f"a{number}.b{number}") for number in range(9)])
    folder.run()
    documents = folder.catalog["raw.documents"]
    documents.delete("id in (1, 4, 7)")
    for number in (1, 4, 7):
        del folder.documents[number]
    if is_published:
        documents.publish()
    folder.write(CHUNKS.replace('.split(".")', '.replace(",", ".").split(".")'))
    parts, run_part = list[child_rows.ParentPart](), child_rows.run_part

    def noted(location: Any, work: child_rows.ChildWork, part: child_rows.ParentPart) -> Any:
        parts.append(part)
        return run_part(location, work, part)

    monkeypatch.setattr(child_rows, "run_part", noted)
    folder.run()
    assert folder.chunks() == folder.expected()
    assert len([part for part in parts if part.kind == child_rows.ORPHANS]) == 16  # of 18 children


def test_children_that_others_changed_are_made_again(folder: Folder) -> None:
    folder.deliver("1", [_document(1, "aa.bb")])
    folder.run()
    folder.catalog["docs.chunks"].delete("text = 'aa'")
    folder.run()
    assert folder.chunks() == folder.expected()


def test_the_function_may_give_the_keys_and_children_may_have_children(tmp_path: Path) -> None:
    keyed = PIPELINE.replace('child_id = ["text"]', 'keys = ["id", "start"]')
    more = """
[table."docs.words"]
from = "docs.chunks"
function = "own_chunks:words"
inputs = ["text"]
schema = "id BIGINT NOT NULL, start BIGINT NOT NULL, word STRING"
expect_or_drop = { short = "length(word) < 3" }
"""
    words = "def words(row):\n    return [{'word': each} for each in row['text'].split()]\n"
    folder = Folder(tmp_path, keyed + more, CHUNKS + words)
    folder.deliver("1", [_document(1, "aa bb.ccc dd"), _document(2, "ee ee")])
    folder.run()
    rows = folder.catalog["docs.words"].serving.to_arrow().to_pylist()
    found = sorted((row["id"], row["start"], row["child_number"], row["word"]) for row in rows)
    assert found == [(1, 0, 0, "aa"), (1, 0, 1, "bb"), (1, 6, 1, "dd"), (2, 0, 0, "ee"), (2, 0, 1, "ee")]
    folder.deliver("2", [_document(2, None, "d")])
    folder.run()
    assert {row["id"] for row in folder.catalog["docs.words"].serving.to_arrow().to_pylist()} == {1}
    sys.modules.pop("own_chunks", None)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('from = "raw.documents"', 'from = "raw.document"', "not a table of this file. Did you mean 'raw.documents'"),
        ('from = "raw.documents"\n', "", "is of a table that a function makes"),
        ('inputs = ["text"]\nschema', "schema", "needs 'inputs'"),
        ("own_chunks:chunk", "own_chunks", "is written 'module:function'"),
        ('child_id = ["text"]', 'child_id = ["words"]', "'words' is not a column that the function gives"),
        ('child_id = ["text"]', 'keys = ["start"]', "begin with those of its parent, id"),
        ('child_id = ["text"]', 'lateness = "1 day"', "rows of a table with `from` follow"),
        ("id BIGINT NOT NULL, text STRING, start", "text STRING, start", "has no 'id', which is a key of its parent"),
        ('from = "raw.documents"', 'from = "docs.chunks"', "in a circle"),
    ],
)
def test_a_child_table_that_cannot_be_is_refused_with_the_reason(old: str, new: str, told: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        parse_pipeline(PIPELINE.replace(old, new), Path())
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("yields", "told"),
    [
        ("yield 3", "it yields a dict for each row"),
        ("yield {'words': 3}", "gives 'words', and its schema has: text, start"),
        ("yield {'start': 'x'}", "of the row {'id': 1}: 'x' does not fit start"),
        ("raise ValueError('no')", "ValueError: no"),
    ],
)
def test_a_function_that_yields_no_rows_of_its_table_is_named_and_nothing_is_published(
    folder: Folder, yields: str, told: str
) -> None:
    folder.write(f"def chunk(row):\n    {yields}\n    yield {{}}\ndef embed(text):\n    return []\n")
    folder.deliver("1", [_document(1, "aa.bb")])
    with pytest.raises(InvalidInputError) as error:
        folder.run()
    assert told in str(error.value)
    assert folder.catalog["raw.documents"].published is None


def test_check_names_a_function_that_is_not_there(folder: Folder) -> None:
    check_pipeline(read_pipeline(folder.folder / "pipeline.toml"))
    folder.write("def other(row):\n    pass\n")
    with pytest.raises(InvalidInputError) as error:
        check_pipeline(read_pipeline(folder.folder / "pipeline.toml"))
    assert '[table."docs.chunks"' in str(error.value)
