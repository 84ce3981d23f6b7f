"""Finds out who makes a call."""

from typing import TYPE_CHECKING, Any

import structlog

from muster_runtime.clock import wall_ms
from muster_runtime.logs import Seldom
from muster_runtime.rpc.identity._identity import LONGEST_NAME, NOBODY, Identity, Proof, is_name
from muster_runtime.rpc.identity.certificates import Shown, end_of_certificate, name_in_certificate
from muster_runtime.rpc.identity.settings import IdentitySettings
from muster_runtime.rpc.refusals import Refused, Unauthenticated, Unavailable
from muster_runtime.rpc.unread import Cuts

if TYPE_CHECKING:
    from muster_runtime.rpc.identity.tokens import Tokens

log = structlog.get_logger()

_HEADER = "authorization"
_RETRY_MS = 100


class Callers:
    """Finds out who makes a call, and refuses those that have to prove it and do not.

    Args:
        settings: what is asked for.
        certificates: whether the server asks for those of its clients.

    Raises:
        SettingsError: the file with the keys of tokens cannot be used.

    Attributes:
        refused: how many calls were refused.
    """

    def __init__(self, settings: IdentitySettings, *, certificates: bool) -> None:
        self._settings = settings
        self._certificates = certificates
        self._tokens = _tokens_of(settings)
        self.refused = 0
        self._lines = Seldom()
        self._cuts = Cuts()

    @property
    def keys_outdated(self) -> bool:
        """Whether newer keys of tokens could not be read or fetched, and the last ones count on."""
        return self._tokens is not None and self._tokens.keys.failing

    async def identify(self, method: str, context: Any) -> Identity:
        """Who makes a call.

        Raises:
            Unauthenticated: the caller shows something that proves nothing, or nothing where it must.
            Unavailable: whether its token proves anything cannot be said yet.
        """
        try:
            return await self._identified(context)
        except Refused as refusal:
            self._log(method, context.peer(), refusal.message)
            raise

    def start(self) -> None:
        """Begins to keep the keys of tokens up to date, on the event loop that runs."""
        if self._tokens is not None:
            self._tokens.keys.start()

    def stop(self) -> None:
        """Ends that."""
        if self._tokens is not None:
            self._tokens.keys.stop()

    async def _identified(self, context: Any) -> Identity:
        if self._tokens is not None and (token := _token(context)) is not None:
            # A token that proves nothing is not made up for by a certificate: its caller meant to be another.
            return await self._tokens.owner(token)
        shown: Shown = context.auth_context() if self._certificates else {}
        name = name_in_certificate(shown)
        if name is not None and is_name(name) and not self._is_of_tokens(name):
            return Identity(name, Proof.CERTIFICATE, self._end_of_certificate(shown, context.peer()))
        if not self._settings.required:
            return NOBODY
        if name is not None:
            raise Unauthenticated(
                "the certificate has no name to go by: one URI, a DNS name or a common name, of at most "
                f"{LONGEST_NAME} printable characters, which does not begin as the names of tokens do"
            )
        raise Unauthenticated(f"the call shows no {self._proofs}, and this server asks who calls")

    def _end_of_certificate(self, shown: Shown, peer: str) -> int | None:
        """When the caller's certificate counts no more; one that does not ends its connection.

        Raises:
            Unavailable: it has ended: with another connection the caller shows the one that it has now.
        """
        ends_ms = end_of_certificate(shown)
        if ends_ms is None:
            return None
        ends_ms += self._settings.token_leeway_ms
        if wall_ms() >= ends_ms:
            self._cuts.soon(peer, ended_certificates=1)
            raise Unavailable("the certificate of this connection has ended; make another one", _RETRY_MS)
        return ends_ms

    def _is_of_tokens(self, name: str) -> bool:
        """Whether a name begins as those of tokens alone do."""
        prefix = self._settings.token_name_prefix
        return self._tokens is not None and prefix != "" and name.startswith(prefix)

    @property
    def _proofs(self) -> str:
        if self._tokens is None:
            return "client certificate"
        return "token or client certificate" if self._certificates else "token"

    def _log(self, method: str, peer: str, why: str) -> None:
        self.refused += 1
        if refused := self._lines.count():
            log.warning("call_unauthenticated", method=method, peer=peer, reason=why, refused=refused)


def _tokens_of(settings: IdentitySettings) -> "Tokens | None":
    """What verifies tokens, where callers may show one. Its libraries take a sixth of the time of a start."""
    if not settings.reads_tokens:
        return None
    from muster_runtime.rpc.identity.tokens import Tokens

    return Tokens(settings)


def _token(context: Any) -> str | None:
    """The token that a call shows; None: it shows none.

    Raises:
        Unauthenticated: it shows several, or something else in the place of one.
    """
    shown = [value for key, value in context.invocation_metadata() or () if key == _HEADER]
    if not shown:
        return None
    scheme, _, token = str(shown[0]).partition(" ")
    if len(shown) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the header authorization is not one `Bearer` with a token")
    return token.strip()
