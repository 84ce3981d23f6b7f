"""Calls between processes of the cluster: who may make them, by a token that all read or by a certificate."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import structlog
from pydantic import Field, PrivateAttr
from pydantic_settings import SettingsConfigDict

from muster_runtime.logs import Seldom
from muster_runtime.rpc._files import RenewedFiles
from muster_runtime.rpc.trust.peers import PeerList, named, names_of
from muster_runtime.settings import Settings, SettingsError

log = structlog.get_logger()

INTERNAL_PACKAGE = "muster.internal."
"""Services whose names begin so are for processes of the cluster, and for operators' commands."""

TOKEN_HEADER = "muster-internal-token"  # noqa: S105 - the name of a header

LOOK_S = 2.0
"""How often is looked whether the token still counts that a stream was opened with."""

SHORTEST_TOKEN, LONGEST_TOKEN = 32, 256
MOST_TOKENS = 4


class InternalSettings(Settings):
    """What calls between processes of a cluster present. Without a token whoever reaches a port may call."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_INTERNAL_")

    token_file: Path | None = Field(
        default=None,
        description=(
            "Tokens of the cluster, one a line, each of 32 to 256 visible characters: internal calls present "
            "the first one, and are accepted with any. The file may be changed while the process runs."
        ),
    )
    token_required: bool = Field(
        default=True,
        description=(
            "Whether internal calls without a token are refused; those with a wrong one always are. Off "
            "while the processes of a running cluster are given the file, one after the other."
        ),
    )

    peers: PeerList = Field(
        default=(),
        description=(
            "Who may make internal calls, by the names in its certificate, as "
            "`spiffe://example.org/muster/*,*.muster-coordinator.muster.svc`: with `://` URIs, else DNS "
            "names; `*` stands for one part. Others are answered PERMISSION_DENIED. Unset: names "
            "do not count."
        ),
    )

    _file: RenewedFiles | None = PrivateAttr(default=None)
    _read_tokens: tuple[bytes, tuple[str, ...]] = PrivateAttr(default=(b"", ()))

    def model_post_init(self, _: object) -> None:
        """Prepares to read the file; it is not read yet."""
        if self.token_file is not None:
            paths = {self.variable("token_file"): self.token_file}
            self._file = RenewedFiles("internal_tokens", paths, _check)

    @property
    def knows_callers(self) -> bool:
        """Whether who makes internal calls has to show a token, or the certificate of a peer."""
        return bool(self.peers) or (self.token_file is not None and self.token_required)

    def tokens(self) -> Sequence[str]:
        """The tokens, the one that is presented first; empty: none is asked for.

        Raises:
            SettingsError: the file cannot be used, and never could.
        """
        if self._file is None:
            return ()
        (content,) = self._file.read().values()
        if self._read_tokens[0] != content:
            self._read_tokens = content, tuple(content.decode("ascii").split())
        return self._read_tokens[1]


class InternalCalls:
    """Lets internal calls in: by the names in a certificate, by a token, or by both where both are set.

    Args:
        settings: the tokens and the names.

    Raises:
        SettingsError: the file cannot be used.
    """

    def __init__(self, settings: InternalSettings) -> None:
        settings.tokens()
        self._settings = settings
        self._lines = Seldom()

    async def check(self, method: str, context: Any) -> None:
        """Ends the call if it may not be made.

        UNAUTHENTICATED: it has no certificate or no valid token. PERMISSION_DENIED: its certificate is
        somebody else's.
        """
        if self._settings.peers:
            await self._check_names(method, context)
        tokens = self._settings.tokens()
        if not tokens:
            return
        shown = _token_of(context)
        if shown is None:
            if not self._settings.token_required:
                return
            why = "the call has no token of the cluster"
        elif self._counts(shown):
            return
        else:
            why = "the call has a token that is not of this cluster"
        await self._refuse(method, context, grpc.StatusCode.UNAUTHENTICATED, why, "token_file")

    async def while_it_counts(
        self, serve: Callable[[Any, Any], Awaitable[Any]], request: Any, context: Any
    ) -> Any:
        """Serves a stream that was let in, until the token that it showed is replaced: UNAVAILABLE then."""
        shown = _token_of(context)
        if shown is None or not self._settings.tokens():
            return await serve(request, context)
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        looking: list[asyncio.TimerHandle] = []

        def look() -> None:
            if self._counts(shown):
                looking[:] = [loop.call_later(LOOK_S, look)]
            else:
                limit.reschedule(loop.time())

        try:
            async with limit:
                look()
                return await serve(request, context)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            for timer in looking:
                timer.cancel()
        text = "the token that this stream was opened with is replaced; open another"
        return await context.abort(grpc.StatusCode.UNAVAILABLE, text)

    def _counts(self, shown: str) -> bool:
        tokens = self._settings.tokens()
        return any(hmac.compare_digest(shown.encode(), token.encode()) for token in tokens)

    async def _check_names(self, method: str, context: Any) -> None:
        names = names_of(context)
        if names is None:
            code, why = grpc.StatusCode.UNAUTHENTICATED, "the caller shows no certificate"
        elif any(peer.matches(names) for peer in self._settings.peers):
            return
        else:
            code = grpc.StatusCode.PERMISSION_DENIED
            why = f"the caller's certificate is not one of a peer, but of {named(names)}"
        await self._refuse(method, context, code, why, "peers")

    async def _refuse(self, method: str, context: Any, code: grpc.StatusCode, why: str, setting: str) -> None:
        self._log(method, context.peer(), why)
        variable = self._settings.variable(setting)
        await context.abort(code, f"{method} is for processes of the cluster: {why} ({variable})")

    def _log(self, method: str, peer: str, why: str) -> None:
        if refused := self._lines.count():
            log.warning("internal_call_refused", method=method, peer=peer, reason=why, refused=refused)


class PresentingChannel:
    """A channel of grpc, blocking or of asyncio, whose calls present the token of the cluster.

    Args:
        channel: carries the calls.
        settings: the tokens, at least one.
    """

    def __init__(self, channel: Any, settings: InternalSettings) -> None:
        self._channel = channel
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def __enter__(self) -> "PresentingChannel":
        self._channel.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        self._channel.__exit__(*ended)

    async def __aenter__(self) -> "PresentingChannel":
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self._channel.__aexit__(*ended)

    def unary_unary(self, *args: Any, **named: Any) -> Any:
        """See `grpc.Channel`."""
        return self._presenting(self._channel.unary_unary(*args, **named))

    def unary_stream(self, *args: Any, **named: Any) -> Any:
        """See `grpc.Channel`."""
        return self._presenting(self._channel.unary_stream(*args, **named))

    def stream_stream(self, *args: Any, **named: Any) -> Any:
        """See `grpc.Channel`."""
        return self._presenting(self._channel.stream_stream(*args, **named))

    def _presenting(self, make: Any) -> Any:
        def call(*args: Any, metadata: Any = None, **named: Any) -> Any:
            token = (TOKEN_HEADER, self._settings.tokens()[0])
            return make(*args, metadata=(*(metadata or ()), token), **named)

        return call


def _token_of(context: Any) -> str | None:
    """The token of the cluster that a call shows; None: it shows none."""
    shown = dict(context.invocation_metadata() or ()).get(TOKEN_HEADER)
    return None if shown is None else str(shown)


def _check(content: Mapping[str, bytes]) -> None:
    """Looks whether a file holds tokens.

    Raises:
        SettingsError: it does not.
    """
    ((variable, text),) = content.items()
    tokens = text.split()
    if not 1 <= len(tokens) <= MOST_TOKENS:
        raise SettingsError([f"{variable}: the file holds {len(tokens)} tokens, not 1 to {MOST_TOKENS}"])
    for number, token in enumerate(tokens, 1):
        if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
            wrong = f"token {number} has {len(token)} characters, not {SHORTEST_TOKEN} to {LONGEST_TOKEN}"
            raise SettingsError([f"{variable}: {wrong}"])
        if any(not 0x21 <= byte <= 0x7E for byte in token):
            raise SettingsError([f"{variable}: token {number} has characters other than visible ASCII"])
