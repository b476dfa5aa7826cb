"""Every on-disk name of a server: what it keeps beside the catalog it serves (docs/formats/directory.md)."""

from headwater.store.seam import OWN_FOLDER

TOKENS = f"{OWN_FOLDER}/tokens"
OWN_ROLES = f"{OWN_FOLDER}/roles"
IDEMPOTENCY = f"{OWN_FOLDER}/idempotency"
