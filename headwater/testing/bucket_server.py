"""An S3 server on loopback (moto) for tests. Needs moto with its server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self


class BucketServer(AbstractContextManager["BucketServer"]):
    """An S3 server that handles one request at a time, so that conditional puts are atomic.

    moto checks for an object and then puts it. With concurrent requests two creators could both succeed.
    """

    url: str

    def __init__(self) -> None:
        self._answering = threading.Lock()

    def __enter__(self) -> Self:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self.answer, True, request_handler=MotoRequestHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, environ: dict[str, object], start: Callable[..., object]) -> Iterable[bytes]:
        with self._answering:
            told: Iterable[bytes] = self._app(environ, start)
            return told
