"""A pipeline whose file, functions or tables became others: it follows or says what to do; a plan holds or is none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog import Catalog
from headwater.cli import main
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.pipeline import plan_pipeline, publish, read_pipeline, run_pipeline, running
from headwater.streams.serving.derived_columns import modules_of
from headwater.work.tasks import load_modules

pytest.importorskip("duckdb")

SUMS = "SELECT c, sum(x) AS s, max(m) AS m FROM raw.t GROUP BY c"
FILE = """
[pipeline]
name = "p"
catalog = "lake"
[[source]]
name = "s"
path = "in/*.json"
into = "raw.t"
[table."raw.t"]
keys = ["id"]
[table."raw.t".columns.e]
function = "changing:made"
inputs = ["x"]
type = "bigint"
version = "1"
[view."mart.v"]
sql = "{sql}"
keys = {keys}
"""
ROWS = [{"id": number, "c": number % 3, "m": number % 2, "x": number} for number in range(12)]


class Changing:
    """A folder with a pipeline of one table and one view."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").mkdir()
        self.deliver("1", ROWS)
        self.write()
        self.code(0)

    def write(self, sql: str = SUMS, keys: tuple[str, ...] = ("c",)) -> None:
        (self.folder / "p.toml").write_text(FILE.format(sql=sql, keys=json.dumps(keys)))

    def code(self, plus: int) -> None:
        text = f"def made(x):\n    return [value + {plus} for value in x.to_pylist()]\n"
        (self.folder / "changing.py").write_text(text)

    def deliver(self, name: str, rows: list[dict[str, Any]]) -> None:
        (self.folder / "in" / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, **options: Any) -> list[str]:
        return [step.do for step in run_pipeline(read_pipeline(self.folder / "p.toml"), **options).plan.steps]

    @property
    def lake(self) -> Catalog:
        return Catalog(str(self.folder / "lake"))

    def view(self) -> list[dict[str, Any]]:
        fresh, kept = self.lake["mart.v"].to_arrow(), self.lake["mart.v"].serving.to_arrow()
        assert sorted(map(str, fresh.to_pylist())) == sorted(map(str, kept.to_pylist()))
        return sorted(kept.to_pylist(), key=str)


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Changing]:
    yield Changing(tmp_path)
    sys.modules.pop("changing", None)


def test_a_view_has_the_columns_of_its_sql_and_other_keys_or_types_are_made_anew(changing: Changing) -> None:
    changing.run()
    assert changing.view()[0] == {"c": 0, "s": 18, "m": 1}
    changing.write("SELECT c, sum(x) AS s, count(*) AS n FROM raw.t GROUP BY c")
    changing.run()
    assert changing.view()[0] == {"c": 0, "s": 18, "n": 4}
    for sql, keys, told in (
        ("SELECT c, m, sum(x) AS s FROM raw.t GROUP BY c, m", ("c", "m"), "other keys"),
        ("SELECT c, sum(x) / 4 AS s FROM raw.t GROUP BY c", ("c",), "'s'.* is int64, and double"),
    ):
        changing.write(sql, keys)
        before = changing.lake["mart.v"].position
        with pytest.raises(InvalidInputError, match=f"{told}.*--full-refresh mart.v"):
            changing.run()
        assert changing.lake["mart.v"].position == before
        assert changing.run(full_refresh=["mart.v"]) == ["refresh", "view"]
        assert (sum(row["s"] for row in changing.view()), changing.run()) == (66 if len(keys) == 2 else 16.5, [])
        changing.write("SELECT c, sum(x) AS s FROM raw.t GROUP BY c")
        changing.run(full_refresh=["mart.v"])


def test_what_a_view_cannot_hold_is_told_with_its_name(changing: Changing) -> None:
    for sql, told in (
        (
            "SELECT c, sum(x * 4611686018427387904) AS s FROM raw.t GROUP BY c",
            "The SQL of the view mart.v cannot be run: .*[Oo]verflow",
        ),
        ("SELECT CASE WHEN c > 0 THEN c END AS c, 1 AS s FROM raw.t WHERE id < 2", "The view mart.v: .*null_key"),
    ):
        changing.write(sql)
        with pytest.raises(InvalidInputError, match=told):
            changing.run()


def test_a_view_follows_tables_that_were_made_anew_to_the_same_position(changing: Changing) -> None:
    lake = changing.lake
    lake.create_table("dims.d", pa.table({"c": [0, 1, 2], "name": ["a", "b", "c"]}))
    changing.write("SELECT c, name, sum(x) AS s FROM raw.t JOIN dims.d USING (c) GROUP BY c, name")
    changing.run()
    lake.drop_table("dims.d")
    lake.create_table("dims.d", pa.table({"c": [0, 1, 2], "name": ["A", "B", "C"]}))
    assert changing.run() == ["view"]
    assert [row["name"] for row in changing.view()] == ["A", "B", "C"]
    changing.deliver("1", [{"id": 1, "c": 1, "m": 1, "x": 1000}])
    changing.run(full_refresh=["raw.t"], select=["raw.t"])
    assert lake["raw.t"].position == 1
    assert changing.run() == ["view"]
    assert [row["s"] for row in changing.view()] == [1000]
    assert changing.run() == []


def test_a_plan_is_of_the_file_its_functions_and_the_very_tables_it_saw(changing: Changing) -> None:
    def planned() -> str:
        return plan_pipeline(read_pipeline(changing.folder / "p.toml"))[1].id

    ids = [planned()]
    assert planned() == ids[0]
    changing.write(SUMS.replace("sum", "min"))
    ids.append(planned())
    changing.code(1)
    ids.append(planned())
    (changing.folder / "p.toml").write_text((changing.folder / "p.toml").read_text().replace('["id"]', '["id", "c"]'))
    ids.append(planned())
    assert len(set(ids)) == len(ids)
    for old in ids[:-1]:
        with pytest.raises(ConcurrentModificationError, match="does not hold any more"):
            changing.run(plan_id=old)
    assert not changing.lake.is_there
    changing.run(plan_id=ids[-1])
    changing.run()
    changing.deliver("2", ROWS[:1])
    before = planned()
    changing.lake["raw.t"].upsert(ROWS[:2])
    assert planned() != before


def test_a_view_that_two_runs_make_at_once_is_made_again(changing: Changing, monkeypatch: pytest.MonkeyPatch) -> None:
    changing.run()
    older = changing.lake["mart.v"].to_arrow()

    def overtaken(spark: Any, catalog: Catalog, *names: str, **given: Any) -> Any:
        if names == ("mart.v",):  # another run read its inputs before this one did, and lands after it
            catalog["mart.v"].ingest(older, "snapshot", "view")
        return publish(spark, catalog, *names, **given)

    with monkeypatch.context() as patched:
        patched.setattr(running, "publish", overtaken)
        changing.deliver("2", [{"id": 2, "c": 2, "m": 0, "x": 7000}])
        changing.run()
    assert changing.run() == ["view"]
    assert [row["s"] for row in changing.view()] == [18, 22, 24 + 7000]
    assert changing.run() == []


def test_a_function_that_was_edited_is_another_one_in_the_same_process(changing: Changing) -> None:
    def values() -> list[int]:
        return sorted(row["e"] - row["x"] for row in changing.lake["raw.t"].serving.to_arrow().to_pylist())

    changing.run()
    for plus in (10, 200):
        changing.code(plus)
        os.utime(changing.folder / "changing.py", (plus, plus))  # whatever its time says
        assert changing.run() == ["backfill", "view"]
        assert (values(), changing.run()) == ([plus] * 12, [])
    changing.code(3000)
    changing.deliver("2", [{"id": 99, "c": 0, "m": 0, "x": 1}])
    assert changing.run()[:3] == ["ingest", "publish", "backfill"]
    assert values() == [3000] * 13


def test_what_a_function_imports_from_beside_it_travels_with_it(changing: Changing) -> None:
    (changing.folder / "changing.py").write_text(
        "from changing_more import more\n\ndef made(x):\n    return [more(value) for value in x.to_pylist()]\n"
    )
    (changing.folder / "changing_more.py").write_text("def more(value):\n    return value + 7\n")
    changing.run()
    names = ("changing", "changing_more")
    code = modules_of(changing.lake["raw.t"].definition.derived)
    assert {each.name for each in code} == set(names)
    for name in names:
        del sys.modules[name]
    load_modules(code)  # as an executor does, which has no such folder
    assert sys.modules["changing"].made(pa.array([1])) == [8]
    for name in names:
        del sys.modules[name]


def test_an_index_of_another_type_and_a_second_one_are_made_once(changing: Changing) -> None:
    changing.run()
    text = (changing.folder / "p.toml").read_text()
    made: set[tuple[str, str]] = {("id", "BTree")}
    for kinds in (("btree",), ("BITMAP",), ("BITMAP", "BTREE", "zone_map")):
        wanted = "".join(f'[[table."raw.t".index]]\ncolumn = "c"\ntype = "{kind}"\n' for kind in kinds)
        (changing.folder / "p.toml").write_text(text + wanted)
        assert set(changing.run()) <= {"index", "view"}
        indices = changing.lake["raw.t"].serving.indices.values()
        made |= {("c", {"btree": "BTree", "bitmap": "Bitmap", "zone_map": "ZoneMap"}[kind.lower()]) for kind in kinds}
        assert {(*each.columns, each.index_type) for each in indices} == made
        assert (len(indices), changing.run()) == (len(made), [])


def test_a_plan_tells_of_an_index_that_stays_and_of_a_derived_column_that_is_dropped(
    changing: Changing, capsys: pytest.CaptureFixture[str]
) -> None:
    file, where = changing.folder / "p.toml", ["-c", str(changing.folder / "lake")]
    text = file.read_text()
    indices = "".join(f'[[table."raw.t".index]]\ncolumn = "{name}"\ntype = "BTREE"\n' for name in ("c", "m", "e"))
    file.write_text(text + indices)
    changing.run()
    assert plan_pipeline(read_pipeline(file))[1].stays == ()
    derived = text[text.index('[table."raw.t".columns.e]') : text.index("[view")]
    file.write_text(text.replace(derived, "") + '[[table."raw.t".index]]\ncolumn = "m"\n')
    capsys.readouterr()
    assert main(["run", str(file), "--plan"]) == 0
    told = capsys.readouterr().out
    assert "the derived column e is dropped" in told
    assert [line for line in told.splitlines() if line.startswith("stays")] == [
        "stays     raw.t: the file names no BTREE index of c: headwater index raw.t drop c_idx"
    ]
    changing.run()
    assert changing.lake["raw.t"].serving.schema.names == ["id", "c", "m", "x"]
    assert main(["index", *where, "raw.t", "drop", "c_idx"]) == 0
    assert (plan_pipeline(read_pipeline(file))[1].stays, changing.lake["raw.t"].verify()) == ((), [])
    assert sorted(changing.lake["raw.t"].serving.indices) == ["id_idx", "m_idx"]


def test_a_view_follows_a_backfill_that_a_kill_parted_from_it(changing: Changing) -> None:
    changing.write("SELECT c, sum(e) AS s FROM raw.t GROUP BY c")
    changing.run()
    assert (changing.view()[0], changing.run()) == ({"c": 0, "s": 18}, [])
    changing.code(10)
    assert changing.run(select=["raw.t"]) == ["backfill"]  # and no more: as if it had been killed then
    assert changing.run() == ["view"]
    assert (changing.view()[0], changing.run()) == ({"c": 0, "s": 58}, [])
    changing.lake["raw.t"].upsert([{"id": 0, "c": 0, "m": 0, "x": 100}])
    assert changing.run(select=["mart.v"]) == ["view"]
    assert changing.view()[0] == {"c": 0, "s": 48}  # what is not published has no derived values yet
    changing.lake["raw.t"].publish()
    assert (changing.run(), changing.view()[0]) == (["view"], {"c": 0, "s": 158})
    changing.lake["raw.t"].evolve(add={"z": "bigint"})
    assert (changing.run(select=["raw.t"]), changing.run(), changing.run()) == (["publish"], ["view"], [])


def test_a_view_gets_derived_values_that_were_published_while_other_rows_were_not(changing: Changing) -> None:
    changing.write("SELECT c, sum(e) AS s FROM raw.t GROUP BY c")
    changing.run()
    for id, first in ((0, 18), (1, 118)):  # what is not published has no value yet
        changing.lake["raw.t"].upsert([{"id": id, "c": id, "m": 0, "x": 100}])
        changing.run(select=["mart.v"])
        assert changing.view()[0] == {"c": 0, "s": first}
        changing.lake["raw.t"].publish()
    assert (changing.run(), changing.view()[1]) == (["view"], {"c": 1, "s": 100 + 4 + 7 + 10})
