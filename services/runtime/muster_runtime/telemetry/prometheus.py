"""Serves the numbers of a process to Prometheus."""

import socket
import threading
from collections import Counter
from contextlib import suppress
from socketserver import TCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from muster_runtime.addresses import Address
from muster_runtime.errors import StartupError

CONNECTIONS_MAX = 16
"""Scrapes at a time; for another one the oldest of the host with most is closed: neither who drips bytes nor
who connects again and again keeps Prometheus out."""
CONNECTION_TIMEOUT_S = 10.0
"""How long a client may leave its connection silent."""

_POLL_S = 0.5
"""How often the thread looks whether it shall end."""


class PrometheusEndpoint:
    """An HTTP server in threads of its own.

    Args:
        registry: what it serves.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._app = make_wsgi_app(registry)
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, listen: Address) -> int:
        """Listens.

        Returns:
            The bound port.

        Raises:
            StartupError: the address is taken, or is none of this machine's.
        """
        server_class = _ServerV6 if ":" in listen.host else _Server
        try:
            self._server = make_server(listen.host, listen.port, self._app, server_class, _Handler)
        except OSError as error:
            raise StartupError(
                f"MUSTER_TELEMETRY_PROMETHEUS_LISTEN={listen}: cannot listen there: {error.strerror}"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": _POLL_S},
            name="prometheus",
            daemon=True,
        )
        self._thread.start()
        return self._server.server_port

    def stop(self) -> None:
        """Closes the port. Waits for the thread that listens, not for open scrapes."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_TIMEOUT_S

    def log_message(self, *_: Any, **__: Any) -> None:
        """Scrapes are not logged."""


class _Server(ThreadingWSGIServer):
    block_on_close = False

    def __init__(self, *args: Any, **options: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, str] = {}
        super().__init__(*args, **options)

    def server_bind(self) -> None:
        """Binds without asking a name server who this machine is, as the library's own does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                ((host, _),) = Counter(self._open.values()).most_common(1)
                oldest = next(connection for connection, of in self._open.items() if of == host)
                del self._open[oldest]
                with suppress(OSError):  # it is closed
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = client_address[0]
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closed the connection is no error."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6
