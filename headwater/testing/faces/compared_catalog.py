"""The doors of one catalog, and how a verb is asked for through each of them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Callable, Mapping
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, Request, build_opener

import pyarrow as pa

from headwater.agents.catalog_tools import CatalogTools
from headwater.catalog import Catalog
from headwater.cli import main
from headwater.cli.target import Target
from headwater.clock import SystemClock
from headwater.errors import LanceNamespaceError
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.auth.keys import create_key
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.server import start_in_thread
from headwater.rest.settings import Settings
from headwater.tables.write.arrow import to_stream
from headwater.testing.faces.case_objects import MORE_EVENTS, MORE_ROWS, Case, Outcome, log_of, state_of
from headwater.web import page

CHANGING = frozenset(route.operation for route in ALL_ROUTES if route.changes)
"""Operations that the audit of a verb is compared by; what a face reads on the way is its own business."""
_TOKEN = re.compile(r'name="token" value="([^"]+)"')
Facts = Mapping[str, str]
Door = Callable[["ComparedCatalog", Case, Facts], Any]


class Refused(Exception):
    """An error as a face shows it. `text` is None where the face prints more than the error."""

    def __init__(self, code: int, text: str | None) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


class Client:
    """One key of the server, with its catalog over HTTP and its browser, which is signed in."""

    def __init__(self, url: str, name: str, key: str) -> None:
        self.name, self.key, self._url = name, key, url
        self.catalog = Catalog(url, **{"headers.x-api-key": key})
        self._browser = build_opener(HTTPCookieProcessor(), _Stay())
        self._sign_in()

    def send(self, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Send one HTTP request, with the cookies of the page. Return the status and the body of its answer."""
        try:
            with self._browser.open(Request(f"{self._url}{path}", body, dict(headers))) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()

    def form(self, path: str, fields: Mapping[str, str]) -> tuple[int, bytes]:
        """Send a form of the page, with the token that its pages carry."""
        _, text = self.send("/", None, {"accept": "text/html"})
        found = _TOKEN.search(text.decode())
        assert found is not None, "the page has a form with a token"
        data = urlencode({**fields, "token": found[1]}).encode()
        return self.send(path, data, {"accept": "text/html"})

    def _sign_in(self) -> None:
        _, text = self.send("/signin", None, {"accept": "text/html"})
        token = _TOKEN.search(text.decode())
        assert token is not None
        fields = {"token": token[1], "key": self.key, "next": "/"}
        status, _ = self.send("/signin", urlencode(fields).encode(), {"accept": "text/html"})
        assert status == 303, "the key signs in"


class ComparedCatalog:
    """One catalog on disk, its server with a page and an audit log, and one author who comes through all doors."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder = str(folder / "lake"), str(folder)
        self.audit = folder / "audit.jsonl"
        self._namespace = MetastoreNamespace(root=self.root)
        known = self._key("admin")
        self.server = start_in_thread(self._namespace, settings=Settings(audit_log=str(self.audit)), face=page)
        self._clients = {"admin": Client(self.server.url, *known)}
        self.author = known[0]
        self.here = Catalog(self.root, author=self.author)
        self._count = itertools.count()
        for name, rows in (("rows", MORE_ROWS), ("events", MORE_EVENTS)):
            lines = (json.dumps(row) for row in rows.to_pylist())
            (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def client(self, case: Case) -> Client:
        """Return the client that has the role of a case."""
        if case.role not in self._clients:
            self._clients[case.role] = Client(self.server.url, *self._key(case.role))
        return self._clients[case.role]

    def _key(self, role: str) -> tuple[str, str]:
        record, key = create_key(self._namespace.store, SystemClock(), role, [])
        return f"key:{record.id}", key

    def close(self) -> None:
        self.server.stop()

    def run(self, case: Case, door: str, ask: Door | None = None) -> Outcome:
        """Prepare a case in a namespace of its own, ask for it through a door, and look at what happened.

        `ask`: how to ask through a door that is not in `DOORS`.
        """
        base = f"case{next(self._count)}"
        self.here.create_namespace(base)
        facts = {"base": base, "folder": self.folder, **(case.prepare(self.here, base) or {})}
        slot, audited = self.here.slot, len(self._audit_lines())
        code = text = answer = None
        try:
            answer = (ask or DOORS[door])(self, case, facts)
        except LanceNamespaceError as error:
            code, text = int(error.code), str(error)
        except Refused as error:
            code, text = error.code, error.text
        entries = list(self.here.log(slot))
        return Outcome(
            state_of(self.here, base),
            log_of(entries, base),
            None if door.endswith("transaction") else [entry.message.replace(base, "base") for entry in entries],
            self._audited(audited, base) if door in SERVED else None,
            code,
            None if text is None else text.replace(base, "base"),
            str(case.answer(answer)).replace(base, "base") if case.answer is not None and code is None else None,
        )

    def _audit_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_bytes().splitlines()] if self.audit.exists() else []

    def _audited(self, since: int, base: str) -> list[Any]:
        """Return the last changing operation that the server noted: operation, objects, caller, allowed, code.

        The Python library makes the namespaces above a new one first, so that it may note more than one.
        """
        noted = [
            [
                line["operation"],
                [name.replace(base, "base") for name in line["objects"]],
                line["caller"],
                line["allowed"],
                line["code"],
            ]
            for line in self._audit_lines()[since:]
            if line["operation"] in CHANGING
        ]
        return noted[-1:]


class _Stay(HTTPRedirectHandler):
    """Follows no redirect: where a form leads is part of its answer."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def filled_in(text: str, facts: Facts) -> str:
    """Return a text of a case with `{base}` and the facts of its preparation filled in."""
    for name, value in facts.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _filled(value: object, facts: Facts) -> Any:
    if isinstance(value, str):
        return filled_in(value, facts)
    if isinstance(value, Mapping):
        return {name: _filled(item, facts) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(item, facts) for item in value]
    return value


def _python(site: ComparedCatalog, case: Case, facts: Facts) -> Any:
    return case.python(site.here, facts)


def _remote(site: ComparedCatalog, case: Case, facts: Facts) -> object:
    return case.python(site.client(case).catalog, facts)


def _transaction(site: ComparedCatalog, case: Case, facts: Facts) -> object:
    with site.here.transaction("all at once", author=site.author) as tx:
        return case.python(tx, facts)


def _remote_transaction(site: ComparedCatalog, case: Case, facts: Facts) -> Any:
    with site.client(case).catalog.transaction("all at once") as tx:
        return case.python(tx, facts)


def _past(site: ComparedCatalog, case: Case, facts: Facts) -> Any:
    return case.python(site.here.at(site.here.slot), facts)


def _remote_past(site: ComparedCatalog, case: Case, facts: Facts) -> object:
    there = site.client(case).catalog
    return case.python(there.at(there.slot), facts)


def _rest(site: ComparedCatalog, case: Case, facts: Facts) -> object:
    assert case.rest is not None
    path, body = case.rest
    client = site.client(case)
    kind = "application/vnd.apache.arrow.stream" if isinstance(body, pa.Table) else "application/json"
    sent = to_stream(body.to_reader()) if isinstance(body, pa.Table) else json.dumps(_filled(body, facts)).encode()
    status, data = client.send(filled_in(path, facts), sent, {"x-api-key": client.key, "content-type": kind})
    told = json.loads(data) if data else {}
    if status >= 400:
        raise Refused(told["code"], told["error"])
    return told


def _cli(target: Callable[[ComparedCatalog, Case], list[str]]) -> Callable[[ComparedCatalog, Case, Facts], object]:
    def ask(site: ComparedCatalog, case: Case, facts: Facts) -> object:
        assert case.cli is not None
        out, err = io.StringIO(), io.StringIO()
        words = [filled_in(word, facts) for word in case.cli]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([words[0], *target(site, case), *words[1:], "--json"])
        if status:
            told = json.loads(err.getvalue().splitlines()[-1])
            raise Refused(told["code"], told["error"])
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        return lines[0] if len(lines) == 1 else lines

    return ask


def _page(site: ComparedCatalog, case: Case, facts: Facts) -> Any:
    assert case.page is not None
    path, fields = case.page
    status, data = site.client(case).form(filled_in(path, facts), _filled(fields, facts))
    if status >= 400:
        found = re.search(r"code (\d+)", data.decode())
        raise Refused(int(found[1]) if found else -status, None)
    return None


def _agent(site: ComparedCatalog, case: Case, facts: Facts) -> Any:
    assert case.tool is not None
    tool, arguments = case.tool
    looking = CatalogTools(Target(site.root, ()))
    return json.loads(getattr(looking, tool)(_filled(arguments, facts), None))


DOORS: dict[str, Door] = {
    "python": _python,
    "python over a server": _remote,
    "transaction": _transaction,
    "remote transaction": _remote_transaction,
    "past": _past,
    "remote past": _remote_past,
    "REST": _rest,
    "command line": _cli(lambda site, case: ["-c", site.root, "--property", f"author={site.author}"]),
    "command line over a server": _cli(
        lambda site, case: ["-c", site.server.url, "--property", f"headers.x-api-key={site.client(case).key}"]
    ),
    "page": _page,
    "agent": _agent,
}
SERVED = frozenset({"python over a server", "REST", "command line over a server", "page"})


def doors_of(case: Case) -> list[str]:
    """Return the doors that have a verb."""
    has = {
        "transaction": case.in_transaction,
        "remote transaction": case.in_transaction,
        "past": not case.changes,
        "remote past": not case.changes,
        "REST": case.rest is not None,
        "command line": case.cli is not None,
        "command line over a server": case.cli is not None,
        "page": case.page is not None,
        "agent": case.tool is not None,
    }
    return [door for door in DOORS if has.get(door, True) and (door in SERVED or case.role == "admin")]
