"""The row of one verb: its request, the right that it needs, its path, and the handler that answers it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from functools import cached_property
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.errors import UnsupportedOperationError
from headwater.metastore import LogEntry, Metastore
from headwater.namespace.abilities import CatalogAbilities, abilities_of

Ability = TypeVar("Ability")


class Permission(Flag):
    """A right that a verb or route may need of its caller; a role is a set of these (rest/auth/keys.py)."""

    DESCRIBE = auto()
    SELECT = auto()
    WRITE = auto()
    DROP = auto()
    MANAGE = auto()


NOTHING = Permission(0)
"""The right of a route that every authenticated caller may call."""
READS = Permission.DESCRIBE | Permission.SELECT


class WorkPlace(Enum):
    """The process that does the work of a route (rest/work.py)."""

    SERVER = "server"
    """In the serving process, which only handles names and records of the catalog."""
    KEYS = "keys"
    """There too, over a back end of others as well: it is about keys of the server, and not about the catalog."""
    LOOKUP = "lookup"
    """There too, unless the request asks for something that only the table itself tells."""
    WORKER = "worker"
    """In a disposable process: it may open tables, parse SQL or rows, or run a user's function."""
    LONG = "long"
    """There too, without a deadline."""


class SessionKind(Flag):
    """SessionKind other than the present in which a verb can be called."""

    PRESENT_ONLY = 0
    PAST = auto()
    TRANSACTION = auto()
    ANY = PAST | TRANSACTION


class VerbRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a verb. The name of the class is the name of the operation."""


class ObjectRequest(VerbRequest, frozen=True, kw_only=True):
    """Arguments of a verb about one namespace or table. `id`: its names from the root down."""

    id: tuple[str, ...]


class RowsRequest(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of a verb that takes rows. Over HTTP the rows are the body, and the arguments the query."""


@dataclass(frozen=True)
class VerbSession:
    """The catalog of one call: in the present, in a transaction or in the past.

    `caller`: who calls, as transactions tell callers apart. `author`: the author of the transactions it begins.
    `rows`: returns a reader of the rows that came with the call. `accept`: called with the size of rows, in bytes,
    before they are decoded; raises if that is too much. `sizes`: has that size once `rows` was called.
    `told`: returns a transaction as far as the caller may be told of it. `sees`: returns True if it may be told of an
    object, by its path and key.
    """

    namespace: LanceNamespace
    caller: str = "owner"
    author: str | None = None
    rows: Callable[[], pa.RecordBatchReader] | None = None
    accept: Callable[[int], None] | None = None
    sizes: list[int] = field(default_factory=list)
    told: Callable[[LogEntry], LogEntry] = lambda entry: entry
    sees: Callable[[tuple[str, ...], str], bool] = lambda path, key: True

    @cached_property
    def can(self) -> CatalogAbilities:
        return abilities_of(self.namespace)


Handler = Callable[[VerbSession, Any], Any]


@dataclass(frozen=True)
class Verb:
    """One row of the table. `path` is below `/headwater/v1/`; `about` is the sentence of the OpenAPI document.

    `field`: the one field of the JSON answer that holds what the handler returns; without it, that is the whole answer.
    """

    path: str
    needs: Permission
    handler: Handler
    about: str
    request: type[VerbRequest]
    answer: Any
    runs: WorkPlace = WorkPlace.WORKER
    sessions: SessionKind = SessionKind.PRESENT_ONLY
    field: str | None = None
    _decoder: list[msgspec.json.Decoder[Any]] = dataclasses.field(default_factory=list, repr=False, compare=False)

    @property
    def operation(self) -> str:
        return self.request.__name__

    @property
    def takes_rows(self) -> bool:
        return issubclass(self.request, RowsRequest)

    @property
    def returns_rows(self) -> bool:
        return self.answer is pa.RecordBatchReader

    def wrap(self, answer: object) -> Any:
        """Return what a handler returned as the answer of a server; None is an empty object."""
        if self.field is not None:
            return {self.field: answer}
        return {} if answer is None else answer

    def decode(self, answer: bytes) -> Any:
        """Return the answer of a server as the value that the handler returned there."""
        if answer == b"{}" and type(None) in (self.answer, *get_args(self.answer)):
            return None
        if not self._decoder:  # made here, not at import: most processes are no clients
            wrapped = [(self.field or "", self.answer)]
            kind = self.answer if self.field is None else msgspec.defstruct(f"{self.operation}Answer", wrapped)
            self._decoder.append(msgspec.json.Decoder(kind, strict=False))
        found = self._decoder[0].decode(answer)
        return found if self.field is None else getattr(found, self.field)


VERBS: dict[type[VerbRequest], Verb] = {}
"""Every verb by the type of its request; `headwater/verbs/all_verbs.py` imports the modules that fill it."""


def verb(
    path: str,
    needs: Permission,
    runs: WorkPlace = WorkPlace.WORKER,
    sessions: SessionKind = SessionKind.PRESENT_ONLY,
    field: str | None = None,
) -> Callable[[Handler], Handler]:
    """Return a decorator that adds a handler to the table, with the types and the docstring that it declares."""

    def add(handler: Handler) -> Handler:
        hints = get_type_hints(handler)
        kind, answer = hints["request"], hints["return"]
        about = " ".join((handler.__doc__ or "").partition("\n\n")[0].split())
        VERBS[kind] = Verb(path, needs, handler, about, kind, answer, runs, sessions, field)
        return handler

    return add


def require(ability: Ability | None, cannot: str = "keeps no history: a metastore catalog does") -> Ability:
    """Return what a catalog declares that it can do; raise Unsupported (0) with what it cannot."""
    if ability is None:
        raise UnsupportedOperationError(f"This catalog {cannot}.")
    return ability


def metastore_of(namespace: LanceNamespace) -> Metastore:
    """Return the metastore of a catalog; raise Unsupported (0) for a catalog without one."""
    return require(abilities_of(namespace).metastore)
