"""Actions behind the forms of the page. Each is an operation of the API in the visitor's name."""

from __future__ import annotations

from collections.abc import Callable

from headwater.errors import InvalidInputError
from headwater.names import ObjectId, object_id
from headwater.rest.reply import RouteError
from headwater.web.visit import Page, Visit


def act(visit: Visit) -> Page:
    """Do what the address names, to what it names, and go on to the page that shows it."""
    name = visit.names[1] if len(visit.names) > 1 else ""
    action = ACTIONS.get(name)
    if action is None:
        raise RouteError("There is no such form on this page.", 404)
    id = object_id(visit.names[2:], visit.served.delimiter)
    return Page(status=303, headers=((b"location", action(visit, id).encode()),))


def drop_table(visit: Visit, id: ObjectId) -> str:
    _confirmed(visit, id)
    visit.ask("DropTable", id)
    return visit.links.namespace(id.parent)


def drop_namespace(visit: Visit, id: ObjectId) -> str:
    _confirmed(visit, id)
    visit.ask("DropNamespace", id, behavior="Cascade" if visit.form.get("cascade") == "yes" else "Restrict")
    return visit.links.namespace(id.parent)


def undrop(visit: Visit, id: ObjectId) -> str:
    """Bring back what was dropped last under a name."""
    return visit.links.of(id, visit.ask("Undrop", id)["kind"])


def restore(visit: Visit, id: ObjectId) -> str:
    visit.ask("RestoreTable", id, version=_version(visit))
    return visit.links.table(id, view="versions")


def add_tag(visit: Visit, id: ObjectId) -> str:
    visit.ask("CreateTableTag", id, tag=visit.form.get("tag", "").strip(), version=_version(visit))
    return visit.links.table(id, view="versions")


def drop_tag(visit: Visit, id: ObjectId) -> str:
    visit.ask("DeleteTableTag", id, tag=visit.form.get("tag", ""))
    return visit.links.table(id, view="versions")


def _confirmed(visit: Visit, id: ObjectId) -> None:
    if visit.form.get("name") != id.name:
        raise InvalidInputError(f"Write the name {id.name!r} to drop it: nothing was changed.")


def _version(visit: Visit) -> int:
    text = visit.form.get("version", "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInputError("The form says no version.")
    return int(text)


ACTIONS: dict[str, Callable[[Visit, ObjectId], str]] = {
    "drop-table": drop_table,
    "drop-namespace": drop_namespace,
    "undrop": undrop,
    "restore": restore,
    "add-tag": add_tag,
    "drop-tag": drop_tag,
}
