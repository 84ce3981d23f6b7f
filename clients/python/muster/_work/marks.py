"""The parked partitions of a group, as its workers read and write them."""

import asyncio
import logging
import time

from muster._clock import monotonic_s
from muster._cluster.cluster import Cluster
from muster._errors import CommitRejected
from muster._member.member import Member
from muster._parking import Parked, can_be_marked, decode, encode, mark_of
from muster._values import Committed, TopicPartition

log = logging.getLogger("muster")

LOOK_MS = 2_000
"""How often the owners of parked partitions look whether they were released."""


class Marks:
    """Reads, writes and removes the marks of parked partitions.

    Reads that come together travel together: a process that is given a thousand partitions reads their marks
    with one call.

    Args:
        cluster: the connection.
        member: who owns the partitions.
    """

    def __init__(self, cluster: Cluster, member: Member) -> None:
        self._cluster = cluster
        self._member = member
        self._wanted: set[TopicPartition] = set()
        self._reading: asyncio.Task[dict[TopicPartition, Committed]] | None = None
        self._reads: set[asyncio.Task[dict[TopicPartition, Committed]]] = set()

    async def of(self, partition: TopicPartition) -> Parked | None:
        """The mark of a partition; None: it is not parked.

        Raises:
            GroupError: the coordinator refuses.
        """
        if not can_be_marked(partition):
            return None
        mark = mark_of(partition)
        self._wanted.add(mark)
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="muster-marks")
            self._reads.add(self._reading)
            self._reading.add_done_callback(self._has_read)
        found = (await asyncio.shield(self._reading)).get(mark)
        return None if found is None else decode(mark, found)

    def close(self) -> None:
        """Reads nothing any more: nobody waits for it (docs/safety.md, SES-46)."""
        for reading in self._reads:
            reading.cancel()

    def _has_read(self, reading: "asyncio.Task[dict[TopicPartition, Committed]]") -> None:
        """Retrieves the exception where everybody who waited was cancelled."""
        self._reads.discard(reading)
        if not reading.cancelled():
            reading.exception()

    async def put(self, partition: TopicPartition, token: str, reason: str, version: str) -> bool:
        """Says in the group's log that a partition is parked; returns False where the log does not take that.

        Raises:
            CommitFailed: the partition is no longer owned.
        """
        if not can_be_marked(partition):
            return False
        mark = mark_of(partition)
        now_ms = int(time.time() * 1_000)  # shown to people, and compared with nothing
        parked = Parked(partition, reason, now_ms, self._member.member_id, version)
        try:
            await self._member.commit_owned({mark: encode(parked)}, {mark: token})
        except CommitRejected as error:
            log.warning("that %s is parked cannot be stored: %s", partition, error)
            return False
        return True

    async def remove(self, partition: TopicPartition) -> None:
        """Releases a partition.

        Raises:
            MusterError: that could not be done.
        """
        await self._cluster.release_partitions(self._member.group_id, [partition])

    async def _read(self) -> dict[TopicPartition, Committed]:
        await asyncio.sleep(0)  # whoever wants one in this turn of the loop
        wanted, self._wanted, self._reading = self._wanted, set(), None
        return await self._member.committed(wanted)


async def until_next_look() -> None:
    """Sleeps until the next look. All look at the same times, so that they read with one call."""
    look_s = LOOK_MS / 1_000
    await asyncio.sleep(look_s - monotonic_s() % look_s)
