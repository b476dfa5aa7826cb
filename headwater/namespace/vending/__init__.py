"""What strangers may learn of a catalog's storage and ask of it: decided here, once, for every server."""

from headwater.namespace.vending.decision import FileAccess, Keep, Own, Vendor, vend
from headwater.namespace.vending.options import check_request
from headwater.namespace.vending.scoped import Scoped, ScopedSettings

__all__ = ["FileAccess", "Keep", "Own", "Scoped", "ScopedSettings", "Vendor", "check_request", "vend"]
