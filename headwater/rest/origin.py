"""The origin of a request: the client's address behind proxies, and the web site that made it. Pure rules.

A browser sends requests for any page it shows, to loopback too. So a request that names another site, or that
reached this server under a name it is not served by (DNS rebinding), is refused, whatever it asks.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from headwater.errors import InvalidInputError, PermissionDeniedError

MAX_SHOWN = 100
MAX_HOST_CHARS = 300
OWN_SITES = frozenset({"same-origin", "none"})
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^:\[\]/@]+))(?::[0-9]*)?", re.ASCII)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks of proxies, as `--proxy` takes them."""
    try:
        return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts)
    except ValueError as error:
        raise InvalidInputError(f"A proxy must be an address or a network: {str(error)[:MAX_SHOWN]}.") from None


def address_of(peer: str, forwarded: str | None, proxies: tuple[Network, ...]) -> str:
    """Return the client's address. X-Forwarded-For is believed only from a configured proxy, and only back to the first
    address in it, from the right, that is not one."""
    if not forwarded or not _is_within(peer, proxies):
        return peer
    found = peer
    for part in reversed(forwarded[-2000:].split(",")):
        address = part.strip()
        if not _is_address(address):
            return found
        found = address
        if not _is_within(address, proxies):
            return found
    return found


def speaks_for(peer: str, proxies: tuple[Network, ...]) -> bool:
    """Return True for a peer that is a trusted proxy."""
    return _is_within(peer, proxies)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_site(
    headers: Mapping[str, str], names: frozenset[str], is_open: bool, any_address: bool, visits: bool = False
) -> None:
    """PermissionDenied (15) for what another web site sends, or what comes under a name not served here.

    `names` are the host names the server was told it is served by. Without any, an open server answers to the names
    of the loopback address (and, with `any_address`, to addresses), one that asks for keys answers to every name.
    With `visits`, a link on another site may lead here: a page to look at in a window of its own changes nothing.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site not in OWN_SITES and not (visits and _is_visit(headers)):
        raise PermissionDeniedError("The request was made by a page of another web site: this server takes none.")
    host = headers.get("host", "")
    origin = headers.get("origin")
    if origin is not None and not _is_own(origin, host, names):
        raise PermissionDeniedError(f"The web site {origin[:MAX_SHOWN]!r} is not this server: it takes no other's.")
    if (is_open or names) and not _is_served(host[:MAX_HOST_CHARS], names, any_address):
        raise PermissionDeniedError(
            f"This server is not served as {host[:MAX_SHOWN]!r}: use localhost, or start it with --host-name."
        )


def _is_visit(headers: Mapping[str, str]) -> bool:
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _is_own(origin: str, host: str, names: frozenset[str]) -> bool:
    if len(origin) > MAX_HOST_CHARS:
        return False
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not name:
        return False
    return parts.netloc.lower() == host.lower() or name in names


@lru_cache(1024)
def _is_served(host: str, names: frozenset[str], any_address: bool) -> bool:
    name = _host_name(host)
    if name in names or is_loopback(name):
        return True
    return any_address and _is_address(name)


def _host_name(host: str) -> str:
    """Return the name in a Host header: without the port and the brackets of an IPv6 address; none if it is more than
    that."""
    found = _HOST.fullmatch(host.strip().lower())
    return "" if found is None else found["address"] or found["name"]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_within(address: str, among: tuple[Network, ...]) -> bool:
    if not among:
        return False
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in among)
