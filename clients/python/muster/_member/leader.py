"""What the leader of a generation does: reads the topics, runs the assignor, watches for changes."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace

from muster_assignors import AssignmentRefused, check_assignment
from muster_protos.limits import TOPIC_NAMES_MAX, is_name
from muster_protos.muster.v1 import coordinator_pb2

from muster._errors import AssignorFailed
from muster._messages import decode_member, encode_assignment
from muster._values import Topic
from muster.assignors import Assignor, GroupSnapshot, MemberSnapshot, TopicSnapshot

ReadTopics = Callable[[Iterable[str]], Awaitable[list[Topic]]]


class Leader:
    """Makes a group's assignment and remembers the topics that it was made from.

    Attributes:
        topics: topics of the group by name at the assignment; None: the topic did not exist. Without zones
            where no member says on which rack it is.
    """

    def __init__(self, read_topics: ReadTopics) -> None:
        self._read_topics = read_topics
        self.topics: dict[str, Topic | None] = {}
        self._by_rack = False

    def resign(self) -> None:
        """Forgets the topics: another member leads now."""
        self.topics = {}

    async def assign(
        self, assignor: Assignor, members: Iterable[coordinator_pb2.JoinGroupResponse.Member]
    ) -> list[coordinator_pb2.SyncGroupRequest.Assignment]:
        """Returns the assignment of every member. The assignor runs in a thread: heartbeats go on.

        Raises:
            AssignorFailed: the assignor raised, or returned what is no assignment of the group.
        """
        snapshots = {m.member_id: s for m in members if (s := decode_member(m)) is not None}
        if assignor.cooperative:
            snapshots = {member_id: _with_what_it_keeps(s) for member_id, s in snapshots.items()}
        await self._remember(snapshots.values())
        topics = {name: _snapshot(topic) for name, topic in self.topics.items() if topic is not None}
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
        """Remembers the topics for an assignment that is stored already."""
        await self._remember([s for m in members if (s := decode_member(m)) is not None])

    async def changes(self) -> str:
        """What changed since the assignment was made, for people; empty: nothing, or it does not lead."""
        before = self.topics
        if not before:
            return ""
        now = await self._read(before)
        changed = [
            _change(name, before[name], now[name]) for name in sorted(before) if before[name] != now[name]
        ]
        if not changed or self.topics is not before:
            return ""
        return "topics changed: " + ", ".join(changed)

    async def _remember(self, members: Collection[MemberSnapshot]) -> None:
        self._by_rack = any(member.rack_id for member in members)
        self.topics = await self._read({topic for member in members for topic in member.topics})

    async def _read(self, names: Iterable[str]) -> dict[str, Topic | None]:
        topics: dict[str, Topic | None] = dict.fromkeys(sorted(names))
        # Members may name anything: what can be no topic is none, and many are looked up among all topics.
        wanted = [name for name in topics if is_name(name)]
        found = await self._read_topics(wanted if len(wanted) <= TOPIC_NAMES_MAX else ()) if wanted else []
        for topic in found:
            if topic.name in topics:
                topics[topic.name] = self._relevant(topic)
        return topics

    def _relevant(self, topic: Topic) -> Topic:
        """A topic without what no assignment depends on."""
        zones = topic.zones if self._by_rack else Topic("", 0).zones
        return Topic(topic.name, topic.partitions, zones, topic.names)


def _with_what_it_keeps(member: MemberSnapshot) -> MemberSnapshot:
    """The member without what it owns, if it gives that up anyway: nobody has to wait for its release."""
    return member if member.keeps_owned else replace(member, owned=())


def _snapshot(topic: Topic) -> TopicSnapshot:
    if not topic.zones:
        return TopicSnapshot(topic.partitions, removed=topic.removed)
    racks: list[set[str]] = [set() for _ in range(topic.partitions)]
    for zone, partitions in topic.zones.items():
        for number in partitions:
            racks[number].add(zone)
    return TopicSnapshot(topic.partitions, tuple(map(frozenset, racks)), topic.removed)


def _change(name: str, before: Topic | None, now: Topic | None) -> str:
    had, has = (0 if topic is None else topic.partitions for topic in (before, now))
    if had != has:
        return f"{name} from {had} to {has} partitions"
    before_names, now_names = (() if topic is None else topic.names for topic in (before, now))
    return f"zones of {name}" if before_names == now_names else f"partitions of {name}"
