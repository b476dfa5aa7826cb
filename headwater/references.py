"""Secrets by reference: a property may name the place of its value instead of the value.

    storage.secret_access_key = "env:LAKE_SECRET"      headers.x-api-key = "file:~/.headwater/key"

So no secret needs to be on a command line, in a profile or in a pickled catalog: a reference is followed when the
catalog is opened, and only for properties that hold secrets. And a configuration file that nobody named may not
bring keys that stand elsewhere to a place of its own choice (`check_foreign`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from headwater.errors import InvalidInputError

SECRET_PREFIXES = ("storage.", "headers.", "header.")
SPARK_PREFIX = "spark."
VARIABLE, FILE = "env:", "file:"
MAX_SECRET_BYTES = 64 * 1024
REGION = re.compile(r"storage\.(aws_)?(default_)?region", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_OWN_KEYS = ("secret_access_key", "account_key", "access_key", "sas_key", "sas_token", "service_account_key")
_UNSIGNED = ("skip_signature", "aws_skip_signature", "azure_skip_signature", "google_skip_signature")
_AMBIENT = re.compile(
    r"AWS_(?!REGION$|DEFAULT_REGION$|PROFILE$|PAGER$).*|GOOGLE_.*|AZURE_.*(KEY|SECRET|TOKEN|SAS).*", re.ASCII
)
OWN_KINDS = ("dir", "metastore", "rest", "headwater.DirectoryNamespace", "headwater.MetastoreNamespace")
"""The kinds of catalog that are ours: whatever a file says of them, only our code runs."""
DESTINATIONS = ("root", "path", "uri", "impl", "type")


def follow(value: str, name: str) -> str:
    """Return the value, or the value that it refers to: `env:VARIABLE`, `file:PATH` (without the last newline)."""
    if value.startswith(VARIABLE):
        variable = value.removeprefix(VARIABLE)
        found = os.environ.get(variable)
        if not found:
            raise InvalidInputError(f"{name} is in the environment variable {variable[:80]!r}, which is not set.")
        return found
    if value.startswith(FILE):
        return read_secret(value.removeprefix(FILE), name)
    return value


def read_secret(path: str, name: str) -> str:
    """Return the secret in a file. InvalidInput (13) names the file and never its contents."""
    try:
        with open(Path(path).expanduser(), encoding="utf-8") as file:
            text = file.read(MAX_SECRET_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InvalidInputError(f"{name} is in the file {path[:200]!r}, which cannot be read: {reason}.") from None
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret or len(text) > MAX_SECRET_BYTES:
        raise InvalidInputError(f"{name} is in the file {path[:200]!r}, which is empty or too large to be a secret.")
    return secret


def followed(properties: Mapping[str, object]) -> dict[str, object]:
    """Return the properties with references resolved in those that hold secrets."""
    return {
        key: follow(value, key) if isinstance(value, str) and key.startswith(SECRET_PREFIXES) else value
        for key, value in properties.items()
    }


def followed_all(properties: Mapping[str, object]) -> dict[str, object]:
    """Return the properties of another back end with references resolved: `env:` in all, `file:` in names of secrets.

    Elsewhere `file:` begins a URI.
    """
    found = followed(properties)
    for key, value in found.items():
        if isinstance(value, str) and (value.startswith(VARIABLE) or (_is_secret(key) and value.startswith(FILE))):
            found[key] = follow(value, key)
    return found


def is_bare_secret(key: str, value: str) -> bool:
    """Return True for a property that holds a secret itself: other users can see it on a command line."""
    return _is_secret(key) and not _is_reference(value)


def _is_secret(key: str) -> bool:
    if not key.startswith(SECRET_PREFIXES):
        return re.search(r"secret|token|password", key, re.ASCII) is not None
    return (
        re.search(r"secret|token|password|sas_|_key$|^headers?\.", key.removeprefix("storage."), re.ASCII) is not None
    )


def check_foreign(
    name: str, profile: Mapping[str, object], given: Mapping[str, object], environment: Mapping[str, str]
) -> None:
    """Raise InvalidInput (13) if a profile of the working directory could send foreign keys to a place of its choice.

    The working directory may be anybody's: a cloned repository, an unpacked archive. Its file may describe a catalog,
    with keys of its own if it needs any. It may not hold references, nor choose where keys from the environment or
    the call are sent.
    """
    problem = _problem(profile, given, environment)
    if problem:
        raise InvalidInputError(
            f"The profile {name!r} of ./headwater.toml {problem}. The file stands in the working directory and nobody "
            "named it: if you trust it, set HEADWATER_CONFIG=headwater.toml."
        )


def _problem(profile: Mapping[str, object], given: Mapping[str, object], environment: Mapping[str, str]) -> str | None:
    impl = str(profile.get("impl") or profile.get("type") or "")
    if impl and impl not in OWN_KINDS:
        return f"names a back end of others, whose code would run here (impl = {impl[:80]!r})"
    if not str(profile.get("master", "local")).startswith("local") or any(
        key.startswith(SPARK_PREFIX) for key in profile
    ):
        return "chooses the Spark that would run code and get the keys of the storage"
    references = [key for key in profile if key.startswith(SECRET_PREFIXES) and _is_reference(profile[key])]
    if references:
        return f"has a reference to a secret ({references[0]})"
    secrets = sorted(key for key in given if key.startswith(SECRET_PREFIXES) and not _is_region(key, given[key]))
    chosen = sorted(
        key
        for key, value in profile.items()
        if key not in given and (key in DESTINATIONS or (key.startswith("storage.") and not _is_region(key, value)))
    )
    if secrets and chosen:
        return f"says where ({chosen[0]}), and a key comes from elsewhere ({secrets[0]})"
    places = [key for key in chosen if key.startswith("storage.") and not _is_key(key)]
    if not places:
        return None
    ambient = sorted(variable for variable in environment if _AMBIENT.fullmatch(variable))
    if ambient:
        return f"sets {places[0]}, and the environment has {ambient[0]}"
    return None if any(_is_key(key) for key in profile) else f"sets {places[0]} without keys of its own"


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and value.startswith((VARIABLE, FILE))


def _is_region(key: str, value: object) -> bool:
    return REGION.fullmatch(key) is not None and _PLAIN.fullmatch(str(value)) is not None


def _is_key(key: str) -> bool:
    return key.endswith(_OWN_KEYS) or key.removeprefix("storage.") in _UNSIGNED
