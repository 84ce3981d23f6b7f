"""Tokens that prove who calls: JSON Web Tokens (RFC 7519), signed by one issuer."""

import hashlib
from dataclasses import dataclass
from time import time
from typing import Any

import jwt

from muster_runtime.rpc.identity._identity import LONGEST_NAME, Identity, Proof, is_name
from muster_runtime.rpc.identity.key_sources import FileKeys, KeySource, UrlKeys
from muster_runtime.rpc.identity.keys import KeySet
from muster_runtime.rpc.identity.settings import IdentitySettings
from muster_runtime.rpc.refusals import Unauthenticated, Unavailable

MOST_REMEMBERED = 10_000
"""Tokens that were verified and are not verified again, while their keys are the same."""

MOST_WAITING = 200
"""Calls that wait while keys are fetched, which may take ten seconds: of a process that may have 20,000."""

LONGEST_TOKEN = 16_384
"""Characters that a token may have; the headers of a call have their own limit, which is lower by default."""

_RETRY_MS = 1_000

_REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidIssuedAtError: "the token was issued in the future",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token is of another issuer",
    jwt.InvalidSignatureError: "the signature of the token is wrong",
}


@dataclass(frozen=True, slots=True)
class _Verified:
    identity: Identity
    keys: KeySet


class Tokens:
    """Says whose a token is.

    Args:
        settings: which tokens count.

    Raises:
        SettingsError: the file with the keys cannot be used.
    """

    def __init__(self, settings: IdentitySettings) -> None:
        self._settings = settings
        self.keys: KeySource = UrlKeys(settings) if settings.token_jwks_file is None else FileKeys(settings)
        self._verified: dict[bytes, _Verified] = {}
        self._waiting = 0

    async def owner(self, token: str) -> Identity:
        """Whose token it is.

        Raises:
            Unauthenticated: it proves nothing.
            Unavailable: that cannot be said, because the keys of the issuer are not known yet.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = self._verified.get(digest)
        if found is not None and found.keys is self.keys.current():
            if found.identity.expires_ms is None or time() * 1000 < found.identity.expires_ms:
                return found.identity
            del self._verified[digest]
            raise Unauthenticated("the token has expired")
        if len(token) > LONGEST_TOKEN:
            raise Unauthenticated(f"the token is longer than {LONGEST_TOKEN:,} characters")
        identity, keys = await self._verify(token)
        self._verified.pop(digest, None)
        self._verified[digest] = _Verified(identity, keys)
        if len(self._verified) > MOST_REMEMBERED:
            del self._verified[next(iter(self._verified))]
        return identity

    async def _verify(self, token: str) -> tuple[Identity, KeySet]:
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise Unauthenticated("the token is no JSON Web Token") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._settings.token_algorithms:
            raise Unauthenticated("the token is signed with an algorithm that this server does not take")
        keys = self.keys.current()
        key = None if keys is None else keys.find(key_id, algorithm)
        if key is None:
            await self._newer()
            keys = self.keys.current()
            if keys is None:
                raise Unavailable("the keys that tokens are checked with have not come yet", _RETRY_MS)
            key = keys.find(key_id, algorithm)
            if key is None:
                raise Unauthenticated("the token is signed with a key that is not its issuer's")
        assert keys is not None
        return self._identity(self._claims(token, key)), keys

    async def _newer(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise Unavailable("the keys that tokens are checked with are being fetched", _RETRY_MS)
        self._waiting += 1
        try:
            await self.keys.newer()
        finally:
            self._waiting -= 1

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        settings = self._settings
        claim = settings.token_name_claim
        try:
            return jwt.decode(
                token,
                key,
                algorithms=settings.token_algorithms,
                audience=settings.token_audience,
                issuer=settings.token_issuer,
                leeway=settings.token_leeway_ms / 1000,
                options={"require": ["exp", "iss", "aud", claim]},
            )
        except jwt.MissingRequiredClaimError as error:
            raise Unauthenticated(f"the token has no claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            reason = _REASONS.get(type(error), "the token is no JSON Web Token that can be used")
            raise Unauthenticated(reason) from None

    def _identity(self, claims: dict[str, Any]) -> Identity:
        settings = self._settings
        value = claims[settings.token_name_claim]
        name = f"{settings.token_name_prefix}{value}"
        if not isinstance(value, str) or not value or not is_name(name):
            claim = settings.token_name_claim
            wanted = f"a name of at most {LONGEST_NAME} printable characters"
            raise Unauthenticated(f"the claim {claim} of the token is not {wanted}")
        return Identity(name, Proof.TOKEN, int(claims["exp"]) * 1000 + settings.token_leeway_ms)
