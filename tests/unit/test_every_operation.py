"""Every operation of `LanceNamespace`, in every mode: an answer or a named error, whatever is asked."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

import lance_namespace as api
import pytest
from lance_namespace import LanceNamespace
from pydantic import BaseModel

from headwater import DirectoryNamespace
from headwater.errors import LanceNamespaceError
from headwater.testing.namespace_suite import ROWS, ipc

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "early": {"layout": "early"},
    "managed": {"table_version_management": "true"},
}
NOT_OPERATIONS = {"namespace_id"}
PLAUSIBLE: dict[str, Any] = {
    "name": "x",
    "tag": "x",
    "version": 1,
    "mode": "create",
    "predicate": "id > 1",
    "columns": ["id"],
    "limit": 2,
    "k": 1,
    "vector": {"single_vector": [1.0]},
    "index_name": "id_idx",
    "index_type": "BTREE",
    "column": "id",
    "on": ["id"],
    "properties": {},
    "updates": [["name", "'x'"]],
    "new_columns": [{"name": "twice", "expression": "id * 2"}],
    "alterations": [{"path": "name", "rename": "label"}],
    "manifest_path": "_versions/none",
    "entries": [],
    "ranges": [{"start_version": 1, "end_version": 2}],
    "metadata": {"k": "v"},
}
STRANGE: tuple[Any, ...] = (
    {"id": [""]},
    {"id": ["../t"]},
    {"id": ["no", "such", "t"]},
    {"id": "t"},
    {"id": 7},
    {"version": "x"},
    7,
    None,
)
EXPECTED_UNSUPPORTED = {"create_materialized_view", "refresh_materialized_view"}
FLAT = {
    "create_namespace",
    "describe_namespace",
    "drop_namespace",
    "list_namespaces",
    "list_tables",
    "namespace_exists",
}


def operations() -> list[str]:
    public = inspect.getmembers(LanceNamespace, inspect.isfunction)
    return [name for name, _ in public if not name.startswith("_") and name not in NOT_OPERATIONS]


def request_model(operation: str) -> type[BaseModel] | None:
    hints = typing.get_type_hints(getattr(LanceNamespace, operation))
    model = hints.get("request")
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def plausible(operation: str) -> dict[str, Any]:
    """A request about the table that is named after the operation."""
    model = request_model(operation)
    values = {
        **PLAUSIBLE,
        "id": [operation],
        "new_table_name": f"{operation}-renamed",
        "location": f"{operation}.lance",
    }
    return {key: value for key, value in values.items() if model is None or key in model.model_fields}


def takes_body(operation: str) -> bool:
    return len(inspect.signature(getattr(LanceNamespace, operation)).parameters) > 2


def ask(namespace: DirectoryNamespace, operation: str, request: Any) -> int | None:
    """The code of the error, or None. Anything that is not a named error is raised, and fails the test."""
    body = (ipc(ROWS),) if takes_body(operation) else ()
    try:
        getattr(namespace, operation)(request, *body)
    except LanceNamespaceError as error:
        return int(error.code)
    return None


def test_the_released_interface_has_the_operations_this_was_written_for() -> None:
    assert len(operations()) >= 55


@pytest.mark.parametrize("operation", operations())
def test_an_operation_is_implemented_by_the_catalog_itself(operation: str) -> None:
    assert getattr(DirectoryNamespace, operation) is not getattr(LanceNamespace, operation)


@pytest.mark.parametrize("mode", MODES)
def test_an_operation_ends_in_an_answer_or_a_named_error_and_is_supported_where_it_can_be(
    tmp_path: Path, mode: str
) -> None:
    """Never in a bare Python exception. Unsupported (0) is only what cannot be done honestly."""
    namespace = DirectoryNamespace(root=str(tmp_path), **MODES[mode])
    unsupported = set()
    for operation in operations():
        for request in ({}, *STRANGE):
            ask(namespace, operation, request)
        namespace.create_table(api.CreateTableRequest(id=[operation]), ipc(ROWS))
        if ask(namespace, operation, plausible(operation)) == 0:
            unsupported.add(operation)
    expected = EXPECTED_UNSUPPORTED if mode not in ("V1", "early") else EXPECTED_UNSUPPORTED | FLAT
    assert unsupported <= expected, unsupported - expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id", [["no"], ["no", "such"], []])
def test_a_view_is_unsupported_whether_or_not_something_has_its_name(tmp_path: Path, mode: str, id: list[str]) -> None:
    namespace = DirectoryNamespace(root=str(tmp_path), **MODES[mode])
    assert ask(namespace, "create_materialized_view", {"id": id}) == 0
    assert ask(namespace, "refresh_materialized_view", {"id": id}) == 0
