"""Verbs of the catalog as statements of Spark SQL: the same state, log entry and author as in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import SparkSession

from headwater.testing.faces import CASES, Case, ComparedCatalog, filled_in
from tests.spark.catalogs import learn


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComparedCatalog]:
    made = ComparedCatalog(tmp_path_factory.mktemp("faces"))
    learn(spark, "faces", root=made.root, impl="metastore", author=made.author)
    yield made
    made.close()


@pytest.mark.parametrize("case", [case for case in CASES if case.sql and case.role == "admin" != None], ids=str)
def test_a_statement_does_what_the_verb_does(spark: SparkSession, site: ComparedCatalog, case: Case) -> None:
    def ask(site: ComparedCatalog, case: Case, facts: Mapping[str, str]) -> None:
        spark.sql(filled_in(str(case.sql), {**facts, "lake": "faces"})).collect()

    expected, found = site.run(case, "python"), site.run(case, "Spark", ask)
    assert found.code is None
    assert found.state == expected.state
    assert found.log == expected.log
