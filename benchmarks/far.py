"""Storage as it is far away: a bucket on loopback that waits, counts and throttles, and a store that does."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from headwater.store import WrappedStore
from headwater.store.seam import Store
from headwater.testing.bucket_server import BucketServer

Answer = TypeVar("Answer")
S3 = {"GET": 0.015, "HEAD": 0.012, "PUT": 0.025, "LIST": 0.035, "DELETE": 0.015}
"""Seconds to answer small requests, about what object stores take within a region."""
VERBS = {
    **dict.fromkeys(("get", "get_all", "read"), "GET"),
    **dict.fromkeys(("list", "children"), "LIST"),
    **dict.fromkeys(("delete", "delete_tree"), "DELETE"),
    "head": "HEAD",
}
KEYS = {"access_key_id": "far", "secret_access_key": "far", "region": "us-east-1"}


class Throttle:
    """So many requests a second; those above wait, as a client does that is told to slow down."""

    def __init__(self, per_second: float) -> None:
        self._gap, self._next, self._lock = 1 / per_second, 0.0, threading.Lock()

    def wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._next = max(self._next + self._gap, now)
            late = self._next - now
        time.sleep(late)


class FarStore(WrappedStore):
    """A store whose requests take their time. A round of many keys side by side takes that of one."""

    def __init__(self, inner: Store, delay: Mapping[str, float] = S3, throttle: Throttle | None = None) -> None:
        super().__init__(inner)
        self.delay, self.throttle = delay, throttle
        self.received = 0
        self.counts: Counter[str] = Counter()

    def around(self, verb: str, key: str, action: Callable[[], Answer]) -> Answer:
        named = VERBS.get(verb, "PUT")
        self.counts[named] += 1
        if self.throttle is not None:
            self.throttle.wait()
        time.sleep(self.delay.get(named, 0))
        answer = action()
        found = answer if isinstance(answer, list) else [answer]
        self.received += sum(len(data) for data in found if isinstance(data, bytes))
        return answer

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        self.around("put_all", "", lambda: self.inner.put_all(items, durable))


class FarBucket(BucketServer):
    """A bucket on loopback that counts requests and bytes, and waits before each answer."""

    def __init__(self, delay: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.delay = dict(delay or {})
        self.counts: Counter[str] = Counter()
        self.sent = self.received = 0
        self.keys: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        import boto3

        super().__enter__()
        self.root = f"s3://b{uuid.uuid4().hex}/lake"
        named = {"aws_access_key_id": "far", "aws_secret_access_key": "far", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=self.url, **named).create_bucket(Bucket=self.root.split("/")[2])
        self.reset()
        return self

    @property
    def properties(self) -> dict[str, str]:
        told = {"endpoint": self.url, "allow_http": "true", "virtual_hosted_style_request": "false", **KEYS}
        return {f"storage.{name}": value for name, value in told.items()}

    def reset(self) -> None:
        self.counts.clear()
        self.keys.clear()
        self.sent = self.received = 0

    def answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        verb = "LIST" if method == "GET" and "list-type" in query else "DELETE" if "delete" in query else method

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            length = next((value for name, value in headers if name.lower() == "content-length"), "0")
            with self._lock:
                self.received += int(length) if method == "GET" else 0
            return start(status, headers, *more)

        with self._lock:
            self.counts[verb] += 1
            self.keys.append((verb, environ.get("PATH_INFO", "")))
            self.sent += int(environ.get("CONTENT_LENGTH") or 0)
        time.sleep(self.delay.get(verb, 0))
        return super().answer(environ, started)
