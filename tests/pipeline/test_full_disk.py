"""A disk that is full: the source that needs it says so in one sentence, and nothing is lost or half there."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.catalog import Catalog
from headwater.errors import InternalError
from headwater.pipeline import run_pipeline
from headwater.pipeline.live.live_source import live_state
from headwater.pipeline.run_records import runs
from tests.pipeline.listed_source import Listed, listed


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 48 MB; skips, saying why, where none may be mounted."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(tmp_path)], capture_output=True)
    if done.returncode:
        pytest.skip("this user may not mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_is_one_sentence_and_the_next_run_takes_what_is_left(disk: Path) -> None:
    chance = random.Random(1)
    many = [{"id": id, "n": chance.getrandbits(60)} for id in range(400_000)]
    shop = Listed([{"a": many[:10]}, {"a": many}])
    with listed(disk, shop=shop) as pipeline:
        (disk / "ballast").write_bytes(bytes(46 << 20))
        with pytest.raises(InternalError, match="No space left on device"):
            run_pipeline(pipeline)
        catalog = Catalog(str(disk / "lake"))
        assert "No space left on device" in runs(catalog)[0]["error"]
        assert (catalog["raw.a"].count(), live_state(catalog, "shop").offset) == (10, 1)
        assert shop.acknowledged == [1]
        (disk / "ballast").unlink()
        run_pipeline(pipeline)
        assert catalog["raw.a"].serving.count() == len(many)
        assert catalog.verify() == []


def test_a_publish_that_finds_the_disk_full_says_so_and_is_done_later(disk: Path) -> None:
    catalog = Catalog(str(disk / "lake"))
    table = catalog.create_stream_table("raw.a", "id BIGINT, n BIGINT", keys="id")
    table.upsert([{"id": -1, "n": 0}])
    table.publish()
    chance = random.Random(1)
    table.upsert([{"id": id, "n": chance.getrandbits(60)} for id in range(400_000)])
    free = shutil.disk_usage(disk).free
    (disk / "ballast").write_bytes(bytes(free - (1 << 20)))
    with pytest.raises(InternalError, match="No space left on device"):
        table.publish()
    assert table.serving.count() == 1
    (disk / "ballast").unlink()
    table.publish()
    assert table.serving.count() == 400_001
