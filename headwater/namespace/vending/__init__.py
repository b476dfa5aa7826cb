"""Storage access of untrusted clients: credentials and locations that a server may return, decided in one place."""

from headwater.namespace.vending.decision import FileAccess, Keep, Own, Vendor, check_request, vend
from headwater.namespace.vending.scoped import Scoped, ScopedSettings

__all__ = ["FileAccess", "Keep", "Own", "Scoped", "ScopedSettings", "Vendor", "check_request", "vend"]
