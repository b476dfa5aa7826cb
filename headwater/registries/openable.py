"""What keeps a root from being opened: an unfinished upgrade, or another kind of catalog. Needs no Lance."""

from __future__ import annotations

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.metastore.layout import FORMAT_KEY
from headwater.registries.layout import UPGRADE_MARKER
from headwater.store import Store


def unfinished_upgrade() -> InvalidTableStateError:
    return InvalidTableStateError(
        "This root is being upgraded to a metastore, or an upgrade was interrupted: run `headwater upgrade` again."
    )


def check_finished(store: Store) -> None:
    """InvalidTableState (19) while the root is half directory and half metastore. One request."""
    if store.head(UPGRADE_MARKER) is not None:
        raise unfinished_upgrade()


def check_directory(store: Store) -> None:
    """Error 19 as above; 13 for the root of a metastore, whose folders and mirror are not a directory catalog."""
    check_finished(store)
    if store.head(FORMAT_KEY) is not None:
        raise InvalidInputError("This root is a metastore catalog: open it without impl=dir.")
