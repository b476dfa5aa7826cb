"""Stream tables in transactions, alike on disk and through a server: what is landed and published together."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import Catalog
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
)
from tests.catalog.samples import SCHEMA, names


def test_what_two_transactions_land_in_a_table_never_conflicts(either: Catalog) -> None:
    either.create_stream_table("s", SCHEMA, keys=["id"])
    with either.transaction() as one, either.transaction() as other:
        one["s"].upsert([{"id": 1}])
        other["s"].upsert([{"id": 2}])
    assert either["s"].count() == 2


def test_a_transaction_publishes_what_it_lands_at_its_own_slot(either: Catalog) -> None:
    for name in ("s", "t"):
        either.create_stream_table(name, SCHEMA, keys=["id"], properties={"history": "scd2"} if name == "t" else {})
    either["s"].upsert([{"id": 1, "name": "Ada"}])
    slot = either.slot
    with either.transaction("land and publish") as tx:
        tx["s"].upsert([{"id": 1, "name": "Ada L."}, {"id": 2, "name": "Grace"}])
        tx["t"].evolve(add={"more": "int64"})
        tx["t"].upsert([{"id": 3, "name": "Mary", "more": 1}])
        assert [each.position for each in tx.publish(["s", "t"])] == [2, 1]
        assert (tx["s"].published.position, names(tx["s"].to_arrow())) == (2, {1: "Ada L.", 2: "Grace"})
        with pytest.raises(InvalidInputError, match="named twice"):
            tx.publish(["s", "s"])
        assert not either["s"].published
    assert either.slot == slot + 1
    assert names(either["s"].serving.to_arrow()) == {1: "Ada L.", 2: "Grace"}
    assert (either["s"].position, either["s"].published.position, either["s"].count()) == (2, 2, 2)
    assert either["t"].serving.to_arrow().column("more").to_pylist() == [1]
    assert either["t__history"].count() == 1
    assert either.verify() == []


def test_a_transaction_publishes_a_table_as_often_as_it_likes_and_shows_no_half_of_what_it_lands(
    either: Catalog,
) -> None:
    options: dict[str, Any] = {"sequence": ["at"], "properties": {"history": "scd2", "late": "quarantine"}}
    stream = either.create_stream_table("s", pa.schema([("id", pa.int64()), ("at", pa.int64())]), ["id"], **options)
    stream.upsert([{"id": 1, "at": 5}])
    with suppress(ZeroDivisionError), either.transaction() as tx:
        for place in range(2):
            tx["s"].upsert([{"id": 1, "at": 6 + place}])
            tx["s"].publish()
        raise ZeroDivisionError
    assert (stream.published, stream.position) == (None, 1)
    with either.transaction("twice") as tx:
        assert tx["s"].publish().position == 1
        tx["s"].upsert([{"id": 1, "at": 6}, {"id": 2, "at": 6}, {"id": 3, "at": 6}])
        assert tx["s"].publish().position == 2
        tx["s"].upsert([{"id": 1, "at": 4}, {"id": 2, "at": 7}])
        tx["s"].delete([{"id": 3, "at": 8}])
        tx["s"].evolve(add={"more": "int64"})
        done = tx["s"].publish()
        assert (done.position, done.late, tx["s"].publish().version) == (4, 1, done.version)
        assert sorted(row["id"] for row in tx["s"].serving) == [1, 2]
    shown = stream.serving
    assert [(row["id"], row["at"]) for row in sorted(shown, key=lambda row: row["id"])] == [(1, 6), (2, 7)]
    counts = {len(shown.at(each.version)) for each in shown.versions()}
    assert counts == {1, 2}
    assert either["s__quarantine"].count() == 1
    assert either["s__history"].count() == 5
    stream.upsert([{"id": 9, "at": 9}])
    assert (stream.publish().version > done.version, stream.serving.count()) == (True, 3)
    assert either.verify() == []


def test_a_transaction_that_publishes_a_table_between_two_landings_is_refused_and_published_again_it_is_not(
    either: Catalog,
) -> None:
    streams = [either.create_stream_table(name, SCHEMA, keys=["id"]) for name in ("s", "t")]
    streams[0].upsert([{"id": 1}])
    slot = either.slot

    def land(tx: Any) -> None:
        tx["s"].publish()  # of a position before the transaction: that one stays
        tx.create_stream_table("gone", SCHEMA, keys=["id"])
        for name in ("s", "t", "gone"):
            tx[name].upsert([{"id": 2}])
        tx.publish(["t", "gone"])
        for name in ("t", "gone"):
            tx[name].upsert([{"id": 3}])
        tx.drop_table("gone")

    with pytest.raises(InvalidInputError, match="publishes t and lands rows in it afterwards"):
        either.run(land)
    assert (either.slot, [each.position for each in streams], either["t"].published) == (slot, [1, 0], None)
    with either.transaction() as tx:
        land(tx)
        tx["t"].publish()
    assert (either.slot, [each.position for each in streams]) == (slot + 1, [2, 2])
    assert [(each.published.position, each.serving.count()) for each in streams] == [(1, 1), (2, 2)]
    assert {len(streams[1].serving.at(each.version)) for each in streams[1].serving.versions()} == {2}
    assert either.verify() == []


def test_a_version_of_an_open_transaction_has_no_final_name_whoever_reads_it_there(
    either: Catalog, tmp_path: Path
) -> None:
    def shown() -> list[str]:
        return sorted(path.name for path in (tmp_path / "lake").rglob("_versions/*.manifest"))

    stream = either.create_stream_table("s", SCHEMA, keys=["id"])
    stream.upsert([{"id": 1}])
    stream.publish()
    before = shown()
    with suppress(ZeroDivisionError), either.transaction() as tx:
        tx["s"].upsert([{"id": 2}])
        version = tx["s"].publish().version
        tx["s"].serving.tags["new"] = version
        assert (tx["s"].serving.at(tag="new").count(), len(tx["s"].serving.versions())) == (2, version)
        assert shown() == before
        raise ZeroDivisionError
    assert (shown(), either.verify()) == (before, [])


def test_no_tag_stands_on_a_version_with_half_of_what_a_transaction_lands(either: Catalog) -> None:
    stream = either.create_stream_table("s", SCHEMA, keys=["id"])
    with either.transaction() as tx:
        tx["s"].upsert([{"id": 1}])
        tx["s"].serving.tags["half"] = tx["s"].publish().version
        tx["s"].upsert([{"id": 2}])
        with pytest.raises(InvalidInputError, match="The tag 'half' stands on version"):
            tx["s"].publish()
        del tx["s"].serving.tags["half"]
        tx["s"].serving.tags["whole"] = tx["s"].publish().version
    assert (stream.serving.at(tag="whole").count(), list(stream.serving.tags)) == (2, ["whole"])
    assert either.verify() == []


def test_tables_and_their_quarantines_are_published_by_one_transaction_in_any_order(either: Catalog) -> None:
    stream = either.create_stream_table("s", SCHEMA, keys=["id"], sequence=["at"], properties={"late": "quarantine"})
    stream.upsert([{"id": 1, "at": 5}])
    with either.transaction() as tx:
        tx["s"].ingest([{"id": 1, "at": 4}, {"id": None, "at": 4}])
        assert [each.position for each in tx.publish(["s__quarantine", "s"])] == [2, 2]
    assert sorted(row["reason"] for row in either["s__quarantine"].serving) == ["late", "null_key"]
    assert either.verify() == []


def test_a_publish_in_a_transaction_is_bound_to_the_log_only_where_that_lands_too(either: Catalog) -> None:
    stream = either.create_stream_table("s", SCHEMA, keys=["id"])
    stream.upsert([{"id": 1}])
    with either.transaction() as tx:
        tx["s"].publish()
        stream.upsert([{"id": 2}])
    assert (stream.published.position, stream.position) == (1, 2)
    landing, publishing = either.transaction(), either.transaction()
    inside = landing.__enter__()
    inside["s"].upsert([{"id": 3}])
    inside["s"].publish()
    publishing.__enter__()["s"].publish()
    stream.upsert([{"id": 4}])
    stream.publish()
    for overtaken in (landing, publishing):
        with pytest.raises(ConcurrentModificationError, match=r"\(s\)"):
            overtaken.__exit__(None, None, None)
    assert (stream.published.position, stream.count(), either.verify()) == (3, 3, [])
