"""Sessions that the command line starts: they know no catalog, and have the jar where nobody says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.spark import session
from headwater.spark.build import JarNotBuiltError

ARRANGED = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ARRANGED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "this-python")
    monkeypatch.setattr(session, "ensure_jar", lambda: Path("the.jar"))


def test_a_session_on_this_machine_has_the_jar_and_this_python() -> None:
    found = session.own_settings("local[*]")
    assert (found["spark.jars"], found["spark.headwater.python"]) == ("the.jar", "this-python")


def test_a_cluster_and_a_spark_that_somebody_has_arranged_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.own_settings("spark://host:7077") == {}
    for name in ARRANGED:
        with monkeypatch.context() as told:
            told.setenv(name, "something")
            assert session.own_settings("local[2]") == {}


@pytest.mark.parametrize("missing", [None, JarNotBuiltError("no javac")], ids=["none", "not built"])
def test_without_a_jar_there_is_a_session_all_the_same(monkeypatch: pytest.MonkeyPatch, missing: object) -> None:
    def ensure() -> None:
        if isinstance(missing, Exception):
            raise missing

    monkeypatch.setattr(session, "ensure_jar", ensure)
    assert "spark.jars" not in session.own_settings("local")
