"""The ids of a group's dynamic members: which join made each, and those that are not used yet."""

from muster_core.record_bounds import utf8_bytes
from muster_core.state.holdings import COPIES, PENDING_MEMBER_BYTES
from muster_core.state.members.member_secret import OPEN, Lock
from muster_core.waiting.timing_wheel import Timer

_DRAWN_CHARACTERS = 18
"""The second half of a UUID as text, with the dash before it."""


def join_of(member_id: str) -> str:
    """The part of a member id that is made from its join; the rest was drawn (docs/safety.md, GRP-28)."""
    return member_id[:-_DRAWN_CHARACTERS]


class MemberIds:
    """Ids that the joins of one group have made.

    Attributes:
        pending: ids given out and not yet used, with their timers (KIP-394).
        pending_bytes: about what these take in memory.
    """

    __slots__ = ("_identities", "_locks", "_made_for", "pending", "pending_bytes")

    def __init__(self) -> None:
        self.pending: dict[str, Timer] = {}
        self.pending_bytes = 0
        self._made_for: dict[str, str] = {}
        self._identities: dict[str, str] = {}
        self._locks: dict[str, Lock] = {}

    def give_out(self, member_id: str, timer: Timer, identity: str, lock: Lock) -> None:
        """Notes an id that a new dynamic member was given and has not used yet (KIP-394).

        Args:
            member_id: the id.
            timer: ends it.
            identity: who alone may use it; empty: anybody.
            lock: what the secret of who uses it is compared with.
        """
        self.pending[member_id] = timer
        if identity:
            self._identities[member_id] = identity
        if lock is not OPEN:
            self._locks[member_id] = lock
        self._made_for[join_of(member_id)] = member_id
        self.pending_bytes += _bytes_of(member_id)

    def use(self, member_id: str) -> Timer | None:
        """Ends the wait for an id that was given out; returns its timer, None: it was not given out."""
        timer = self.pending.pop(member_id, None)
        if timer is not None:
            self.pending_bytes -= _bytes_of(member_id)
            self._identities.pop(member_id, None)
            self._locks.pop(member_id, None)
        return timer

    def take(self, member_id: str) -> None:
        """Notes the id of a dynamic member, unless its client drew it, as in an incremental group."""
        if len(member_id) > 2 * _DRAWN_CHARACTERS:
            self._made_for[join_of(member_id)] = member_id

    def forget(self, member_id: str) -> None:
        """Forgets which join made an id that nobody has any more."""
        join = join_of(member_id)
        if self._made_for.get(join) == member_id:
            del self._made_for[join]

    def made_for(self, join: str) -> str:
        """The id that this join made; empty: none."""
        return self._made_for.get(join, "")

    def identity_of(self, member_id: str) -> str:
        """Who alone may use an id that was given out; empty: anybody, or it was not."""
        return self._identities.get(member_id, "")

    def lock_of(self, member_id: str) -> Lock:
        """What the secret of who uses an id that was given out is compared with; open if it was not."""
        return self._locks.get(member_id, OPEN)


def _bytes_of(member_id: str) -> int:
    return PENDING_MEMBER_BYTES + COPIES * utf8_bytes(member_id)
