"""Look-ups that are answered from memory, in the callback of the last byte of their request.

No task is made, and nothing waits. Every check is that of the middleware, in its order; what any of them refuses or has
to wait for, and every answer that is not in memory, goes the way of all requests, which begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.errors import LanceNamespaceError
from headwater.rest.body import FREE
from headwater.rest.call import Call
from headwater.rest.dispatch import LOOKUPS
from headwater.rest.endpoint import Endpoint
from headwater.rest.middleware import Admitted, Limited, OwnSite, Recorded, Routed
from headwater.rest.remote_client import is_remote
from headwater.rest.sending import headers_of

ASKED = (b"/describe", b"/exists")


class AtOnce:
    """Answers a request that is there as a whole, or leaves it."""

    def __init__(
        self,
        recorded: Recorded,
        site: OwnSite,
        routed: Routed,
        admitted: Admitted,
        limited: Limited,
        endpoint: Endpoint,
    ) -> None:
        self._recorded = recorded
        self._site = site
        self._routed = routed
        self._admitted = admitted
        self._limited = limited
        self._endpoint = endpoint

    @staticmethod
    def takes(url: bytes) -> bool:
        """Return True for the address of a look-up, as far as can be told without its route."""
        return url.startswith(b"/v1/") and (ASKED[0] in url or ASKED[1] in url)

    def answer(self, scope: Mapping[str, Any], body: bytes) -> list[bytes] | None:
        """Return the answer's headers after the status line, and its body; None: it takes more than memory."""
        if len(body) > FREE:
            return None
        call = self._recorded.call_of(scope)
        try:
            return self._answer(call, body)
        except LanceNamespaceError:
            return None  # the other way comes to the same error, and puts it on record

    def _answer(self, call: Call, body: bytes) -> list[bytes] | None:
        if "content-encoding" in call.headers or is_remote(call):
            return None
        self._site.check(call, visits=False)
        self._routed.find(call)
        if call.operation not in LOOKUPS or not self._admitted.knows(call):
            return None
        reply = self._endpoint.remembered(call, body)
        if reply is None:
            return None
        self._admitted.take(call)
        self._limited.check(call)
        call.status = reply.status
        self._recorded.note(call)
        lines = [line for name, value in headers_of(call, reply) for line in (name, b": ", value, b"\r\n")]
        return [*lines, b"\r\n", reply.body]
