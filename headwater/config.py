"""From what a user writes to a catalog. The only place that chooses which kind to open.

    Catalog, CLI, serve ── Opening: reading what is not there is refused, a write makes it and says so
    Spark ──────────────── open_catalog ── resolve (path, URI or profile -> kind, properties) ── connect

A profile is a table of `headwater.toml`; the environment can add to it or override it:

    [catalog.lake]                  HEADWATER_CATALOG__LAKE__ROOT=./lake
    impl = "dir"                    HEADWATER_CATALOG__LAKE__STORAGE__REGION=eu-west-1
    root = "./lake"
"""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headwater
from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidInputError, LanceNamespaceError, NamespaceNotFoundError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.metastore import Metastore
from headwater.metastore.commit.root_kinds import DIRECTORY_MARKER, RootKind, check_finished, root_kind, things_in
from headwater.references import OWN_KINDS, SPARK_PREFIX, check_foreign, followed
from headwater.store import is_file_uri, is_local, is_there, open_store

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

    from headwater.namespace.registry_kinds import DirectoryNames

adapter = when_used("headwater.adapter")
registry_kinds = when_used("headwater.namespace.registry_kinds")
catalog_properties = when_used("headwater.namespace.registry_kinds")
CONFIG_FILE = "headwater.toml"
CONFIG_VARIABLE = "HEADWATER_CONFIG"
CATALOG_VARIABLE = "HEADWATER_CATALOG"
PROFILE_VARIABLE = "HEADWATER_CATALOG__"
DEFAULT_PROFILE = "default"
_LOG = logging.getLogger("headwater")
Target = str | os.PathLike[str]
"""A catalog as a caller names it: a path, a URI or the name of a profile."""
DIRECTORY = ("dir", "headwater.DirectoryNamespace")
METASTORE = ("metastore", "headwater.MetastoreNamespace")
REST = ("rest",)
DIRECTORY_KEYS = frozenset(("manifest_enabled", "dir_listing_enabled", "table_version_management", "layout"))
"""Properties that only a directory catalog has."""
SERVER_KEYS = ("jwt_issuer", "jwt_audience", "jwt_jwks", "jwt_algorithms", "jwt_role_claim", "jwt_scope_claim")
"""Properties of a profile for `headwater serve`: settings of the server, not of the catalog."""
ENGINE_KEYS = ("engine", "master")
"""Properties of a profile for the verbs of the pipeline, beside settings of Spark (`spark.*`)."""


@dataclass(frozen=True)
class Resolved:
    """A catalog that a path, a URI or a profile names. `shown`: the name as the user wrote it.

    `impl` is empty where nobody said which kind it is: then it is the kind that is there.
    """

    shown: str
    impl: str
    properties: Mapping[str, Any]


def connect(impl: str, properties: Mapping[str, object] | None = None, clock: Clock | None = None) -> LanceNamespace:
    """Return a catalog by kind: `metastore` or `dir` (in a directory or object store), `rest` (a Lance REST server), or
    a back end of others by its name (`glue`) or class.

    `clock` is another than the system's, for what is to be replayed from a seed; a server has its own.
    """
    values = dict(properties or {})
    if impl in DIRECTORY:
        return headwater.DirectoryNamespace(clock, **values)
    if impl in METASTORE:
        return headwater.MetastoreNamespace(clock, **values)
    if impl in REST:
        return _connect_rest(values)
    opened: LanceNamespace = adapter.open_adapted(impl, values)
    return opened


def open_catalog(target: Target | None = None, properties: Mapping[str, object] | None = None) -> LanceNamespace:
    """Return a catalog by a path, a URI or the name of a profile; with nothing given, the profile `default`.

    It is of the kind that is there, and a new one is a metastore, unless `impl` says another.
    """
    return open_resolved(resolve(target, properties))


def open_resolved(found: Resolved) -> LanceNamespace:
    """Return the catalog that a path, a URI or a profile stands for."""
    return connect(kind_of(found, look(found)), found.properties)


def resolve(target: Target | None = None, properties: Mapping[str, object] | None = None) -> Resolved:
    """Return the kind and the properties of a catalog. Arguments of the call win over the profile.

    A `Path` is a path, also where a profile has its name. `impl`, `root`, `uri`, and their early names `type`, `path`,
    `uri` (lance-catalog-early.md, "Configurations").
    """
    given, is_path = dict(properties or {}), isinstance(target, os.PathLike)
    target = os.fspath(target) if isinstance(target, os.PathLike) else target
    if target is not None and not isinstance(target, str):
        raise InvalidInputError(f"A catalog is named by a path, a URI or a profile, not by {type(target).__name__}.")
    if target is None and not given:
        target = default_target()
    alone = target is None and not is_own(str(given.get("impl") or "dir"))
    name = str(given["impl"]) if alone else target or DEFAULT_PROFILE
    profile = None if alone or is_path else load_profile(name, given)
    if target is None and profile is None and not given:
        raise InvalidInputError(f"No catalog was named: give a path or a URI, or write a profile in {CONFIG_FILE}.")
    values = {key: value for key, value in (profile or {}).items() if not _is_of_others(key)} | given
    if profile is None and target is not None:
        values = {"uri" if target.startswith(("http://", "https://")) else "root": target, **values}
    early = values.pop("type", None)
    told = values.pop("impl", None) or early or ("dir" if DIRECTORY_KEYS.intersection(values) else "")
    impl = str(told or ("rest" if "uri" in values else ""))
    if impl in DIRECTORY and "uri" in values:
        raise InvalidInputError(f"The catalog {name!r} has both impl=dir and uri: a directory has a root.")
    return Resolved(name, impl, values)


def _is_of_others(key: str) -> bool:
    """Return True for a key of a profile that is not a property of its catalog: a server's, or an engine's."""
    return key in SERVER_KEYS or key in ENGINE_KEYS or key.startswith(SPARK_PREFIX)


def is_own(impl: str) -> bool:
    """Return True if this is a kind of catalog of ours, and not a back end of others."""
    return impl in OWN_KINDS


def look(resolved: Resolved) -> RootKind:
    """Return the kind of catalog at a root, by one listing of it. Error 19 during an upgrade, or if its records are
    gone.

    What a server has is its own affair.
    """
    root = _root(resolved)
    if root is None or not is_there(root, _storage(resolved)):
        return RootKind.MISSING
    if is_local(root) and not is_file_uri(root) and Path(root).expanduser().is_file():
        raise InvalidInputError(f"{resolved.shown} is a file: name the folder of a catalog, or a new one.")
    store = open_store(root, _storage(resolved))
    return root_kind(store, resolved.properties.get("layout") == "early")


def kind_of(resolved: Resolved, there: RootKind) -> str:
    """Return the kind of catalog to open; raise InvalidInput (13) if the caller names another one."""
    impl = resolved.impl
    if not impl:
        return "dir" if there is RootKind.DIRECTORY else "metastore"
    wrong = (impl in DIRECTORY and there is RootKind.METASTORE) or (impl in METASTORE and there is RootKind.DIRECTORY)
    if wrong:
        raise InvalidInputError(f"At {resolved.shown} is {there.value}, and impl={impl} was asked for.")
    return impl


def init(resolved: Resolved) -> str:
    """Make an empty catalog at a root, also beside other things; its kind. InvalidInput (13) where one is."""
    there = look(resolved)
    if there in (RootKind.DIRECTORY, RootKind.METASTORE):
        open_resolved(replace(resolved, impl=""))  # raises for the root of another program, which is no catalog of ours
        raise InvalidInputError(f"At {resolved.shown} is {there.value} already.")
    kind = kind_of(resolved, there)
    namespace = _open_beside(kind, resolved.properties)
    if isinstance(namespace, headwater.MetastoreNamespace):
        namespace.metastore.create()
    elif isinstance(namespace, headwater.DirectoryNamespace):
        namespace.store.put(DIRECTORY_MARKER, b"")
    return kind


def _open_beside(kind: str, properties: Mapping[str, object]) -> LanceNamespace:
    """Open a catalog also where other things are, for a caller that asks `look` before the first write."""
    beside = kind in METASTORE
    return headwater.MetastoreNamespace.beside_others(properties) if beside else connect(kind, properties)


def metastore_at(found: Resolved) -> Metastore | None:
    """Return the metastore at a root, for look-ups that need no Lance; None where a catalog of another kind is."""
    there, root = look(found), _root(found)
    if root is None or kind_of(found, there) not in METASTORE:
        return None
    if there in (RootKind.MISSING, RootKind.OTHER):
        raise _missing(found, there)
    return Metastore(root, _storage(found))


def directory_at(found: Resolved) -> DirectoryNames | None:
    """Return the names and versions of a directory catalog, for look-ups without the protocol's package; None where
    another kind of catalog is."""
    there = look(found)
    if kind_of(found, there) not in DIRECTORY:
        return None
    if there in (RootKind.MISSING, RootKind.OTHER):
        raise _missing(found, there)
    names: DirectoryNames = registry_kinds.open_names(
        catalog_properties.parse_properties(found.properties), SystemClock()
    )
    return names


def repair(found: Resolved) -> list[str]:
    """Write anew what a metastore has lost and its other files say; the keys. Also of one that cannot be opened.

    InvalidTableState (19), saying what is missing, when that is not exact; 1 where there is no metastore.
    """
    root = _root(found)
    if root is None:
        raise UnsupportedOperationError("A metastore is repaired where its files are, not through a server.")
    if not is_there(root, _storage(found)):
        raise _missing(found, RootKind.MISSING)
    check_finished(open_store(root, _storage(found)))
    store = Metastore(root, _storage(found), damaged=True)
    written = store.repair()
    if not store.slot:
        raise NamespaceNotFoundError(f"There is no metastore at {found.shown}.")
    return written


def is_catalog(folder: str) -> bool:
    """Return True for a folder that is the root of a catalog, also of one that is damaged."""
    try:
        return look(resolve(folder)) in (RootKind.DIRECTORY, RootKind.METASTORE)
    except LanceNamespaceError:
        return True


class Opening:
    """A catalog as a face opens it: `reading` refuses one that is not there, `writing` makes it and says so."""

    def __init__(
        self,
        target: Target | None = None,
        properties: Mapping[str, object] | None = None,
        say: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self._resolved = resolve(target, properties)
        self._say = say
        self._there = look(self._resolved)
        self._is_served = _root(self._resolved) is None
        self.namespace = _open_beside(kind_of(self._resolved, self._there), self._resolved.properties)

    def reading(self) -> LanceNamespace:
        """Return the catalog; NamespaceNotFound (1), with what the user may have meant, if there is none."""
        if not self._is_served and (there := self._looked()) in (RootKind.MISSING, RootKind.OTHER):
            raise _missing(self._resolved, there)
        return self.namespace

    def writing(self) -> LanceNamespace:
        """Return the catalog for a call that makes what is not there; 13 beside other things that are no catalog."""
        if self._is_served:
            return self.namespace
        there = self._looked()
        shown = self._resolved.shown
        if there is RootKind.OTHER:
            raise InvalidInputError(
                f"At {shown} is {_described(self._resolved)}, and no catalog: run `headwater init {shown}` to make one "
                "there, or name another folder."
            )
        if there is RootKind.MISSING:
            self._say(f"There was no catalog at {shown}: this write makes one.")
            self._there = RootKind.EMPTY
        return self.namespace

    def _looked(self) -> RootKind:
        """Return the kind of catalog at the root; repeat the look until a catalog was seen."""
        if self._there in (RootKind.MISSING, RootKind.OTHER):
            self._there = look(self._resolved)
        return self._there


def _root(resolved: Resolved) -> str | None:
    found = resolved.properties.get("root") or resolved.properties.get("path")
    elsewhere = bool(resolved.impl) and resolved.impl not in (*DIRECTORY, *METASTORE)
    return None if elsewhere or found is None else str(found)


def _storage(resolved: Resolved) -> dict[str, str]:
    given = followed(resolved.properties).items()
    return {key.removeprefix("storage."): str(value) for key, value in given if key.startswith("storage.")}


def _described(resolved: Resolved) -> str:
    """Return the words for a root with other things in it."""
    return f"{RootKind.OTHER.value}, {things_in(open_store(_root(resolved) or '', _storage(resolved)))}"


def _missing(resolved: Resolved, there: RootKind) -> NamespaceNotFoundError:
    if there is RootKind.OTHER:
        shown = resolved.shown
        return NamespaceNotFoundError(
            f"There is no catalog at {shown}, but {_described(resolved)}: `headwater init {shown}` makes one there."
        )
    root = _root(resolved) or ""
    where = "" if root == resolved.shown else f" (its root is {root})"
    known = f" Profiles: {', '.join(profile_names())}." if profile_names() else ""
    near = _near(resolved.shown, root)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return NamespaceNotFoundError(
        f"There is no catalog at {resolved.shown}{where}.{meant}{known} "
        "Reading makes none: create a namespace or a table to make it."
    )


def _near(shown: str, root: str) -> list[str]:
    """Profiles and folders beside a missing root whose names are like it, as they would be written."""
    found = difflib.get_close_matches(shown, profile_names(), 2)
    if not is_local(root) or is_file_uri(root):
        return found
    path = Path(root).expanduser()
    while not path.parent.is_dir():  # the first part of the path that is not there is the one misspelt
        path = path.parent
    try:
        beside = [entry.name for entry in os.scandir(path.parent) if entry.is_dir()]
    except OSError:
        beside = []
    return found + [str(path.parent / name) for name in difflib.get_close_matches(path.name, beside, 3)]


def load_profile(name: str, given: Mapping[str, object] | None = None) -> dict[str, object] | None:
    """Return the properties of a profile from the file and the environment, which wins; None if neither knows it.

    `given` is what the call adds: keys in it, or in the environment, go nowhere that a file nobody named says.
    """
    file = _read_file().get(name) if not any(char in name for char in "/\\:") else None
    variables = _read_environment().get(name.lower())
    if file is not None and _find_file() == Path.cwd() / CONFIG_FILE and not os.environ.get(CONFIG_VARIABLE):
        check_foreign(name, file, {**(variables or {}), **(given or {})}, os.environ)
    if file is None and variables is None:
        return None
    return {**(file or {}), **(variables or {})}


def default_target() -> str | None:
    """Return the catalog that is meant when none is named: HEADWATER_CATALOG, `default = "profile"` in the file, the
    profile `default`, or the only profile there is."""
    named = os.environ.get(CATALOG_VARIABLE)
    if named:
        return named
    known = profile_names()
    chosen = _read_toml().get("default")
    if chosen is None:
        return DEFAULT_PROFILE if DEFAULT_PROFILE in known else known[0] if len(known) == 1 else None
    if chosen not in known:
        raise InvalidInputError(f"{CONFIG_FILE}: default = {chosen!r} is none of its profiles: {', '.join(known)}.")
    return str(chosen)


def profile_names() -> list[str]:
    return sorted({*_read_file(), *_read_environment()})


def _connect_rest(properties: dict[str, Any]) -> LanceNamespace:
    try:
        from headwater.rest.client import check_properties, connect_rest
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(
            f"A REST catalog needs the module {missing.name}: pip install 'headwater[server]'."
        ) from None
    check_properties(properties)
    return connect_rest(properties)


def _read_toml() -> dict[str, object]:
    path = _find_file()
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path.name} cannot be read: {error}") from None


def _read_file() -> dict[str, dict[str, object]]:
    path = _find_file()
    if path is None:
        return {}
    catalogs = _read_toml().get("catalog", {})
    if not isinstance(catalogs, dict) or not all(isinstance(profile, dict) for profile in catalogs.values()):
        raise InvalidInputError(f"{path.name}: write each profile as a table [catalog.NAME].")
    return {name: _flat(profile, path.parent) for name, profile in catalogs.items()}


def _find_file() -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise InvalidInputError(f"{CONFIG_VARIABLE} names {named!r}, which is not a file.")
        return Path(named)
    places = (Path.cwd() / CONFIG_FILE, Path.home() / ".config" / "headwater" / CONFIG_FILE)
    return next((place for place in places if place.is_file()), None)


def _flat(profile: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Nested tables become dotted keys; a relative root is relative to the file, wherever it is used from."""
    values: dict[str, Any] = {}
    for key, value in profile.items():
        if isinstance(value, dict):
            values.update({f"{key}.{inner}": item for inner, item in _flat(value, folder).items()})
        else:
            values[key] = str(value).lower() if isinstance(value, bool) else str(value)
    for key in ("root", "path"):
        if key in values and is_local(values[key]) and not is_file_uri(values[key]):
            values[key] = str((folder / Path(values[key]).expanduser()).resolve())
    return values


def _read_environment() -> dict[str, dict[str, object]]:
    profiles: dict[str, dict[str, object]] = {}
    for variable, value in os.environ.items():
        name, _, key = variable.removeprefix(PROFILE_VARIABLE).partition("__")
        if variable.startswith(PROFILE_VARIABLE) and name and key:
            profiles.setdefault(name.lower(), {})[key.lower().replace("__", ".")] = value
    return profiles
