"""From what a user writes to a catalog. The only place that chooses which kind to open.

A profile is a table of `headwater.toml`; the environment can add to it or override it:

    [catalog.lake]                  HEADWATER_CATALOG__LAKE__ROOT=./lake
    impl = "dir"                    HEADWATER_CATALOG__LAKE__STORAGE__REGION=eu-west-1
    root = "./lake"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lance_namespace import LanceNamespace

from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.namespace.directory import DirectoryNamespace
from headwater.store import is_local

CONFIG_FILE = "headwater.toml"
CONFIG_VARIABLE = "HEADWATER_CONFIG"
PROFILE_VARIABLE = "HEADWATER_CATALOG__"
DEFAULT_PROFILE = "default"
DIRECTORY = ("dir", "headwater.DirectoryNamespace")
REST = ("rest",)


def connect(impl: str, properties: Mapping[str, Any] | None = None) -> LanceNamespace:
    """A catalog by kind: `dir` (a directory or object store), or `rest` (a Lance REST server)."""
    values = dict(properties or {})
    if impl in DIRECTORY:
        return DirectoryNamespace(**values)
    if impl in REST:
        return _connect_rest(values)
    raise InvalidInputError(f"{impl!r} is no kind of catalog: use 'dir' or 'rest'.")


def open_catalog(target: str | None = None, properties: Mapping[str, Any] | None = None) -> LanceNamespace:
    """A catalog by a path, a URI or the name of a profile; with nothing given, the profile `default`."""
    given = dict(properties or {})
    name = target or DEFAULT_PROFILE
    profile = load_profile(name)
    if profile is not None:
        return _from_profile(name, {**profile, **given})
    if target is None and not given:
        raise InvalidInputError(f"No catalog was named: give a path or a URI, or write a profile in {CONFIG_FILE}.")
    if target is None:
        return _from_profile(name, given)
    if target.startswith(("http://", "https://")):
        return connect("rest", {"uri": target, **given})
    return connect("dir", {"root": target, **given})


def load_profile(name: str) -> dict[str, Any] | None:
    """The properties of a profile from the file and the environment, which wins; None if neither knows it."""
    file = _read_file().get(name)
    variables = _read_environment().get(name.lower())
    if file is None and variables is None:
        return None
    return {**(file or {}), **(variables or {})}


def profile_names() -> list[str]:
    return sorted({*_read_file(), *_read_environment()})


def _from_profile(name: str, properties: Mapping[str, Any]) -> LanceNamespace:
    """`impl`, `root`, `uri`, and their early names `type`, `path`, `uri` (lance-catalog-early.md, "Configurations")."""
    values = dict(properties)
    impl = values.pop("impl", None) or values.pop("type", None) or ("rest" if "uri" in values else "dir")
    values.pop("type", None)
    if impl in DIRECTORY and "uri" in values:
        raise InvalidInputError(f"The catalog {name!r} has both impl=dir and uri: a directory has a root.")
    return connect(str(impl), values)


def _connect_rest(properties: dict[str, Any]) -> LanceNamespace:
    try:
        from headwater.rest.client import connect_rest
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(
            f"A REST catalog needs the module {missing.name}: pip install 'headwater[server]'."
        ) from None
    return connect_rest(properties)


def _read_file() -> dict[str, dict[str, Any]]:
    path = _find_file()
    if path is None:
        return {}
    try:
        catalogs = tomllib.loads(path.read_text()).get("catalog", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(catalogs, dict) or not all(isinstance(profile, dict) for profile in catalogs.values()):
        raise InvalidInputError(f"{path.name}: write each profile as a table [catalog.NAME].")
    return {name: _flat(profile, path.parent) for name, profile in catalogs.items()}


def _find_file() -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise InvalidInputError(f"{CONFIG_VARIABLE} names {named!r}, which is no file.")
        return Path(named)
    places = (Path.cwd() / CONFIG_FILE, Path.home() / ".config" / "headwater" / CONFIG_FILE)
    return next((place for place in places if place.is_file()), None)


def _flat(profile: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Nested tables become dotted keys; a relative root is relative to the file, wherever it is used from."""
    values: dict[str, Any] = {}
    for key, value in profile.items():
        if isinstance(value, dict):
            values.update({f"{key}.{inner}": item for inner, item in _flat(value, folder).items()})
        else:
            values[key] = str(value).lower() if isinstance(value, bool) else str(value)
    for key in ("root", "path"):
        if key in values and is_local(values[key]) and not values[key].startswith("file://"):
            values[key] = str((folder / Path(values[key]).expanduser()).resolve())
    return values


def _read_environment() -> dict[str, dict[str, Any]]:
    profiles: dict[str, dict[str, Any]] = {}
    for variable, value in os.environ.items():
        name, _, key = variable.removeprefix(PROFILE_VARIABLE).partition("__")
        if variable.startswith(PROFILE_VARIABLE) and name and key:
            profiles.setdefault(name.lower(), {})[key.lower().replace("__", ".")] = value
    return profiles
