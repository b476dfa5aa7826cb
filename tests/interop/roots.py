"""One root, two implementations: ours and the released pylance's, in the same mode."""

from __future__ import annotations

import time
from typing import Any

import lance_namespace as api
import pyarrow as pa
from lance.namespace import DirectoryNamespace as PylanceNamespace
from lance_namespace import LanceNamespace

from headwater import DirectoryNamespace
from headwater.errors import LanceNamespaceError
from headwater.testing.namespace_suite import ipc

PATIENCE_S = 120

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
}
KINDS: dict[str, Any] = {"ours": DirectoryNamespace, "pylance": PylanceNamespace}
ROWS = pa.table({"n": [1, 2, 3]})


def open_both(root: str, mode: str) -> tuple[LanceNamespace, LanceNamespace]:
    return KINDS["ours"](root=root, **MODES[mode]), KINDS["pylance"](root=root, **MODES[mode])


def create(namespace: LanceNamespace, *id: str, rows: pa.Table = ROWS) -> None:
    namespace.create_table(api.CreateTableRequest(id=list(id)), ipc(rows))


def count(namespace: LanceNamespace, *id: str) -> int:
    answer: Any = namespace.count_table_rows(api.CountTableRowsRequest(id=list(id)))
    return int(getattr(answer, "count", answer))


def tables(namespace: LanceNamespace, *id: str) -> list[str]:
    return sorted(namespace.list_tables(api.ListTablesRequest(id=list(id))).tables)


def namespaces(namespace: LanceNamespace, *id: str) -> list[str]:
    return sorted(namespace.list_namespaces(api.ListNamespacesRequest(id=list(id))).namespaces)


def write_many(answers: Any, barrier: Any, kind: str, root: str, mode: str, prefix: str, total: int) -> None:
    """Make namespaces and tables of one's own; what went wrong. pylance gives up under contention: it tries again."""
    namespace = KINDS[kind](root=root, **MODES[mode])
    problems: list[str] = []
    barrier.wait(PATIENCE_S)
    for number in range(total):
        if mode != "V1":
            problems += _insist(kind, lambda n=number: _make_namespace(namespace, f"{prefix}-n{n}"))
        problems += _insist(kind, lambda n=number: create(namespace, f"{prefix}-t{n}"))
    answers.put(problems)


def _make_namespace(namespace: LanceNamespace, name: str) -> None:
    namespace.create_namespace(api.CreateNamespaceRequest(id=[name]))


def _insist(kind: str, action: Any) -> list[str]:
    for attempt in range(30 if kind == "pylance" else 1):
        try:
            action()
            return []
        except LanceNamespaceError as error:
            if attempt and int(error.code) in (2, 5):
                return []
            problem = f"{kind}: {type(error).__name__}: {error}"
        except Exception as error:
            problem = f"{kind}: {type(error).__name__}: {error}"
        time.sleep(0.01 * attempt)
    return [problem]
