"""What strangers may learn of a catalog's storage and ask of it: decided here, once, for every server."""

from headwater.namespace.vending.decision import Access, Keep, Own, Vendor, vend
from headwater.namespace.vending.options import check_request

__all__ = ["Access", "Keep", "Own", "Vendor", "check_request", "vend"]
