"""How a member proves that it is the one that joined: by a secret of which the log has a hash."""

from hashlib import sha256
from hmac import compare_digest

HASH_BYTES = 16
"""128 bits: a secret is drawn from at least as many, so no list of likely ones helps whoever has read the
log, and neither salt nor slowness would add anything."""


def hash_of(secret: bytes) -> bytes:
    """What the log keeps of a secret; nothing of none."""
    return sha256(secret).digest()[:HASH_BYTES] if secret else b""


class Lock:
    """What a member's secret is compared with. Members without a secret share one that everything opens.

    Attributes:
        secret_hash: of the secret; empty: there is none.
    """

    __slots__ = ("_proven", "secret_hash")

    def __init__(self, secret_hash: bytes = b"") -> None:
        self.secret_hash = secret_hash
        self._proven = b""

    def is_opened_by(self, secret: bytes) -> bool:
        """Whether a caller with this secret is the member; takes as long wherever a wrong one differs."""
        if not self.secret_hash:
            return True
        if not secret:
            return False
        if compare_digest(secret, self._proven):  # of all calls but the first: no hash is made
            return True
        if not compare_digest(hash_of(secret), self.secret_hash):
            return False
        self._proven = secret
        return True


OPEN = Lock()
"""Of a member without a secret."""


def lock_of(secret_hash: bytes) -> Lock:
    """The lock of a member of whose secret this is the hash; empty: it has none."""
    return Lock(secret_hash) if secret_hash else OPEN
