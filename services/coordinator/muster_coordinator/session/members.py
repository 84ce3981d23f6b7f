"""The members on one session stream, as the edge knows them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog
from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Beat, Detach, StreamBroken
from muster_protos.muster.v1 import session_pb2

from muster_coordinator.shard.owned_shard import OwnedShard

log = structlog.get_logger()

MemberKey = tuple[str, str]
"""Group and member id."""


class Unheard(NamedTuple):
    """A member that a beat did not count for.

    Attributes:
        key: who.
        code: why.
        shard: its shard.
    """

    key: MemberKey
    code: ErrorCode
    shard: OwnedShard


class StreamMembers:
    """The members on a stream, by their shards.

    A shard that is unloaded and loaded again is another object and knows nothing of the stream: the members
    stay with the old one, and are unheard, until they are attached again.

    Args:
        stream_id: the stream.
    """

    def __init__(self, stream_id: int) -> None:
        self._stream_id = stream_id
        self._shards: dict[OwnedShard, dict[MemberKey, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of members."""
        return self._count

    def __contains__(self, key: MemberKey) -> bool:
        """Whether a member is on the stream."""
        return any(key in members for members in self._shards.values())

    def add(self, shard: OwnedShard, key: MemberKey) -> None:
        """The shard took the member onto the stream."""
        self.remove(key)
        self._shards.setdefault(shard, {})[key] = None
        self._count += 1

    def remove(self, key: MemberKey) -> OwnedShard | None:
        """Forgets a member; returns the shard that had it."""
        for shard, members in self._shards.items():
            if key in members:
                del members[key]
                self._count -= 1
                if not members:
                    del self._shards[shard]
                return shard
        return None

    def beat(self, number: int, acknowledged: int) -> list[Unheard]:
        """Prolongs everybody's session, one core event for each shard; returns those that it could not.

        Args:
            number: of the beat.
            acknowledged: number of the newest beat whose acknowledgement the client has read.
        """
        unheard: list[Unheard] = []
        event = Beat(self._stream_id, number, acknowledged)
        for shard, members in tuple(self._shards.items()):
            code = shard.beat(event)
            if code != error_code.NONE:
                unheard += [Unheard(key, code, shard) for key in members]
        return unheard

    def revoked(self, may_stay: Callable[[MemberKey], bool]) -> list[Unheard]:
        """Takes off the stream who must not be in its group any more; returns those members as unheard."""
        lost: list[Unheard] = []
        for key in self:
            if may_stay(key) or (shard := self.remove(key)) is None:
                continue
            shard.notify(Detach(self._stream_id, session_pb2.Detach(group_id=key[0], member_id=key[1])))
            lost.append(Unheard(key, error_code.GROUP_AUTHORIZATION_FAILED, shard))
        return lost

    def suspend(self) -> list[Unheard]:
        """Returns all members as unheard: the lease has expired, and no shard goes on."""
        code = error_code.COORDINATOR_NOT_AVAILABLE
        for shard in tuple(self._shards):
            shard.suspend()
        return [Unheard(key, code, shard) for shard, members in self._shards.items() for key in members]

    def __iter__(self) -> Iterator[MemberKey]:
        """The members, as of now."""
        return iter([key for members in self._shards.values() for key in members])

    def broken(self, *, suspect: bool, ago_ms: int = 0) -> None:
        """Notifies every shard with a member on it that the stream is over, and how long ago it ended."""
        shards, self._shards = self._shards, {}
        self._count = 0
        event = StreamBroken(self._stream_id, suspect, ago_ms)
        for shard in shards:
            try:
                shard.notify(event)
            except Exception:
                log.exception("stream_end_failed", shard=shard.number, stream_id=self._stream_id)
