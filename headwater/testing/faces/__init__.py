"""The suite of faces: every verb through every door of a catalog gives the same state, log, audit and error."""

from headwater.testing.faces.cases import CASES
from headwater.testing.faces.compared_catalog import DOORS, ComparedCatalog, doors_of, filled_in
from headwater.testing.faces.outcome import Case, Outcome

__all__ = ["CASES", "DOORS", "Case", "ComparedCatalog", "Outcome", "doors_of", "filled_in"]
