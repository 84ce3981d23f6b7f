"""The keys that tokens are checked with: a JSON Web Key Set (RFC 7517)."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

MOST_KEYS = 100
"""What a set may hold."""

LEAST_RSA_BITS = 2_048
"""Shorter keys of RSA are not used (RFC 7518, 3.3)."""

_OF_CURVE = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}


class BadKeys(Exception):
    """Something is no set of keys, or none of its keys can be used."""


class KeySet:
    """The keys of an issuer, by their ids and by what they are for.

    Args:
        content: the set, as JSON.
        algorithms: those that tokens may be signed with.

    Raises:
        BadKeys: it is no set, or has no key for one of them.
    """

    def __init__(self, content: bytes, algorithms: Sequence[str]) -> None:
        self.content = content
        self._keys: dict[tuple[str | None, str], jwt.PyJWK] = {}
        for number, entry in enumerate(_entries(content)):
            if number >= MOST_KEYS:
                raise BadKeys(f"the set holds more than {MOST_KEYS} keys")
            for algorithm in _algorithms_of(entry):
                if algorithm in algorithms:
                    self._add(entry, algorithm)
        if not self._keys:
            raise BadKeys(f"the set holds no key for {', '.join(algorithms)}")

    def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key with an id; without an id the only key for an algorithm."""
        if key_id is not None:
            return self._keys.get((key_id, algorithm))
        fitting = [key for (_, of), key in self._keys.items() if of == algorithm]
        return fitting[0] if len(fitting) == 1 else None

    def _add(self, entry: dict[str, Any], algorithm: str) -> None:
        key_id = entry.get("kid")
        if key_id is not None and not isinstance(key_id, str):
            return
        try:
            key = jwt.PyJWK(entry, algorithm)
        except (jwt.PyJWTError, ValueError, TypeError):  # of a kind to come: others of the set can be used
            return
        if isinstance(key.key, RSAPublicKey) and key.key.key_size < LEAST_RSA_BITS:
            return
        self._keys.setdefault((key_id, algorithm), key)


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    try:
        keys = json.loads(content)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadKeys('it is no JSON Web Key Set: {"keys": […]}') from None
    if not isinstance(keys, list):
        raise BadKeys('it is no JSON Web Key Set: "keys" is no list')
    yield from (entry for entry in keys if isinstance(entry, dict))


def _algorithms_of(entry: dict[str, Any]) -> Sequence[str]:
    """What a public key may have signed; nothing: it is for something else, or secret."""
    if entry.get("use", "sig") != "sig" or "d" in entry:
        return ()
    if (stated := entry.get("alg")) is not None:
        fits = _algorithms_of({**entry, "alg": None})
        return (stated,) if stated in fits else ()
    if entry.get("kty") == "RSA":
        return ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
    of_curve = _OF_CURVE.get(str(entry.get("crv")))
    return () if of_curve is None or entry.get("kty") not in ("EC", "OKP") else (of_curve,)
