"""What the conformance tests do again and again: groups in each state, calls of each kind, their errors."""

from collections.abc import Sequence
from typing import Any

from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.config import GroupConfig
from muster_core.events import GroupRequest, GroupResponse
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, incremental_pb2

DELAY_MS = 100
SESSION_MS = 10_000
REBALANCE_MS = 30_000
STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable")


def shard(**config: Any) -> VirtualShard:
    """A shard whose empty groups gather members for a tenth of a second."""
    settings: dict[str, Any] = {"initial_rebalance_delay_ms": DELAY_MS, "min_session_timeout_ms": 1_000}
    return VirtualShard(GroupConfig(**{**settings, **config}))


def member(cluster: VirtualShard, name: str, **attributes: Any) -> VirtualMember:
    """A member; `a` is dynamic, `a=i` is static with instance id `i`."""
    label, _, instance = name.partition("=")
    made = VirtualMember(cluster, label, instance=instance)
    for field, value in attributes.items():
        assert hasattr(made, field)
        setattr(made, field, value)
    return made


def joined(cluster: VirtualShard, *names: str | VirtualMember) -> list[VirtualMember]:
    """Members of a group in CompletingRebalance, generation 1; the first one leads. All just beat."""
    members = [member(cluster, name) if isinstance(name, str) else name for name in names]
    for each in members:
        each.join()
    cluster.advance(DELAY_MS * (len(members) + 1))
    for each in members:
        assert each.joined().error_code == 0
        assert each.heartbeat() == 0
    return members


def assigned(members: Sequence[VirtualMember]) -> None:
    """The leader of a generation assigns `for <id>` to everybody it saw, all sync and beat."""
    for each in members:
        each.sync({key: f"for {key}".encode() for key in each.members} if each.members else None)
    for each in members:
        assert each.synced().error_code == 0
        assert each.heartbeat() == 0


def stable(cluster: VirtualShard, *names: str | VirtualMember) -> list[VirtualMember]:
    """Members of a Stable group, generation 1; the first one leads. All were just heard of."""
    members = joined(cluster, *names)
    assigned(members)
    return members


def rejoined(*members: VirtualMember) -> None:
    """All join again; the join phase ends with the last one."""
    for each in members:
        each.join()
    for each in members:
        assert each.joined().error_code == 0


def in_state(cluster: VirtualShard, state: str) -> list[VirtualMember]:
    """Two members of a group in a state, the first one leading; of an Empty group: that have left."""
    if state == "CompletingRebalance":
        return joined(cluster, "a", "b")
    members = stable(cluster, "a", "b")
    if state == "PreparingRebalance":
        members[1].protocols = [("range", b"changed")]
        members[1].join()
    elif state == "Empty":
        for each in members:
            each.leave()
        cluster.advance(REBALANCE_MS)
    assert cluster.state() == state
    return members


def join_of(who: VirtualMember, **changes: Any) -> coordinator_pb2.JoinGroupRequest:
    """Its join, changed."""
    request = who.join_request()
    protocols = changes.pop("protocols", None)
    for field, value in changes.items():
        setattr(request, field, value)
    if protocols is not None:
        del request.protocols[:]
        request.protocols.extend(
            coordinator_pb2.GroupProtocol(name=name, metadata=data) for name, data in protocols
        )
    return request


def ask_join(who: VirtualMember, **changes: Any) -> coordinator_pb2.JoinGroupResponse:
    """The immediate answer to its join, changed; nothing is remembered."""
    answer = who.cluster.ask(join_of(who, **changes))
    assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
    return answer


def sync_of(who: VirtualMember, **changes: Any) -> coordinator_pb2.SyncGroupRequest:
    """Its sync, changed."""
    fields = {
        "group_id": who.group,
        "member_id": who.member_id,
        "group_instance_id": who.instance,
        "generation": who.generation,
        **changes,
    }
    return coordinator_pb2.SyncGroupRequest(**fields)


def ask_sync(who: VirtualMember, **changes: Any) -> coordinator_pb2.SyncGroupResponse:
    """The immediate answer to its sync, changed."""
    answer = who.cluster.ask(sync_of(who, **changes))
    assert isinstance(answer, coordinator_pb2.SyncGroupResponse)
    return answer


def ask_heartbeat(who: VirtualMember, **changes: Any) -> int:
    """The error of its heartbeat, changed."""
    fields = {
        "group_id": who.group,
        "member_id": who.member_id,
        "group_instance_id": who.instance,
        "generation": who.generation,
        **changes,
    }
    return error_of(who.cluster.ask(coordinator_pb2.HeartbeatRequest(**fields)))


def leave(cluster: VirtualShard, *leavers: tuple[str, str], group: str = "g") -> list[int]:
    """Errors of a batch of leaving members, each (member id, instance id)."""
    members = [
        coordinator_pb2.LeaveGroupRequest.Member(member_id=who, group_instance_id=as_) for who, as_ in leavers
    ]
    answer = cluster.ask(coordinator_pb2.LeaveGroupRequest(group_id=group, members=members))
    assert isinstance(answer, coordinator_pb2.LeaveGroupResponse)
    assert answer.error_code == 0
    return [entry.error_code for entry in answer.members]


def commit_of(
    who: VirtualMember | None = None, offset: int = 1, **changes: Any
) -> coordinator_pb2.OffsetCommitRequest:
    """A commit of partition 0 of topic `t`, by a member or by nobody, changed."""
    fields: dict[str, Any] = {"group_id": "g", "generation": -1}
    if who is not None:
        fields = {
            "group_id": who.group,
            "generation": who.generation,
            "member_id": who.member_id,
            "group_instance_id": who.instance,
        }
    entries = changes.pop("partitions", {0: offset})
    topic = changes.pop("topic", "t")
    metadata = changes.pop("metadata", {})
    request = coordinator_pb2.OffsetCommitRequest(**{**fields, **changes})
    added = request.topics.add(name=topic)
    for number, value in entries.items():
        added.partitions.add(
            partition=number, offset=value, leader_epoch=-1, metadata=metadata.get(number, "")
        )
    return request


def commit(cluster: VirtualShard, who: VirtualMember | None = None, offset: int = 1, **changes: Any) -> int:
    """The error of the first partition of a commit."""
    return error_of(cluster.ask(commit_of(who, offset, **changes)))


def fetch(cluster: VirtualShard, group: str = "g", **topics: list[int]) -> dict[tuple[str, int], int]:
    """Offsets by topic and partition; without topics: all that were committed."""
    wanted = [common_pb2.TopicPartitions(topic=name, partitions=parts) for name, parts in topics.items()]
    request = coordinator_pb2.OffsetFetchRequest(
        groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=group, topics=wanted)]
    )
    answer = cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetFetchResponse)
    assert answer.groups[0].error_code == 0
    return {
        (topic.name, entry.partition): entry.offset
        for topic in answer.groups[0].topics
        for entry in topic.partitions
    }


def delete_groups(cluster: VirtualShard, *group_ids: str) -> list[tuple[str, int]]:
    """Results of DeleteGroups."""
    answer = cluster.ask(coordinator_pb2.DeleteGroupsRequest(group_ids=group_ids))
    assert isinstance(answer, coordinator_pb2.DeleteGroupsResponse)
    return [(result.group_id, result.error_code) for result in answer.results]


def delete_offsets(cluster: VirtualShard, *topics: str, group: str = "g") -> tuple[int, list[int]]:
    """Error of OffsetDelete, and that of partition 0 of each topic."""
    wanted = [common_pb2.TopicPartitions(topic=name, partitions=[0]) for name in topics]
    answer = cluster.ask(coordinator_pb2.OffsetDeleteRequest(group_id=group, topics=wanted))
    assert isinstance(answer, coordinator_pb2.OffsetDeleteResponse)
    return answer.error_code, [topic.partitions[0].error_code for topic in answer.topics]


def error_of(answer: GroupResponse) -> int:
    """The error of a call about one group."""
    if isinstance(answer, coordinator_pb2.OffsetCommitResponse):
        return answer.topics[0].partitions[0].error_code
    if isinstance(
        answer,
        coordinator_pb2.OffsetFetchResponse
        | coordinator_pb2.DescribeGroupsResponse
        | incremental_pb2.ConsumerGroupDescribeResponse,
    ):
        return answer.groups[0].error_code
    if isinstance(answer, coordinator_pb2.DeleteGroupsResponse):
        return answer.results[0].error_code
    return answer.error_code


def calls_of(who: VirtualMember) -> dict[str, GroupRequest]:
    """One call of each kind by a member."""
    group, topics = who.group, [common_pb2.TopicPartitions(topic="t", partitions=[0])]
    return {
        "join": who.join_request(),
        "sync": sync_of(who),
        "heartbeat": coordinator_pb2.HeartbeatRequest(
            group_id=group, member_id=who.member_id, generation=who.generation
        ),
        "leave": coordinator_pb2.LeaveGroupRequest(
            group_id=group, members=[coordinator_pb2.LeaveGroupRequest.Member(member_id=who.member_id)]
        ),
        "commit": commit_of(who),
        "fetch": coordinator_pb2.OffsetFetchRequest(
            groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id=group, topics=topics)]
        ),
        "offset delete": coordinator_pb2.OffsetDeleteRequest(group_id=group, topics=topics),
        "describe": coordinator_pb2.DescribeGroupsRequest(group_ids=[group]),
        "list": coordinator_pb2.ListGroupsRequest(),
        "delete": coordinator_pb2.DeleteGroupsRequest(group_ids=[group]),
        "history": coordinator_pb2.GroupHistoryRequest(group_id=group),
    }


def subscription(*topics: str) -> bytes:
    """The published subscription to some topics."""
    return common_pb2.Subscription(version=1, topics=topics).SerializeToString()


def last_record(cluster: VirtualShard) -> records_pb2.Record:
    """The newest acknowledged record."""
    return cluster.log[-1][1]
