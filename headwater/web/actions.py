"""Forms of the page. Each is an operation of the API in the visitor's name, by one row of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.errors import InvalidInputError
from headwater.names import ObjectId, object_id
from headwater.rest.reply import RouteError
from headwater.web.visit import Page, Visit

Fields = Callable[[Visit], Mapping[str, Any]]


@dataclass(frozen=True)
class FormAction:
    """One form: its operation and the fields of its request. `confirmed`: the visitor writes the object's name."""

    operation: str
    fields: Fields = lambda visit: {}
    confirmed: bool = False


def act(visit: Visit) -> Page:
    """Do what the address names, to the object that it names, and redirect to the page that shows it."""
    name = visit.names[1] if len(visit.names) > 1 else ""
    action = ACTIONS.get(name)
    if action is None:
        raise RouteError("There is no such form on this page.", 404)
    id = object_id(visit.names[2:], visit.served.delimiter)
    if action.confirmed and visit.form.get("name") != id.name:
        raise InvalidInputError(f"Write the name {id.name!r} to drop it: nothing was changed.")
    answer = visit.ask(action.operation, id, **action.fields(visit))
    return Page(status=303, headers=((b"location", _shown(visit, action, id, answer).encode()),))


def _shown(visit: Visit, action: FormAction, id: ObjectId, answer: Mapping[str, Any]) -> str:
    """Return the address of the page that shows what an action did."""
    if action.confirmed:
        return visit.links.namespace(id.parent)
    if action.operation == "Undrop":
        return visit.links.of(id, answer["kind"])
    return visit.links.table(id, view="versions")


def _version(visit: Visit) -> int:
    text = visit.form.get("version", "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInputError("The form says no version.")
    return int(text)


ACTIONS: dict[str, FormAction] = {
    "drop-table": FormAction("DropTable", confirmed=True),
    "drop-namespace": FormAction(
        "DropNamespace",
        lambda visit: {"behavior": "Cascade" if visit.form.get("cascade") == "yes" else "Restrict"},
        confirmed=True,
    ),
    "undrop": FormAction("Undrop"),
    "restore": FormAction("RestoreTable", lambda visit: {"version": _version(visit)}),
    "add-tag": FormAction(
        "CreateTableTag", lambda visit: {"tag": visit.form.get("tag", "").strip(), "version": _version(visit)}
    ),
    "drop-tag": FormAction("DeleteTableTag", lambda visit: {"tag": visit.form.get("tag", "")}),
}
