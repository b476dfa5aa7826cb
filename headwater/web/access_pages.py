"""The page of API keys and roles: who may manage the catalog makes and revokes them there."""

from __future__ import annotations

from typing import Any

from headwater.errors import InvalidInputError
from headwater.names import ROOT, format_name, parse_name
from headwater.rest.page.page_facts import AccessFacts, MadeKey
from headwater.rest.routes import Permission
from headwater.web.visit import Page, RequestContext

LISTED = 200
DAY_MS = 86_400_000
DAYS = {"": "never", "7": "in 7 days", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
PERMISSIONS = [str(permission.name).lower() for permission in Permission]
SUMMARY = {
    "describe": "see names, columns and history",
    "select": "read rows",
    "write": "create tables and change rows",
    "drop": "drop tables",
    "manage": "drop namespaces, register tables, take snapshots, manage keys and roles",
}


def access_page(visit: RequestContext, made: MadeKey | None = None) -> Page:
    """Return the page of keys and roles. `made`: a key that was made just now, whose text is shown once."""
    found: AccessFacts = visit.question("PageAccess")
    keys = [key for key in found.keys if visit.keeps(key.id, key.name, key.role, format_name(key.scope), key.state)]
    values: dict[str, Any] = {
        "keys": keys[:LISTED],
        "total": len(keys),
        "roles": found.roles,
        "given": [role.name for role in found.roles if role.may_give],
        "days": DAYS,
        "permissions": PERMISSIONS,
        "summary": SUMMARY,
        "mine": visit.caller.name.removeprefix("key:"),
        "made": made,
        "is_open": not visit.served.gate.is_closed(),
        "may_change": not visit.served.settings.read_only,
        "title": "Access",
    }
    return Page("access.html", values)


def create_key(visit: RequestContext) -> Page:
    """Make the key of a form, and return the page that shows its text: it is in no address and in no log."""
    days = visit.form.get("days", "")
    if days not in DAYS:
        raise InvalidInputError("The form names no time that a key can expire in. No key was made.")
    answer = visit.ask(
        "PageCreateKey",
        ROOT,
        name=visit.form.get("name", "").strip(),
        role=visit.form.get("role", ""),
        scope=list(parse_name(visit.form.get("scope", "").strip())),
        expires_ms=visit.served.clock.now_ms() + int(days) * DAY_MS if days else None,
    )
    return access_page(visit, MadeKey(**answer))


def chosen_permissions(visit: RequestContext) -> str:
    """Return the permissions that a form ticks, joined by commas."""
    chosen = [name for name in PERMISSIONS if visit.form.get(name) == "yes"]
    if not chosen:
        raise InvalidInputError("Tick at least one permission: the role was not changed.")
    return ",".join(chosen)
