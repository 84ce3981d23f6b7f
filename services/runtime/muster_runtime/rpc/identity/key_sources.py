"""Where the keys of an issuer come from: a file, or an address that is asked in the background."""

import asyncio
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import structlog

from muster_runtime.rpc._files import RenewedFiles
from muster_runtime.rpc.identity.keys import BadKeys, KeySet
from muster_runtime.rpc.identity.settings import IdentitySettings
from muster_runtime.settings import SettingsError

log = structlog.get_logger()

MOST_BYTES = 1 << 20
"""What an answer with keys may hold."""

LOOK_S = 1.0
"""How often to look whether a file has changed."""

_SILENT_S = 5.0
_FETCH_S = 10.0
"""How long a fetch may take."""


class KeySource(Protocol):
    """Has the keys of an issuer."""

    def current(self) -> KeySet | None:
        """The keys that are known; None: none have come yet. Cheap."""

    @property
    def failing(self) -> bool:
        """Whether the last look for newer keys brought none: the known ones count on."""

    async def newer(self) -> None:
        """Looks for newer keys, unless it did a moment ago: a token names one that is not known."""

    def start(self) -> None:
        """Begins to keep them up to date, on the event loop that runs."""

    def stop(self) -> None:
        """Ends that."""


class FileKeys:
    """Keys in a file, which is read again when it has changed; one that cannot be used leaves the last.

    Args:
        settings: name the file.

    Raises:
        SettingsError: it cannot be used.
    """

    def __init__(self, settings: IdentitySettings) -> None:
        assert settings.token_jwks_file is not None
        self._algorithms = settings.token_algorithms
        paths = {settings.variable("token_jwks_file"): settings.token_jwks_file}
        self._file = RenewedFiles("token_keys", paths, self._check)
        self._looked_s = monotonic()
        self._keys = self._read(None)

    def current(self) -> KeySet:
        """See `KeySource`."""
        if monotonic() - self._looked_s >= LOOK_S:
            self._look()
        return self._keys

    @property
    def failing(self) -> bool:
        """See `KeySource`."""
        return self._file.refuses

    async def newer(self) -> None:
        """See `KeySource`."""
        self._look()

    def start(self) -> None:
        """See `KeySource`; there is nothing to do."""

    def stop(self) -> None:
        """See `KeySource`; there is nothing to do."""

    def _look(self) -> None:
        self._looked_s = monotonic()
        self._keys = self._read(self._keys)

    def _read(self, before: KeySet | None) -> KeySet:
        (content,) = self._file.read().values()
        if before is not None and content == before.content:
            return before
        return KeySet(content, self._algorithms)

    def _check(self, contents: Mapping[str, bytes]) -> None:
        ((variable, content),) = contents.items()
        try:
            KeySet(content, self._algorithms)
        except BadKeys as error:
            raise SettingsError([f"{variable}: {error}"]) from None


class UrlKeys:
    """Keys at an address, fetched now and then; where that fails the last ones stay.

    Args:
        settings: name the address, and how often to ask there.
    """

    def __init__(self, settings: IdentitySettings) -> None:
        self._settings = settings
        self._refresh_s = settings.token_jwks_refresh_ms / 1000
        self._pause_s = settings.token_jwks_refetch_ms / 1000
        self._keys: KeySet | None = None
        self._began_s: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._failing = False

    def current(self) -> KeySet | None:
        """See `KeySource`."""
        return self._keys

    @property
    def failing(self) -> bool:
        """See `KeySource`."""
        return self._failing

    def start(self) -> None:
        """See `KeySource`."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="token-keys")

    def stop(self) -> None:
        """See `KeySource`."""
        for task in (self._keeping, self._fetching):
            if task is not None:
                task.cancel()

    async def newer(self) -> None:
        """See `KeySource`."""
        if self._fetching is None:
            if self._began_s is not None and monotonic() - self._began_s < self._pause_s:
                return
            self._began_s = monotonic()
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(), name="token-keys-fetch")
            self._fetching.add_done_callback(self._fetched)
        await asyncio.wait((self._fetching,))

    async def _keep(self) -> None:
        while True:
            await self.newer()
            await asyncio.sleep(self._pause_s if self._failing else max(self._refresh_s, self._pause_s))

    def _fetched(self, _: object) -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        url = self._settings.token_jwks_url
        try:
            content = await _in_thread(self._ask)
            if self._keys is None or self._keys.content != content:
                self._keys = KeySet(content, self._settings.token_algorithms)
                log.info("token_keys_fetched", url=url)
        except (OSError, ValueError, BadKeys, http.client.HTTPException) as error:
            if not self._failing:
                log.warning(
                    "token_keys_not_fetched", url=url, problem=str(error), known=self._keys is not None
                )
            self._failing = True
        else:
            self._failing = False

    def _ask(self) -> bytes:
        """Fetches the keys; in a thread. Redirections lead nowhere: the address is the one that was set."""
        settings = self._settings
        assert settings.token_jwks_url is not None
        until_s = monotonic() + _FETCH_S
        context = ssl.create_default_context(cafile=settings.token_jwks_ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        connections = _Connections(context)
        opener = urllib.request.build_opener(connections, _NoRedirects())
        request = urllib.request.Request(settings.token_jwks_url)  # noqa: S310 - the settings take https alone
        request.add_header("accept", "application/jwk-set+json, application/json")
        if settings.token_jwks_bearer_file is not None:
            request.add_unredirected_header(
                "authorization", f"Bearer {_token(settings.token_jwks_bearer_file)}"
            )
        content = bytearray()
        # Headers that come byte by byte are never silent for long: without it they would take for ever.
        cutting = threading.Timer(_FETCH_S, connections.cut)
        cutting.daemon = True
        cutting.start()
        try:
            opened = opener.open(request, timeout=_SILENT_S)
        except urllib.error.HTTPError as error:
            error.close()
            raise ValueError(f"it was answered {error.code} {error.reason}") from None
        finally:
            cutting.cancel()
        with opened as answer:
            while part := answer.read1(65_536):
                content += part
                if len(content) > MOST_BYTES:
                    raise ValueError(f"the answer is larger than {MOST_BYTES:,} bytes")
                if monotonic() > until_s:
                    raise TimeoutError(f"the answer took longer than {_FETCH_S:g} s")
        return bytes(content)


class _Connections(urllib.request.HTTPSHandler):
    """Makes connections that can be cut while their answer's headers are awaited."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._tls = context
        self._made: list[http.client.HTTPSConnection] = []

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._connection, request, context=self._tls)

    def _connection(self, host: str, **named: Any) -> http.client.HTTPSConnection:
        made = http.client.HTTPSConnection(host, **named)
        self._made.append(made)
        return made

    def cut(self) -> None:
        """Ends the connections, from another thread than the one that waits."""
        for connection in self._made:
            if connection.sock is not None:
                with suppress(OSError):
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _token(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(MOST_BYTES).decode("ascii").strip()


def _in_thread(work: Callable[[], bytes]) -> "asyncio.Future[bytes]":
    """Does blocking work in a thread that the process does not wait for at its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_it(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (done.set_result, work())
        except Exception as error:
            outcome = (done.set_exception, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="token-keys", daemon=True).start()
    return done
