"""The suite of faces: every verb through every door of a catalog gives the same state, log, audit and error."""

from headwater.testing.faces.cases import CASES
from headwater.testing.faces.doors import DOORS, Site, doors_of, filled_in
from headwater.testing.faces.outcome import Case, Outcome

__all__ = ["CASES", "DOORS", "Case", "Outcome", "Site", "doors_of", "filled_in"]
