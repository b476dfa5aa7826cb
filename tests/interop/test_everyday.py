"""Everyday tasks, one line each, beside the same with LanceDB: both lines run, and give the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lancedb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from lancedb.index import FTS, IvfFlat

import headwater

WORDS = ("river", "lake", "mountain", "sea", "hill", "valley")
ROWS = pa.table(
    {
        "id": pa.array(range(300), pa.int64()),
        "text": [f"{WORDS[n % 6]} {n}" for n in range(300)],
        "price": [float(n % 7) for n in range(300)],
        "vector": pa.FixedSizeListArray.from_arrays(
            pa.array(np.random.default_rng(7).normal(size=1200).astype(np.float32)), 4
        ),
    }
)
MORE = ROWS.slice(0, 3).set_column(0, "id", pa.array([1000, 1001, 5], pa.int64()))
QUERY = [0.1, 0.2, -0.3, 0.4]
FRAME: pd.DataFrame = ROWS.to_pandas()


class Task(NamedTuple):
    """One thing to do: our line, LanceDB's, and what of the answers is compared, if anything."""

    ours: str
    theirs: str
    seen: Callable[[Any], Any] = lambda answer: answer


def ids(found: Any) -> list[int]:
    frame = found.to_pandas() if isinstance(found, pa.Table) else pd.DataFrame(found)
    rows = frame.to_dict("records")
    return sorted(row["id"] for row in rows)


TASKS = {
    "create a table from a frame": Task(
        'db.create_table("made", FRAME).count()',
        'db.create_table("made", FRAME).count_rows()',
    ),
    "create it unless it is there": Task(
        'db.create_table("t", ROWS, mode="exist_ok").count()',
        'db.create_table("t", ROWS, exist_ok=True).count_rows()',
    ),
    "list tables": Task("db.tables()", "db.list_tables().tables"),
    "count rows": Task("t.count()", "t.count_rows()"),
    "count rows by a condition": Task('t.count("price > 3")', 't.count_rows("price > 3")'),
    "look at the first rows": Task("t.head(3)", "t.head(3)", ids),
    "read everything": Task("t.to_pandas()", "t.to_pandas()", ids),
    "read some rows and columns": Task(
        't.to_arrow(["id"], "price = 2")',
        't.search().where("price = 2").select(["id"]).limit(1000).to_arrow()',
        ids,
    ),
    "search by a vector": Task("t.search(QUERY).limit(3).to_pandas()", "t.search(QUERY).limit(3).to_pandas()", ids),
    "search under a condition": Task(
        't.search(QUERY).where("price < 2").limit(4).to_arrow()',
        't.search(QUERY).where("price < 2", prefilter=True).limit(4).to_arrow()',
        ids,
    ),
    "search by cosine": Task(
        't.search(QUERY).distance_type("cosine").limit(5).to_list()',
        't.search(QUERY).distance_type("cosine").limit(5).to_list()',
        ids,
    ),
    "index words": Task('t.create_index("text", "FTS")', 't.create_index("text", config=FTS())'),
    "search words": Task(
        't.search("mountain").limit(100).to_arrow()',
        't.search("mountain", query_type="fts").limit(100).to_arrow()',
        ids,
    ),
    "index vectors": Task(
        't.create_index("vector", "IVF_FLAT", num_partitions=1)',
        't.create_index("vector", config=IvfFlat(num_partitions=1))',
    ),
    "append rows": Task("t.append(MORE).version", "t.add(MORE).version"),
    "insert or update by key": Task(
        't.upsert(MORE, on="id").inserted',
        't.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(MORE).num_inserted_rows',
    ),
    "update rows": Task(
        't.update({"price": 9.0}, where="id < 5").updated',
        't.update(where="id < 5", values={"price": 9.0}).rows_updated',
    ),
    "delete rows": Task('t.delete("id < 5").version', 't.delete("id < 5").version'),
    "add a computed column": Task(
        't.add_columns({"twice": "price * 2"})', 't.add_columns({"twice": "price * 2"})', lambda answer: None
    ),
    "drop a column": Task('t.drop_columns(["price"])', 't.drop_columns(["price"])', lambda answer: None),
    "list versions": Task("[each.version for each in t.versions()]", '[each["version"] for each in t.list_versions()]'),
    "tag a version": Task("t.tags.update(best=1)", 't.tags.create("best", 1)'),
    "go back to a version": Task("t.restore(1)", "t.restore(1)"),
    "drop a table": Task('db.drop_table("t")', 'db.drop_table("t")'),
}
NEEDS_WORDS = "search words"


@pytest.mark.parametrize("name", TASKS)
def test_a_task_takes_one_line_here_and_there_and_does_the_same(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    ours, theirs = headwater.Catalog(str(tmp_path / "ours")), lancedb.connect(tmp_path / "theirs")
    mine, other = ours.create_table("t", ROWS), theirs.create_table("t", ROWS)
    if name == NEEDS_WORDS:
        eval(TASKS["index words"].ours, {"t": mine})
        eval(TASKS["index words"].theirs, {"t": other, "FTS": FTS})
    known = {"FRAME": FRAME, "ROWS": ROWS, "MORE": MORE, "QUERY": QUERY, "FTS": FTS, "IvfFlat": IvfFlat}
    done = eval(task.ours, {"db": ours, "t": mine, **known})
    assert task.seen(done) == task.seen(eval(task.theirs, {"db": theirs, "t": other, **known}))
    assert ours.tables() == theirs.list_tables().tables
    if "t" in ours:
        assert ids(ours["t"].to_arrow()) == ids(theirs.open_table("t").to_arrow())


def test_there_are_twenty_tasks_and_none_is_longer_here() -> None:
    assert len(TASKS) >= 20
    assert [name for name, task in TASKS.items() if len(task.ours) > len(task.theirs) + 5] == []
