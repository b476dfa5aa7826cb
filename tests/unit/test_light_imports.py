"""What a look-up at the command line does not need is not imported, and what is deferred works as ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])


def run(program: str) -> str:
    """A program in an interpreter of its own, where nothing has been imported yet."""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.mark.parametrize("module", ["headwater", "headwater.errors", "headwater.metastore", "headwater.store"])
def test_the_metastore_needs_neither_pylance_nor_the_protocols_package(module: str) -> None:
    heavy = run(
        f"import sys, {module}; print([m for m in ('lance', 'lance_namespace', 'pydantic') if m in sys.modules])"
    )
    assert heavy == "[]"


def test_the_worker_that_takes_rows_into_a_log_needs_neither_pylance_nor_pandas_nor_the_rest_client() -> None:
    heavy = run(
        "import sys, headwater.spark.worker, headwater.streams.sources.intake\n"
        "print([m for m in ('lance', 'pandas', 'headwater.rest') if m in sys.modules])"
    )
    assert heavy == "[]"


def test_our_errors_are_the_protocols_errors_whoever_is_imported_first() -> None:
    for first, second in (("headwater.errors", "lance_namespace"), ("lance_namespace", "headwater.errors")):
        same = "headwater.errors.TableNotFoundError is lance_namespace.TableNotFoundError"
        also = "lance_namespace.errors.TableNotFoundError is lance_namespace.TableNotFoundError"
        assert run(f"import {first}, {second}, lance_namespace; print({same}, {also})") == "True True"


def test_validators_are_built_when_they_are_used_and_then_check() -> None:
    assert run(
        "import headwater, pydantic\n"
        "before = pydantic.validate_call, pydantic.BaseModel.model_config\n"
        "import lance_namespace as api\n"
        "print(api.QueryTableRequest.__pydantic_complete__, before == (pydantic.validate_call, "
        "pydantic.BaseModel.model_config))\n"
        "print(api.QueryTableRequest(k=1, vector={'single_vector': [1.0]}).vector.single_vector)\n"
        "try: api.QueryTableRequest(k='many', vector={})\n"
        "except pydantic.ValidationError: print('refused')\n"
        "from lance_namespace_urllib3_client import TableApi\n"
        "try: TableApi().describe_table(7, None)\n"
        "except pydantic.ValidationError: print('refused')\n"
    ).splitlines() == ["False True", "[1.0]", "refused", "refused"]


def test_other_threads_find_the_lazy_finder_while_it_looks_for_a_module() -> None:
    shown = run(
        "import sys, headwater\n"
        "mine = next(each for each in sys.meta_path if type(each).__name__ == '_Finder')\n"
        "seen = []\n"
        "class Probe:\n"
        "    def find_spec(self, name, path=None, target=None): seen.append(mine in sys.meta_path)\n"
        "sys.meta_path.insert(0, Probe())\n"
        "sys.meta_path.insert(0, sys.meta_path.pop(sys.meta_path.index(mine)))\n"
        "import lance_namespace_urllib3_client.models.table_version as found\n"
        "print(len(seen) > 3, all(seen), found.TableVersion.__name__)\n"
    )
    assert shown == "True True TableVersion"


def test_the_models_of_the_protocol_are_imported_when_somebody_names_them() -> None:
    shown = run(
        "import sys, headwater\n"
        "import lance_namespace as api\n"
        "import lance_namespace_urllib3_client as client\n"
        "loaded = lambda: sum(name.startswith('lance_namespace_urllib3_client.') for name in sys.modules)\n"
        "print(loaded() < 10)\n"
        "made = api.CreateTableRequest\n"
        "print(made is client.models.CreateTableRequest is client.CreateTableRequest, loaded() < 20)\n"
        "print('CreateTableRequest' in dir(api), 'TableApi' in dir(client), hasattr(api, 'NoSuchName'))\n"
        "from lance_namespace import *\n"
        "from lance_namespace_urllib3_client.models import *\n"
        "print(ListTablesRequest(id=['a']).id, FtsQuery is client.FtsQuery, client.api_client.ApiClient.__name__)\n"
    ).splitlines()
    assert shown == ["True", "True True", "True True False", "['a'] True ApiClient"]


def test_an_importer_of_headwater_gets_the_protocol_as_it_is() -> None:
    shown = run(
        "import typing, headwater, lance_namespace as api\n"
        "import inspect\n"
        "asked, answered = api.CreateTableRequest, api.CreateTableResponse\n"
        "create = api.LanceNamespace.create_table\n"
        "hints = typing.get_type_hints(create)\n"
        "print(hints['request'] is asked, hints['return'] is answered, hints['request_data'])\n"
        "print(inspect.signature(create).parameters['request'].annotation is asked)\n"
        "print(create.__annotations__['request'] is asked, asked in create.__annotations__.values())\n"
        "import pandas\n"
    )
    assert shown.splitlines() == ["True True <class 'bytes'>", "True", "True True"]


def test_the_first_look_up_of_a_catalog_imports_neither_pylance_nor_pandas(tmp_path: Path) -> None:
    shown = run(
        "import sys, headwater\n"
        f"catalog = headwater.Catalog({str(tmp_path / 'lake')!r})\n"
        "catalog.create_namespace('prod')\n"
        "print('prod.t' in catalog, catalog.namespaces())\n"
        "print([name for name in ('lance', 'pandas', 'pyarrow.compute', 'pyarrow.dataset', 'pyarrow.fs', "
        "'pyarrow.parquet', 'urllib3') if name in sys.modules])\n"
        "print([name for name in sys.modules if name.startswith(('headwater.sql', 'headwater.rest'))])\n"
        "print([name for name in sys.modules if name.startswith('headwater.streams.')])\n"
    )
    assert shown.splitlines() == ["False ['prod']", "[]", "[]", "['headwater.streams.layout']"]


def test_no_garbage_is_collected_while_the_library_is_imported_and_collections_go_on_after_that() -> None:
    assert (
        run(
            "import gc, headwater\n"
            "seen = []\n"
            "gc.callbacks.append(lambda phase, told: seen.append(phase))\n"
            "headwater.Catalog\n"
            "print(len(seen) < 10, gc.isenabled(), gc.get_freeze_count())"
        )
        == "True True 0"
    )
    assert (
        run(
            "import gc, headwater\n"
            "gc.freeze(); gc.disable(); frozen = gc.get_freeze_count()\n"
            "headwater.Catalog\n"
            "print(gc.isenabled(), 0 < gc.get_freeze_count() <= frozen)"
        )
        == "False True"
    )


def test_the_names_of_a_package_are_imported_when_they_are_first_used() -> None:
    shown = run(
        "import sys\n"
        "from headwater import catalog, streams\n"
        "loaded = lambda: [name in sys.modules for name in ('headwater.streams.table', 'headwater.catalog.streams')]\n"
        "print(loaded(), 'StreamTable' in vars(streams))\n"
        "from headwater.streams import *\n"
        "from headwater.catalog import CatalogStream, DescribedObject\n"
        "print(loaded(), vars(streams)['StreamTable'] is StreamTable, issubclass(CatalogStream, StreamTable))\n"
        "print(hasattr(streams, 'NoSuchName'), all(hasattr(streams, name) for name in streams.__all__))\n"
    )
    assert shown.splitlines() == ["[False, False] False", "[True, True] True True", "False True"]
