"""The identity of a caller, and the one of the call that is being served."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum

LONGEST_NAME = 512
"""Characters that the name of an identity may have."""


class Proof(Enum):
    """How a caller proved who it is."""

    NONE = "none"
    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 - a word, not a secret


@dataclass(frozen=True, slots=True)
class Identity:
    """Who makes a call.

    Attributes:
        name: of the caller, 1 to `LONGEST_NAME` printable characters; empty: it proved nothing.
        proof: how it proved that name.
        expires_ms: from when on, in Unix time, the proof counts for no new call; None: it always does. A
            caller has another one with each token and certificate.
    """

    name: str
    proof: Proof
    expires_ms: int | None = field(default=None, compare=False)


NOBODY = Identity("", Proof.NONE)
"""The identity of a caller that proved nothing."""

_current: ContextVar[Identity] = ContextVar("muster_identity", default=NOBODY)


def current_identity() -> Identity:
    """Who makes the call that this code serves.

    It is found out once, before the servicer runs, and holds for the whole call; for a stream, from its
    beginning to its end. Tasks that a servicer starts have it too. Outside of a call, in calls between
    processes of the cluster, and where neither client certificates nor tokens are set up, it is `NOBODY`.
    """
    return _current.get()


def serve_as(identity: Identity) -> None:
    """Makes an identity that of the call whose task this is."""
    _current.set(identity)


def is_name(text: str) -> bool:
    """Whether something can be the name of an identity."""
    return 1 <= len(text) <= LONGEST_NAME and text.isprintable() and text == text.strip()
