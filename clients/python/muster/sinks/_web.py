"""The fence of an HTTP service: headers of the request, and a middleware that looks at them."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, unquote

from muster._config import check_between, check_texts
from muster._errors import MusterError
from muster.sinks._resource import Owned, StaleToken, is_token, resource_of

RESOURCE_HEADER, TOKEN_HEADER = "Muster-Resource", "Muster-Token"

_RESOURCE_MAX_BYTES = 1_024
_RESOURCES_MAX = 1_000_000_000
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


def fence_headers(owned: Owned) -> dict[str, str]:
    """The headers with which a worker writes as the owner of a partition."""
    return {RESOURCE_HEADER: quote(resource_of(owned), safe="/"), TOKEN_HEADER: owned.token}


class TooManyResources(MusterError):
    """A service keeps the tokens of as many resources as it may."""


class Tokens(Protocol):
    """Where a service keeps the highest token of each resource."""

    async def raised(self, resource: str, token: str) -> str:
        """Keeps this token if it is the highest; returns the highest.

        Raises:
            TooManyResources: no further one can be kept.
        """


class MemoryTokens:
    """Keeps tokens in memory: right for a service of one process, from the first request of each owner on.

    After a restart it knows none, so a stale owner that writes before the present one does is let in. Where
    that matters keep them with the data, such as with `SqlFence`.

    Args:
        limit: of resources.
    """

    def __init__(self, limit: int = 100_000) -> None:
        check_between("limit", limit, 1, _RESOURCES_MAX)
        self._limit = limit
        self._highest: dict[str, str] = {}

    async def raised(self, resource: str, token: str) -> str:
        """See `Tokens`."""
        highest = max(token, self._highest.get(resource, ""))
        if resource not in self._highest and len(self._highest) >= self._limit:
            raise TooManyResources(f"the tokens of {self._limit:,} resources are kept, which is the limit")
        self._highest[resource] = highest
        return highest


@dataclass(slots=True)
class _Running:
    """The requests of a resource that are being carried out: all have one token."""

    token: str
    requests: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class FencingMiddleware:
    """ASGI middleware that answers 412 to writes of an owner that was succeeded.

    Requests of a successor wait until those of the owner before have ended, so that none of these is carried
    out after one of its own. That holds within one process.

    Args:
        app: the application.
        tokens: where the highest tokens are kept; None: in memory.
        methods: which methods write.
        required: whether such a request must name a resource and a token; False: one without both passes.
    """

    def __init__(
        self,
        app: App,
        tokens: Tokens | None = None,
        *,
        methods: Collection[str] = _WRITES,
        required: bool = True,
    ) -> None:
        if not callable(app):
            raise TypeError(f"app must be an ASGI application, not {app!r}")
        if tokens is not None and not callable(getattr(tokens, "raised", None)):
            raise TypeError(f"tokens must have a function `raised`, not be {tokens!r}")
        self._app = app
        self._tokens = MemoryTokens() if tokens is None else tokens
        self._methods = frozenset(check_texts("methods", methods))
        self._required = required
        self._running: dict[str, _Running] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        resource = headers.get(RESOURCE_HEADER.lower().encode(), "")
        token = headers.get(TOKEN_HEADER.lower().encode(), "")
        if not resource and not token:
            if self._required:
                text = f"writes need the headers {RESOURCE_HEADER} and {TOKEN_HEADER}"
                await _refuse(send, 428, "token_required", text)
            else:
                await self._app(scope, receive, send)
        elif not 1 <= len(resource) <= _RESOURCE_MAX_BYTES:
            await _refuse(
                send, 400, "bad_resource", f"{RESOURCE_HEADER} has 1 to {_RESOURCE_MAX_BYTES} bytes"
            )
        elif not is_token(token):
            await _refuse(send, 400, "bad_token", f"{TOKEN_HEADER} is no token of Muster")
        else:
            await self._fenced(unquote(resource), token, scope, receive, send)

    async def _fenced(self, resource: str, token: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            highest, running = await self._enter(resource, token)
        except TooManyResources as error:
            await _refuse(send, 503, "too_many_resources", str(error))
            return
        if running is None:
            text = str(StaleToken(resource, token, highest))
            await _refuse(send, 412, "stale_token", text)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            running.requests -= 1
            if not running.requests:
                del self._running[resource]
                running.ended.set()

    async def _enter(self, resource: str, token: str) -> "tuple[str, _Running | None]":
        """Waits until no earlier owner is served; gives the highest token, and None to a stale owner."""
        while True:
            highest = await self._tokens.raised(resource, token)
            running = self._running.get(resource)
            if highest != token:
                return highest, None
            if running is None or running.token == token:
                entered = self._running.setdefault(resource, _Running(token))
                entered.requests += 1
                return token, entered
            await running.ended.wait()


async def _refuse(send: Send, status: int, error: str, message: str) -> None:
    body = json.dumps({"error": error, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
