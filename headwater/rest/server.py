"""Serving: the application of a catalog, in a thread, in this process, or in several worker processes."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import uvicorn
from lance_namespace import LanceNamespace
from starlette.routing import BaseRoute

from headwater.adapter import adapt
from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidInputError, ServiceUnavailableError, UnauthenticatedError
from headwater.imports import warm
from headwater.namespace.abilities import abilities_of
from headwater.rest.app import CatalogApp, Face
from headwater.rest.connections import bounded
from headwater.rest.origin import is_loopback
from headwater.rest.settings import Settings
from headwater.rest.work import Work
from headwater.store import Store

GRACE_SECONDS = 30
START_SECONDS = 30.0
BACKLOG = 2048


def create_app(
    namespace: LanceNamespace,
    settings: Settings | None = None,
    store: Store | None = None,
    clock: Clock | None = None,
    pages: Sequence[BaseRoute] = (),
    work: Work | None = None,
    face: Face | None = None,
) -> CatalogApp:
    """Return the ASGI application that serves a catalog, with pages of your own beside it.

    API keys are read from `store`: the catalog's own by default, where it has one. Data work is done in this process,
    or where `work` does it. `face` is the web page, if it is to have one. A back end of others is adapted.
    """
    where = store or abilities_of(namespace).store
    return CatalogApp(adapt(namespace), settings or Settings(), where, clock or SystemClock(), pages, work, face)


def check_exposure(app: CatalogApp, host: str, insecure: bool) -> None:
    """Raise if a server without authentication would listen on an address that others can reach, unless told to."""
    if not insecure and not is_loopback(host) and not app.gate.is_closed():
        raise UnauthenticatedError(
            f"Serving on {host} without authentication would give the catalog to everyone who can reach it. "
            "Create a key with `headwater token create`, or use --jwt-*, or say --insecure."
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServiceUnavailableError(f"Cannot listen on {host}:{port}: {error.strerror}.") from None
    listener.listen(BACKLOG)
    return listener


def url_of(listener: socket.socket, settings: Settings) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_cert is not None else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_tls(settings: Settings) -> None:
    """A certificate and a key that fit each other, or neither: seen before anything is served."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InvalidInputError("TLS needs both --tls-cert and --tls-key.")
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_cert, settings.tls_key, password=_no_password
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InvalidInputError(
            f"The certificate {settings.tls_cert} and the key {settings.tls_key} cannot be used: {str(reason)[:200]}. "
            "Both must be PEM files, belong together, and the key must have no password."
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


class ReadyServer(uvicorn.Server):
    """uvicorn with bounds, telling when it answers. It logs nothing itself: it would log stacks."""

    def __init__(self, app: CatalogApp) -> None:
        limits = app.settings.limits
        config = uvicorn.Config(
            app,
            http=bounded(limits, app.at_once),
            ws="none",
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_keep_alive=max(1, round(limits.keep_alive_seconds)),
            backlog=BACKLOG,
            ssl_certfile=app.settings.tls_cert,
            ssl_keyfile=app.settings.tls_key,
        )
        super().__init__(config)
        self.ready = threading.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal asks for a graceful stop; once stopped, it has been obeyed and is not raised again."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()


class RunningServer:
    """A server in a thread of this process; `stop` finishes the requests in flight."""

    def __init__(self, app: CatalogApp, listener: socket.socket) -> None:
        self.app = app
        self.url = url_of(listener, app.settings)
        self._listener = listener
        self._server = ReadyServer(app)
        self._thread = threading.Thread(target=self._run, name="headwater-rest", daemon=True)
        self._thread.start()
        if not self._server.ready.wait(START_SECONDS):
            raise ServiceUnavailableError("The server did not start.")

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(GRACE_SECONDS + 5)
        self._listener.close()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def start_in_thread(
    namespace: LanceNamespace,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    settings: Settings | None = None,
    store: Store | None = None,
    face: Face | None = None,
) -> RunningServer:
    """Serve a catalog from a thread of this process; with an `api_key` every request must carry it.

    Whoever holds that key acts for this process, so without other settings it also gets the storage options.
    """
    chosen = settings or Settings()
    if api_key is not None:
        if len(api_key) < 8:
            raise InvalidInputError("The API key is too short to be one: use at least 8 characters.")
        vends = chosen.vend_credentials or settings is None
        chosen = replace(chosen, api_key=api_key, key_is_owner=True, vend_credentials=vends)
    check_tls(chosen)
    warm()
    app = create_app(namespace, chosen, store, face=face)
    check_exposure(app, host, insecure=False)
    return RunningServer(app, bind(host, port))
