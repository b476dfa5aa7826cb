"""Against a source database: merge-on-read, published table, replayed feed and open history rows agree with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError
from headwater.pipeline import ingest
from tests.pipeline.source_database import create, follow


@pytest.mark.parametrize(("seed", "rhythm"), [(1, 1), (2, 3), (3, 99)])
def test_every_way_to_read_agrees_with_the_source_however_its_changes_were_delivered(
    tmp_path: Path, seed: int, rhythm: int
) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    create(catalog)
    (tmp_path / "in").mkdir()
    follow(catalog, tmp_path / "in", seed, rhythm)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 22))
def test_it_agrees_for_many_databases(tmp_path: Path, seed: int) -> None:
    test_every_way_to_read_agrees_with_the_source_however_its_changes_were_delivered(tmp_path, seed, 1 + seed % 4)


def test_debezium_into_a_keyed_table_without_an_order_is_refused_as_a_job_too(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_stream_table("raw.t", {"id": "bigint"}, keys=["id"])
    (tmp_path / "a.json").write_text('{"op": "c", "after": {"id": 1}}\n')
    with pytest.raises(InvalidInputError, match="need a sequence"):
        ingest(None, catalog, "raw.t", tmp_path / "a.json", "debezium")
    assert catalog["raw.t"].position == 0
