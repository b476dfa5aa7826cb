"""Opens a back end by its name or class, with one clear error at start."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import threading
from collections.abc import Mapping
from typing import Any

import lance_namespace
from lance_namespace import LanceNamespace, ListNamespacesRequest

from headwater.adapter.adapted import AdaptedNamespace, first_words
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    UnsupportedOperationError,
)
from headwater.references import followed_all

IMPLS = "lance_namespace_impls"
IMPLS_NAMES = ("glue", "hive2", "hive3", "iceberg", "polaris", "unity")
"""Names that the package of implementations registers, listed here so that its absence can be reported."""
ANSWER_SECONDS = 30.0


def open_adapted(impl: str, properties: Mapping[str, Any]) -> AdaptedNamespace:
    """Open the back end of a name (`glue`) or a class (`package.module.Class`). Errors 13, 0."""
    kind = find_class(impl)
    given = {key: str(value) for key, value in followed_all(properties).items()}
    try:
        return AdaptedNamespace(kind(**given), impl)
    except ImportError as missing:
        raise UnsupportedOperationError(
            f"The back end {impl} needs a package that is not installed: {first_words(missing)}."
        ) from None
    except LanceNamespaceError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The back end {impl} cannot be opened with these properties ({', '.join(sorted(given)) or 'none'}): "
            f"{first_words(error)}."
        ) from None


def find_class(impl: str) -> type[LanceNamespace]:
    """Return the class of a name or of a dotted path."""
    path = _path(impl)
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(
            f"The back end {impl} needs the module {missing.name}, which is not installed."
        ) from None
    except (ImportError, AttributeError):
        raise InvalidInputError(f"There is no class {name} in the module {module}.") from None
    if not (inspect.isclass(found) and issubclass(found, LanceNamespace)):
        raise InvalidInputError(f"{impl} is no implementation of lance_namespace.LanceNamespace.")
    return found


def _path(impl: str) -> str:
    has_impls = importlib.util.find_spec(IMPLS) is not None
    if has_impls:
        importlib.import_module(IMPLS)  # registers its names
    registered = lance_namespace._REGISTERED_IMPLS.get(impl)
    if registered is not None:
        return str(registered)
    if "." in impl.strip("."):
        return impl
    if impl in IMPLS_NAMES:
        raise UnsupportedOperationError(
            f"The back end {impl} needs lance-namespace-impls: pip install 'headwater[impls]'."
        )
    known = ", ".join(("metastore", "dir", "rest", *IMPLS_NAMES))
    raise InvalidInputError(
        f"{impl[:80]!r} is no kind of catalog: use {known}, or the class of a back end, such as package.module.Class."
    )


def check_answers(namespace: AdaptedNamespace, seconds: float = ANSWER_SECONDS) -> None:
    """Raise ServiceUnavailable (17) unless the back end answers now."""
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            namespace.adapted.list_namespaces(ListNamespacesRequest(id=[], limit=1))
        except (NotImplementedError, UnsupportedOperationError):
            pass
        except Exception as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="headwater-adapter", daemon=True)
    asking.start()
    asking.join(seconds)
    if asking.is_alive():
        raise ServiceUnavailableError(f"The back end {namespace.impl} did not answer within {seconds:g} seconds.")
    if failed:
        raise ServiceUnavailableError(f"The back end {namespace.impl} does not answer: {first_words(failed[0])}.")
