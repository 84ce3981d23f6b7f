"""What the leader of a generation does: reads the topics, runs the assignor, watches for changes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from muster_assignors import AssignmentRefused, check_assignment
from muster_protos.limits import TOPIC_NAMES_MAX, is_name
from muster_protos.muster.v1 import coordinator_pb2

from muster._errors import AssignorFailed
from muster._messages import decode_member, encode_assignment
from muster._values import Topic
from muster.assignors import Assignor, GroupSnapshot, TopicSnapshot

ReadTopics = Callable[[Iterable[str]], Awaitable[list[Topic]]]


class Leader:
    """Makes a group's assignment and remembers the partition counts that it was made from.

    Attributes:
        counts: topic → number of partitions at the assignment; 0: the topic did not exist.
    """

    def __init__(self, read_topics: ReadTopics) -> None:
        self._read_topics = read_topics
        self.counts: dict[str, int] = {}

    def resign(self) -> None:
        """Forgets the counts: another member leads now."""
        self.counts = {}

    async def assign(
        self, assignor: Assignor, members: Iterable[coordinator_pb2.JoinGroupResponse.Member]
    ) -> list[coordinator_pb2.SyncGroupRequest.Assignment]:
        """Returns the assignment of every member. The assignor runs in a thread: heartbeats go on.

        Raises:
            AssignorFailed: the assignor raised, or returned what is no assignment of the group.
        """
        snapshots = {m.member_id: s for m in members if (s := decode_member(m)) is not None}
        self.counts = await self._count({topic for s in snapshots.values() for topic in s.topics})
        topics = {name: TopicSnapshot(count) for name, count in self.counts.items() if count}
        snapshot = GroupSnapshot(snapshots, topics)
        try:
            assignment = await asyncio.to_thread(assignor.assign, snapshot)
            check_assignment(assignor, snapshot, assignment)
            return [
                coordinator_pb2.SyncGroupRequest.Assignment(
                    member_id=m, assignment=encode_assignment(assignment.get(m, ()))
                )
                for m in snapshots
            ]
        except AssignmentRefused as error:
            raise AssignorFailed(assignor.name, str(error)) from None
        except Exception as error:
            raise AssignorFailed(assignor.name, f"{type(error).__name__}: {error}") from error

    async def observe(self, members: Iterable[coordinator_pb2.JoinGroupResponse.Member]) -> None:
        """Remembers the partition counts for an assignment that is stored already."""
        self.counts = await self._count(
            {t for m in members if (s := decode_member(m)) is not None for t in s.topics}
        )

    async def changes(self) -> str:
        """What changed since the assignment was made, for people; empty: nothing, or it does not lead."""
        before = self.counts
        if not before:
            return ""
        now = await self._count(before)
        changed = [
            f"{topic} from {before[topic]} to {now[topic]}"
            for topic in sorted(before)
            if before[topic] != now[topic]
        ]
        if not changed or self.counts is not before:
            return ""
        return "number of partitions changed: " + ", ".join(changed)

    async def _count(self, names: Iterable[str]) -> dict[str, int]:
        counts = dict.fromkeys(sorted(names), 0)
        # Members may name anything: what can be no topic is none, and many are looked up among all topics.
        wanted = [name for name in counts if is_name(name)]
        found = await self._read_topics(wanted if len(wanted) <= TOPIC_NAMES_MAX else ()) if wanted else []
        return counts | {topic.name: topic.partitions for topic in found if topic.name in counts}
