"""Finds out who makes a call."""

from time import monotonic
from typing import Any

import structlog

from muster_runtime.rpc.identity._identity import LONGEST_NAME, NOBODY, Identity, Proof, is_name
from muster_runtime.rpc.identity.certificates import name_in_certificate
from muster_runtime.rpc.identity.settings import IdentitySettings
from muster_runtime.rpc.refusals import Unauthenticated

log = structlog.get_logger()

_LOG_EVERY_S = 10.0


class Callers:
    """Finds out who makes a call, and refuses those that have to prove it and do not.

    Args:
        settings: what is asked for.
    """

    def __init__(self, settings: IdentitySettings) -> None:
        self._settings = settings
        self._refused = 0
        self._logged_s: float | None = None

    async def identify(self, method: str, context: Any) -> Identity:
        """Who makes a call.

        Raises:
            Unauthenticated: the caller shows something that proves nothing, or nothing where it must.
        """
        try:
            return self._identified(context)
        except Unauthenticated as refusal:
            self._log(method, context.peer(), refusal.message)
            raise

    def _identified(self, context: Any) -> Identity:
        name = name_in_certificate(context)
        if name is not None and is_name(name):
            return Identity(name, Proof.CERTIFICATE)
        if not self._settings.required:
            return NOBODY
        if name is None:
            raise Unauthenticated("the call has no client certificate, and this server wants one")
        raise Unauthenticated(
            "the certificate has no name to go by: one URI, a DNS name or a common name, of at most "
            f"{LONGEST_NAME} printable characters"
        )

    def _log(self, method: str, peer: str, why: str) -> None:
        """Logs a refused call, and how many were refused since the last line; not more often than that."""
        self._refused += 1
        now_s = monotonic()
        if self._logged_s is None or now_s - self._logged_s >= _LOG_EVERY_S:
            log.warning("call_unauthenticated", method=method, peer=peer, reason=why, refused=self._refused)
            self._refused, self._logged_s = 0, now_s
