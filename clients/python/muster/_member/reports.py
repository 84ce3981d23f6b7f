"""Reports of where the work ends, from a member to its coordinator."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from muster_protos.muster.v1 import coordinator_pb2

from muster._cluster.link import GroupLink
from muster._errors import GroupError, RequestRefused
from muster._messages import group_by_topic
from muster._reactions import Call, Reaction, reaction_to
from muster._standing.standing import Standing
from muster._values import TopicPartition

INTERVAL_MS = 2_000
"""How often a member reports at most; what is reported meanwhile travels together."""

LOOK_MS = 5_000
"""How often it looks whether another owner of the group has to be told everything."""

MOST_PARTITIONS = 10_000
"""Limit of one request."""


class Reporter:
    """Sends the latest end of each partition that the member owns.

    A coordinator keeps ends in memory alone, so one of a later epoch is told all of them again. A report that
    does not arrive is followed by the next one: nobody waits for it.
    """

    def __init__(self, link: GroupLink, standing: Standing, *, request_timeout_ms: int) -> None:
        self._link = link
        self._standing = standing
        self._request_timeout_ms = request_timeout_ms
        self._ends: dict[TopicPartition, tuple[str, int]] = {}
        self._unsent: set[TopicPartition] = set()
        self._epoch = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def report(self, ends: Mapping[TopicPartition, int], tokens: Mapping[TopicPartition, str]) -> None:
        """Notes ends of owned partitions; those of others, and of ownerships that have ended, are dropped."""
        for partition, end in ends.items():
            token = tokens.get(partition)
            if token is None or not self._standing.owns(partition, token):
                continue
            if self._ends.get(partition) != (token, end):
                self._ends[partition] = (token, end)
                self._unsent.add(partition)
                self._news.set()
        if self._task is None and self._unsent:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="muster-reports")

    async def close(self) -> None:
        """Reports nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_MS / 1_000):
                    await self._news.wait()
            self._news.clear()
            await self._standing.seated.wait()
            self._forget_what_went()
            if self._link.shard_epoch > self._epoch:
                self._epoch = self._link.shard_epoch
                self._unsent = set(self._ends)
            if self._unsent:
                with contextlib.suppress(RequestRefused, GroupError):  # of an end the next commit says why
                    await self._send(sorted(self._unsent)[:MOST_PARTITIONS])
                if self._unsent:
                    self._news.set()
                await asyncio.sleep(INTERVAL_MS / 1_000)

    def _forget_what_went(self) -> None:
        for partition in [p for p, (token, _) in self._ends.items() if self._standing.owned.get(p) != token]:
            del self._ends[partition]
            self._unsent.discard(partition)

    async def _send(self, partitions: Iterable[TopicPartition]) -> None:
        sent = {partition: self._ends[partition] for partition in partitions}
        request = coordinator_pb2.OffsetCommitRequest(
            **self._standing.fields,
            ends=[
                coordinator_pb2.OffsetCommitRequest.TopicEnds(
                    name=topic,
                    partitions=[
                        coordinator_pb2.OffsetCommitRequest.TopicEnds.Partition(
                            partition=number, end=sent[TopicPartition(topic, number)][1]
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in group_by_topic(sent).items()
            ],
        )
        outcome = await self._link.call(
            request, coordinator_pb2.OffsetCommitResponse, timeout_ms=self._request_timeout_ms
        )
        if reaction_to(Call.COMMIT, outcome.code) is not Reaction.DONE:
            return
        self._unsent -= {partition for partition, end in sent.items() if self._ends.get(partition) == end}


def check_end(partition: TopicPartition, end: int) -> None:
    """Checks an end that is to be reported.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is below 0, or has more than 63 bits.
    """
    if isinstance(end, bool) or not isinstance(end, int):
        raise TypeError(f"end of {partition} must be a whole number, not {end!r}")
    if not 0 <= end < 1 << 63:
        raise ValueError(f"end of {partition} is {end}, it must be 0 to 2^63 - 1")
