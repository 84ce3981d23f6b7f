"""Owned partitions without a cluster, for tests of a work function alone."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from muster._errors import CommitFailed
from muster._member.commits import check_position
from muster._member.reports import check_end
from muster._values import Committed, TopicPartition
from muster._work.partition import BlockingPartition, Partition

_T = TypeVar("_T")
_EPOCH_DIGITS, _OFFSET_DIGITS = 10, 16


class FakeOwner:
    """A member that owns one partition until it is told that it does not.

    Attributes:
        group_id: the group.
        generation: the generation.
        member_id: its id.
        commits: every commit, in order.
        ends: every end that was reported, in order.
        lost: whether the partition went to another member: commits are refused.
        failures: raised by the next calls, one each, first come first.
    """

    def __init__(self, group_id: str, generation: int, token: str, at: Committed | None) -> None:
        self.group_id = group_id
        self.generation = generation
        self.member_id = f"{group_id}-member"
        self.commits: list[Committed] = []
        self.ends: list[int] = []
        self.lost = False
        self.failures: list[BaseException] = []
        self._token = token
        self._at = at

    def token(self, partition: TopicPartition) -> str:
        """See `Member.token`."""
        return self._token

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        """See `Member.committed`."""
        self._fail()
        return {} if self._at is None else dict.fromkeys(partitions, self._at)

    async def commit_owned(
        self, offsets: Mapping[TopicPartition, Committed], tokens: Mapping[TopicPartition, str]
    ) -> None:
        """See `Member.commit_owned`."""
        for where, position in offsets.items():
            check_position(where, position)
        self._fail()
        if self.lost:
            raise CommitFailed(list(offsets), "another member owns the partition")
        for self._at in offsets.values():
            self.commits.append(self._at)

    def report_owned(self, ends: Mapping[TopicPartition, int], tokens: Mapping[TopicPartition, str]) -> None:
        """See `Member.report_owned`."""
        for where, end in ends.items():
            check_end(where, end)
            self.ends.append(end)

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class FakePartition(Partition):
    """A `muster.Partition` that is owned without a cluster; commits are kept here.

    Args:
        topic: name of the topic.
        number: number of the partition.
        group: the group.
        committed: the position to go on from; None: none was committed.
        metadata: stored with it.
        generation: generation in which it was assigned.
        epoch: the token grows with it: that of a later owner has a higher one.
    """

    def __init__(
        self,
        topic: str = "topic",
        number: int = 0,
        *,
        group: str = "group",
        committed: int | None = None,
        metadata: str = "",
        generation: int = 1,
        epoch: int = 1,
    ) -> None:
        at = None if committed is None else Committed(committed, metadata)
        self._fake = FakeOwner(group, generation, _token(epoch), at)
        super().__init__(self._fake, TopicPartition(topic, number))

    @property
    def commits(self) -> list[int]:
        """Every position that was committed here, in order."""
        return [position.offset for position in self._fake.commits]

    @property
    def entries(self) -> list[Committed]:
        """Every commit with its metadata, in order."""
        return list(self._fake.commits)

    @property
    def ends(self) -> list[int]:
        """Every end that was reported here, in order."""
        return list(self._fake.ends)

    def lose(self) -> None:
        """Another worker owns it from now on: it is ending, and commits raise `CommitFailed`."""
        self._fake.lost = True
        self.end()

    def fail_next(self, *errors: BaseException) -> None:
        """The next calls that would reach the cluster raise these, one each."""
        self._fake.failures.extend(errors)


class FakeBlockingPartition(BlockingPartition):
    """A `muster.BlockingPartition` that is owned without a cluster or an event loop.

    Args:
        partition: what it stands for; absent: `FakePartition()`.
        ends_after: `wait_ending` returns False so many times, at once, and True after that; None: it waits
            as it is asked to.
    """

    def __init__(self, partition: FakePartition | None = None, *, ends_after: int | None = None) -> None:
        self.fake: FakePartition = FakePartition() if partition is None else partition
        self._loop_of_none = asyncio.new_event_loop()
        super().__init__(self.fake, self._loop_of_none)
        self._loop_of_none.close()
        self._waits_left = ends_after

    @property
    def commits(self) -> list[int]:
        """Every position that was committed here, in order."""
        return self.fake.commits

    @property
    def ends(self) -> list[int]:
        """Every end that was reported here, in order."""
        return self.fake.ends

    def wait_ending(self, timeout_s: float | None = None) -> bool:
        """See `BlockingPartition`."""
        if self._waits_left is None:
            return super().wait_ending(timeout_s)
        if self._waits_left == 0:
            self.end()
        self._waits_left -= 1
        return self.is_ending

    def wait_resumed(self) -> bool:
        """See `BlockingPartition`; a pause that nobody ends ends the work."""
        return not (self.is_ending or self.is_paused)

    def lose(self) -> None:
        """Another worker owns it from now on: it is ending, and commits raise `CommitFailed`."""
        self.fake.lose()
        self.end()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """A fake never waits, so one step is all it takes."""
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: _T = end.value
            return result
        raise AssertionError("a fake partition waited")

    async def _read(self) -> int | None:
        return await self.fake.committed()


def _token(epoch: int) -> str:
    return f"{epoch:0{_EPOCH_DIGITS}d}-{1:0{_OFFSET_DIGITS}d}"
