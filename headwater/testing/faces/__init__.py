"""The suite of faces: every verb through every door of a catalog gives the same state, log, audit and error."""

from dataclasses import replace

from headwater.testing.faces.case_objects import Case, Outcome
from headwater.testing.faces.cases import ROW_VERBS, STREAM_VERBS
from headwater.testing.faces.compared_catalog import DOORS, ComparedCatalog, doors_of, filled_in
from headwater.testing.faces.name_cases import NAME_VERBS

VERBS = (*NAME_VERBS, *ROW_VERBS, *STREAM_VERBS)
REFUSED = (
    "drop a table",
    "undrop a table",
    "alias a table",
    "undo a transaction",
    "take a snapshot",
    "restore a version",
    "tag a version",
    "insert rows",
    "publish a stream table",
    "upsert rows into a stream table",
)
"""Verbs that a caller with the role `reader` asks for through every door of the server."""
CASES: tuple[Case, ...] = (
    *VERBS,
    *(
        replace(case, name=f"a reader may not {case.name}", role="reader", code=15)
        for case in VERBS
        if case.name in REFUSED
    ),
)

__all__ = ["CASES", "DOORS", "Case", "ComparedCatalog", "Outcome", "doors_of", "filled_in"]
