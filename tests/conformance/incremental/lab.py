"""A group of unary members of Kafka's kind, in virtual time, with an assignor that answers what a test says.

An accepted heartbeat is `(epoch, list)`, where no list is None, a refused one the number of its error.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from conformance.traces_incremental import Step, request_of
from kit.lives.server_assignors import SERVER_ASSIGNORS, Re2Expressions, answer_to
from kit.lives.virtual_shard import VirtualShard
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import GroupRequest, TopicsChanged
from muster_core.features import ALL_FEATURES
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.targets.target import Question
from muster_core.position import Position
from muster_core.protocol.room import Room
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

JOIN, LEAVE, AWAY = 0, -1, -2
Owned: TypeAlias = Mapping[str, list[int]]
Heard: TypeAlias = tuple[int, Owned | None] | int

NOTHING: Owned = {}


def t(*numbers: int) -> Owned:
    """Partitions of topic `t`."""
    return {"t": list(numbers)} if numbers else {}


class Lab:
    """A shard with one group, `g`.

    Args:
        topics: partitions by topic; else `t` has six.
        records: a log to load.
        config: of the groups.

    Attributes:
        shares: what the assignor gives to each member; empty: what `uniform` gives.
        asked: what the assignor was asked.
        hidden: identities, and topics that they may not see.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        records: list[tuple[Position, records_pb2.Record]] | None = None,
        **config: Any,
    ) -> None:
        self.cluster = VirtualShard(GroupConfig(**config), records, ALL_FEATURES)
        self.shares: dict[str, Owned] = {}
        self.asked: list[Question] = []
        self.hidden: set[tuple[str, str]] = set()
        self._incarnations: dict[str, int] = {}
        self._version = 1
        assignors = {"uniform": self._assign, "range": SERVER_ASSIGNORS["range"]}
        room = Room(
            assignors=assignors,
            expressions=Re2Expressions(),
            sees=lambda who, topic: (who, topic) not in self.hidden,
        )
        self.cluster.shard.live_in(room)
        self.cluster.works = answer_to
        self.tell({"t": 6} if topics is None else topics, ())
        self._seen = len(self.cluster.kinds())

    def _assign(self, question: Question) -> Mapping[str, Collection[TopicPartition]]:
        self.asked.append(question)
        if not self.shares:
            return SERVER_ASSIGNORS["uniform"](question)
        return {
            who: [(topic, number) for topic, numbers in share.items() for number in numbers]
            for who, share in self.shares.items()
        }

    def tell(self, topics: Mapping[str, int], changed: Iterable[str] | None = None) -> None:
        """These are the topics from now on.

        Args:
            topics: partitions by topic.
            changed: of which it is said that they changed; else of all.
        """
        self._version += 1
        gone = self._incarnations.keys() - topics.keys()
        for name in gone:
            del self._incarnations[name]
        for name in topics:
            self._incarnations.setdefault(name, self._version)
        catalog = Catalog(
            self._version, dict(topics), dict.fromkeys(gone, self._version), dict(self._incarnations)
        )
        names = frozenset(topics) | gone if changed is None else frozenset(changed)
        self.cluster.feed(TopicsChanged(names, catalog=catalog))

    def reloaded(self, topics: Mapping[str, int] | None = None, **config: Any) -> "Lab":
        """The shard of another owner, who loads what this one has stored."""
        return Lab(topics, self.cluster.log, **config)

    # --- calls

    def request(
        self, who: str, epoch: int, owned: Owned | None = None, **said: Any
    ) -> ConsumerGroupHeartbeatRequest:
        """A heartbeat; a join says what it must, unless it is said otherwise. What is None is not said."""
        argument: dict[str, Any] = {"epoch": epoch, "owned": owned} | said
        if epoch == JOIN:
            given = {"rebalance": 60_000, "owned": {}} | ({} if "regex" in said else {"topics": ["t"]})
            argument = given | {key: value for key, value in argument.items() if key != "owned" or owned}
        argument = {key: value for key, value in argument.items() if value is not None}
        request = request_of(Step("heartbeat", who, argument))
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        return request

    def __call__(self, who: str, epoch: int, owned: Owned | None = None, **said: Any) -> Heard:
        """Makes a heartbeat that is answered at once; returns what is heard."""
        return heard(self.answer(self.request(who, epoch, owned, **said)))

    def answer(self, request: GroupRequest) -> ConsumerGroupHeartbeatResponse:
        """Makes a heartbeat; returns its whole answer."""
        answer = self.cluster.ask(request)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def commit(self, who: str, epoch: int, *partitions: TopicPartition, metadata: str = "") -> list[int]:
        """Commits offset 7 for partitions, else for `t` 0; returns the code of each."""
        request = OffsetCommitRequest(group_id="g", member_id=who, member_epoch=epoch)
        for topic, number in partitions or (("t", 0),):
            request.topics.add(name=topic).partitions.add(
                partition=number, offset=7, leader_epoch=-1, metadata=metadata
            )
        answer = self.cluster.ask(request)
        assert isinstance(answer, OffsetCommitResponse)
        return [entry.error_code for topic in answer.topics for entry in topic.partitions]

    def fetch(self, who: str | None = None, epoch: int = -1, group: str = "g") -> tuple[int, list[int]]:
        """The error of the group, and the committed offset of `t` 0."""
        request = OffsetFetchRequest()
        asked = request.groups.add(group_id=group, member_id=who, member_epoch=epoch)
        asked.topics.add(topic="t", partitions=[0])
        answer = self.cluster.ask(request)
        assert isinstance(answer, OffsetFetchResponse)
        found = answer.groups[0]
        return found.error_code, [one.offset for topic in found.topics for one in topic.partitions]

    def put_out(self, *leavers: LeaveGroupRequest.Member) -> list[int]:
        """An operator takes members out; returns the code of each."""
        self.cluster.is_operator = True
        answer = self.cluster.ask(LeaveGroupRequest(group_id="g", members=leavers))
        self.cluster.is_operator = None
        assert isinstance(answer, LeaveGroupResponse)
        return [member.error_code for member in answer.members]

    def describe(self, group: str = "g") -> ConsumerGroupDescribeResponse.Group:
        """What ConsumerGroupDescribe shows."""
        answer = self.cluster.ask(ConsumerGroupDescribeRequest(group_ids=[group]))
        assert isinstance(answer, ConsumerGroupDescribeResponse)
        return answer.groups[0]

    # --- what there is

    @property
    def group(self) -> IncrementalGroup:
        """The group as the shard has it."""
        group = self.cluster.shard.groups["g"].incremental
        assert group is not None
        return group

    def member(self, who: str) -> Member:
        """A member as the shard has it."""
        return self.group.members[who]

    @property
    def epochs(self) -> tuple[int, int]:
        """The epochs of the group and of its target."""
        return self.group.epoch, self.group.target_epoch

    def written(self) -> list[str]:
        """Kinds of the records since the last time."""
        kinds = self.cluster.kinds()
        new, self._seen = kinds[self._seen :], len(kinds)
        return [kind for kind in new if kind != "topics_seen"]

    def has(self, who: str) -> Owned:
        """What a member may work on."""
        return listed(self.member(who).assigned)

    def owes(self, who: str) -> Owned:
        """What a member is to give back."""
        return listed(self.member(who).pending)


def listed(partitions: Iterable[TopicPartition]) -> Owned:
    """Partitions by topic."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


def heard(answer: ConsumerGroupHeartbeatResponse) -> Heard:
    """What an answer says to its member."""
    if answer.error_code:
        return int(answer.error_code)
    if not answer.HasField("assignment"):
        return answer.member_epoch, None
    return answer.member_epoch, listed(
        (given.topic, number) for given in answer.assignment.given for number in given.partitions
    )
