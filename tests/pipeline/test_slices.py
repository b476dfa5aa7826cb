"""Views that follow the changes of their inputs: the rows that their SQL gives, and nothing else is looked at."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog import Catalog
from headwater.pipeline.facts import moment_of
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.planning import OTHER_DIALECT, sql_digest, why_whole
from headwater.pipeline.view_tables import MadeView, remember
from headwater.pipeline.views import ViewMoment, _Slices, make_view
from headwater.sql.slicing import NotInSlicesError, slicing_of

duckdb = pytest.importorskip("duckdb")

DAY = datetime(2026, 1, 1)
ORDERS = {"id": "bigint", "customer": "bigint", "day": "timestamp_ntz", "total": "decimal(9,2)"}
PEOPLE = {"id": "bigint", "name": "string", "city": "string"}
CITIES = {"city": "string", "land": "string"}
VIEWS = {
    "sums": ("SELECT customer, sum(total) AS spent, count(*) AS n FROM raw.orders GROUP BY customer", "customer"),
    "days": (
        "SELECT CAST(date_trunc('month', day) AS DATE) AS m, max(total) AS top FROM raw.orders o WHERE total > 3 "
        "GROUP BY ALL",
        "m",
    ),
    "pairs": (
        "SELECT customer % 3 AS k, customer AS c, min(id) AS i FROM raw.orders GROUP BY 1, 2 HAVING i > 2",
        "k c",
    ),
    "rows": ("SELECT *, total * 2 AS twice FROM raw.orders WHERE total > 5 ORDER BY id", "id"),
    "inner": (
        "SELECT o.id, p.name, total FROM raw.orders o JOIN raw.people p ON o.customer = p.id AND p.name > 'n2'",
        "id",
    ),
    "left": (
        "SELECT p.id AS person, p.name, c.land, count(o.id) AS n, sum(o.total) AS s FROM raw.people AS p "
        "LEFT JOIN raw.orders AS o ON p.id = o.customer LEFT JOIN raw.cities c ON c.city = p.city GROUP BY ALL",
        "person",
    ),
    "none": (
        "SELECT p.id FROM raw.people p LEFT JOIN raw.orders o ON o.customer = p.id WHERE o.id IS NULL",
        "id",
    ),
    "chain": (
        "SELECT o.customer, max(land) AS land, count(*) AS n FROM raw.orders o JOIN raw.people p ON p.id = o.customer "
        "JOIN raw.cities c USING (city) GROUP BY o.customer",
        "customer",
    ),
    "log": ("SELECT DISTINCT kind FROM raw.log", "kind"),
    "by_land": (
        "SELECT c.land, count(*) AS n FROM raw.people p JOIN raw.cities c ON p.city = c.city GROUP BY 1",
        "land",
    ),
}


class World:
    """Tables that change at random, and views over them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.catalog = Catalog(str(folder / "lake"))
        for name, schema, keys in (("orders", ORDERS, "id"), ("people", PEOPLE, "id"), ("cities", CITIES, "city")):
            self.catalog.create_stream_table(f"raw.{name}", schema, keys=keys)
        self.catalog.create_stream_table("raw.log", {"kind": "bigint", "note": "string"})
        self.said: list[str] = []

    def change(self, times: int) -> None:
        pick = self.random.randrange
        for _ in range(times):
            orders, people, cities = (self.catalog[f"raw.{name}"] for name in ("orders", "people", "cities"))
            rows = [
                {
                    "id": pick(40),
                    "customer": pick(12) or None,
                    "day": datetime(2026, 1 + pick(9), 1),
                    "total": f"{pick(1000) / 100:.2f}",
                }
                for _ in range(pick(1, 6))
            ]
            pick_one = pick(7)
            if pick_one < 3:
                orders.upsert([{**row, "customer": row["customer"] or 1} for row in rows])
            elif pick_one == 3:
                orders.delete([{"id": pick(40)} for _ in range(3)])
            elif pick_one == 4:
                people.upsert([{"id": pick(12), "name": f"n{pick(5)}", "city": f"c{pick(4)}"} for _ in range(3)])
            elif pick_one == 5:
                cities.upsert([{"city": f"c{pick(4)}", "land": f"l{pick(3)}"}])
                people.delete([{"id": pick(12)}])
                people.upsert([{"id": pick(12), "name": "n3", "city": f"c{pick(4)}"}])
                cities.delete([{"city": f"c{pick(4)}"}])
            else:
                self.catalog["raw.log"].append([{"kind": pick(20), "note": "x"}])
        if pick(2):
            self.catalog.publish(["raw.orders", "raw.people", "raw.cities", "raw.log"])

    def view(self, name: str) -> ViewSpec:
        sql, keys = VIEWS[name]
        return ViewSpec(f"mart.{name}", sql, tuple(keys.split()))

    def make(self, name: str) -> MadeView:
        view, slot = self.view(name), self.catalog.slot
        inputs = [each for each in ("raw.cities", "raw.log", "raw.orders", "raw.people") if each in view.sql]
        at = self.catalog.at(slot)
        made = make_view(self.catalog, view, ViewMoment(at, slot, inputs), None, self.said.append)
        remember(made, view, {each: moment_of(at, each) for each in inputs})
        return made

    def expected(self, name: str) -> list[str]:
        """What the SQL gives of all rows."""
        connection = duckdb.connect()
        connection.execute("CREATE SCHEMA raw")
        for each in ("orders", "people", "cities", "log"):
            connection.register(f"_{each}", self.catalog[f"raw.{each}"].to_arrow())
            connection.execute(f"CREATE TABLE raw.{each} AS FROM _{each}")
        return shown(connection.sql(VIEWS[name][0]).to_arrow_table())


def shown(rows: pa.Table) -> list[str]:
    return sorted(str({name: str(row[name]) for name in sorted(row)}) for row in rows.to_pylist())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 9))])
def test_views_in_slices_have_the_rows_that_their_sql_gives(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    world.change(12)
    for name in VIEWS:
        world.make(name)
        assert shown(world.catalog[f"mart.{name}"].to_arrow()) == world.expected(name), name
    for turn in range(3):
        world.change(1 + turn * 2)
        if turn == 1:
            landed = [delta for delta in world.catalog["raw.orders"].deltas() if delta.files]
            world.catalog["raw.orders"].undo(txn=landed[-1].txn)
        for name in VIEWS:
            world.make(name)
            assert shown(world.catalog[f"mart.{name}"].to_arrow()) == world.expected(name), (name, turn)
    assert world.said == []


def test_two_inputs_that_part_at_once_are_looked_at_as_they_were(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    orders, people, cities = (world.catalog[f"raw.{name}"] for name in ("orders", "people", "cities"))
    orders.upsert([{"id": n, "customer": n, "day": DAY, "total": "1.00"} for n in (1, 2)])
    people.upsert([{"id": n, "name": "n", "city": f"c{n}"} for n in (1, 2)])
    cities.upsert([{"city": f"c{n}", "land": f"l{n}"} for n in (1, 2)])
    assert world.make("chain").landed.rows == 2
    people.upsert([{"id": 1, "name": "n", "city": "nowhere"}])
    cities.delete([{"city": "c1"}])
    assert (world.make("chain").landed.rows, world.said) == (1, [])
    assert shown(world.catalog["mart.chain"].to_arrow()) == world.expected("chain")


def test_only_rows_of_changed_keys_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, 1)
    rows = [{"id": n, "customer": n % 500, "day": DAY, "total": "1.00"} for n in range(5000)]
    world.catalog["raw.orders"].upsert(rows)
    world.catalog["raw.people"].upsert([{"id": n, "name": f"n{n}", "city": "c0"} for n in range(500)])
    world.catalog["raw.cities"].upsert([{"city": f"c{n}", "land": f"l{n}"} for n in range(300)])
    world.catalog.publish(["raw.orders", "raw.people", "raw.cities"])
    for name in ("sums", "left", "chain"):
        world.make(name)
    world.catalog["raw.orders"].upsert([{"id": 7, "customer": 7, "day": DAY, "total": "2.00"}])
    world.catalog.publish(["raw.orders"])
    read: list[tuple[str, int]] = []
    real = _Slices._read

    def counted(self: _Slices, name: str, *rest: Any) -> pa.Table:
        found = real(self, name, *rest)
        read.append((name, found.num_rows))
        return found

    monkeypatch.setattr(_Slices, "_read", counted)
    for name in ("sums", "left", "chain"):
        assert world.make(name).landed.rows == (1 if name != "chain" else 0)
        assert shown(world.catalog[f"mart.{name}"].to_arrow()) == world.expected(name)
    assert max(rows for _, rows in read) <= 10
    assert {name for name, _ in read} == {"raw.orders", "raw.people", "raw.cities"}


@pytest.mark.parametrize(
    ("sql", "keys", "why"),
    [
        ("SELECT id, row_number() OVER () AS n FROM raw.t", ["id"], "a window function"),
        ("SELECT id FROM raw.t LIMIT 3", ["id"], "LIMIT"),
        ("SELECT id, now() AS at FROM raw.t", ["id"], "now may give"),
        ("SELECT id, random() AS at FROM raw.t", ["id"], "random may give"),
        ("SELECT id FROM raw.t WHERE x > (SELECT avg(x) FROM raw.t)", ["id"], "a subquery"),
        ("SELECT id FROM raw.t WHERE id IN (SELECT id FROM raw.u)", ["id"], "a subquery"),
        ("WITH a AS (SELECT * FROM raw.t) SELECT id FROM a", ["id"], "a WITH"),
        ("SELECT id FROM raw.t UNION SELECT id FROM raw.u", ["id"], "not one SELECT"),
        ("SELECT 1 AS id, sum(x) AS s FROM raw.t", ["id"], "not of one table"),
        ("SELECT t.id, u.id AS v FROM raw.t JOIN raw.u ON t.x = u.x", ["id", "v"], "several tables"),
        ("SELECT u.id FROM raw.t LEFT JOIN raw.u ON t.x = u.x", ["id"], "LEFT JOIN may lack"),
        ("SELECT t.id FROM raw.t FULL JOIN raw.u ON t.x = u.x", ["id"], "not INNER or LEFT"),
        ("SELECT t.id FROM raw.t, raw.u WHERE t.x = u.x", ["id"], "not INNER or LEFT"),
        ("SELECT a.id FROM raw.t a JOIN raw.t b ON a.x = b.x", ["id"], "twice"),
        ("SELECT x, count(*) AS n FROM raw.t GROUP BY ROLLUP (x)", ["x"], "grouping sets"),
        ("SELECT id FROM (SELECT * FROM raw.t) AS s", ["id"], "a subquery"),
        ("SELECT DISTINCT ON (x) id, x FROM raw.t", ["id"], "DISTINCT"),
        ("SELECT id + u.x AS k FROM raw.t JOIN raw.u USING (x)", ["k"], "not told as a column of one table"),
        ("SELECT x AS y, y AS id FROM raw.t", ["id"], "not told as a column"),
        ("SELECT max(id) AS id, x FROM raw.t GROUP BY x", ["id"], "an aggregate, max"),
        ("SELECT *, x AS id FROM raw.t", ["id"], "not told by one expression"),
        ("SELECT raw.t.id FROM raw.t JOIN more.t ON raw.t.x = more.t.x", ["id"], "two of its tables are told by t"),
        ("PIVOT raw.t ON x USING sum(id)", ["id"], "one SELECT"),
        ("SELECT id FROM raw.t; SELECT id FROM raw.t", ["id"], "one SELECT"),
        ("SELEC id FROM raw.t", ["id"], "syntax error"),
    ],
)
def test_sql_that_looks_across_keys_is_computed_as_a_whole(sql: str, keys: Sequence[str], why: str) -> None:
    with pytest.raises(NotInSlicesError, match=why):
        slicing_of(sql, keys, {"raw.t": ["id", "x"], "raw.u": ["id", "x"], "more.t": ["id", "x"]})


@pytest.mark.parametrize(
    ("sql", "key", "why"),
    [
        ("SELECT `the kind`, count(*) AS n FROM a.b.t GROUP BY ALL", "the kind", None),
        ("SELECT CAST(note AS INT) AS k, count(*) AS n FROM a.b.t WHERE note < 'a' GROUP BY 1", "k", "cannot be told"),
    ],
    ids=["names of three parts and of two words", "a key that only some rows have"],
)
def test_views_with_odd_names_and_keys_follow_their_input(tmp_path: Path, sql: str, key: str, why: str | None) -> None:
    catalog, said = Catalog(str(tmp_path / "lake")), list[str]()
    table = catalog.create_stream_table("a.b.t", {"id": "int", "the kind": "string", "note": "string"}, keys="id")
    view = ViewSpec("mart.v", sql, (key,))
    for rows in ([(1, "x", "1"), (2, "y", "word")], [(3, "x", "1"), (2, "it's", "other")]):
        table.upsert([{"id": id, "the kind": kind, "note": note} for id, kind, note in rows])
        at = catalog.at(catalog.slot)
        made = make_view(catalog, view, ViewMoment(at, catalog.slot, ["a.b.t"]), None, said.append)
        remember(made, view, {"a.b.t": moment_of(at, "a.b.t")})
    connection = duckdb.connect()
    connection.register("t", table.to_arrow())
    oracle = sql.replace("a.b.t", "t").replace("`", '"')
    assert shown(catalog["mart.v"].to_arrow()) == shown(connection.sql(oracle).to_arrow_table())
    assert [text for text in said if why is None or why not in text] == []
    assert len(said) == (why is not None)


def test_a_view_that_others_wrote_to_or_whose_input_became_another_is_computed_as_a_whole(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.change(9)
    world.make("sums")
    world.catalog["mart.sums"].upsert([{"customer": 99, "spent": "1.00", "n": 1}])
    world.catalog["raw.orders"].upsert([{"id": 1, "customer": 1, "day": DAY, "total": "1.00"}])
    world.make("sums")
    assert world.said == ["view mart.sums: recomputed, its rows were changed by others"]
    world.catalog["raw.orders"].evolve(add={"more": pa.int64()})
    world.make("sums")
    world.catalog.drop_table("raw.orders")
    world.catalog.create_stream_table("raw.orders", ORDERS, keys="id")
    world.catalog["raw.orders"].upsert([{"id": 1, "customer": 5, "day": DAY, "total": "1.00"}])
    world.make("sums")
    assert world.said[1:] == ["view mart.sums: recomputed, raw.orders became another"] * 2
    assert shown(world.catalog["mart.sums"].to_arrow()) == world.expected("sums")


def test_a_view_whose_dialect_was_not_recorded_is_computed_as_a_whole() -> None:
    view = ViewSpec("v", "SELECT id FROM t", ("id",))
    assert why_whole(view, {"sql": sql_digest(view), "tables": {}}, 1, {}, ()) == OTHER_DIALECT
