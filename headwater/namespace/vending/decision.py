"""The one decision on storage credentials: what an answer to a stranger has as `storage_options`.

A catalog inside this process gets its own options, for it works with them. A server puts each answer through `vend`,
which asks a vendor for every `storage_options` of it, nested ones too; what the catalog itself said is never the
default. Without a vendor nothing leaves the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

from headwater.errors import LanceNamespaceError
from headwater.namespace.vending import walk


class FileAccess(Enum):
    """Access of a caller to the files of a table."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Vendor(Protocol):
    """Source of the storage options in an answer."""

    @property
    def is_silent(self) -> bool:
        """True if no answer ever has any, so that answers can be kept and sent again."""
        ...

    def options(self, location: str, access: FileAccess, own: Mapping[str, str] | None) -> dict[str, str] | None:
        """Storage options for whoever may do this with the table there; `own` is what the catalog itself uses."""
        ...


class Keep:
    """Nothing leaves the server."""

    is_silent = True

    def options(self, location: str, access: FileAccess, own: Mapping[str, str] | None) -> dict[str, str] | None:
        return None


class Own:
    """The catalog's own options, secrets and all, for whoever may read a table: `--vend-credentials`."""

    is_silent = False

    def options(self, location: str, access: FileAccess, own: Mapping[str, str] | None) -> dict[str, str] | None:
        return dict(own) if own else None


def vend(response: Any, vendor: Vendor, access: FileAccess, asked: bool | None = None, is_done: bool = False) -> Any:
    """An answer with the storage options that the vendor gives for each table in it; none if it was asked not to.

    `is_done`: the answer tells of a change that was made, and must not fail because the vendor does.
    """

    def decide(around: Mapping[str, Any], own: Any) -> dict[str, str] | None:
        location = around.get("location")
        if asked is False or access is FileAccess.NONE or not isinstance(location, str):
            return None
        try:
            return vendor.options(location, access, own if isinstance(own, Mapping) else None)
        except LanceNamespaceError:
            if not is_done:
                raise
            return None

    return walk.replace(response, decide)
