"""What the tests of offsets, expiry and loads do beside `acts`."""

from collections.abc import Iterable, Sequence
from typing import Any

from conformance import acts
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.position import Position
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

RETENTION_MS = 500


def forgetful_shard(**config: Any) -> VirtualShard:
    """A shard that keeps offsets for half a second and looks for old ones each millisecond."""
    settings = {"offsets_retention_ms": RETENTION_MS, "retention_check_interval_ms": 1, **config}
    return acts.shard(**settings)


def subscriber(cluster: VirtualShard, name: str, *topics: str, group: str = "g") -> VirtualMember:
    """A member that publishes the topics it wants."""
    who = acts.member(cluster, name, group=group)
    who.protocols = [("range", acts.subscription(*topics))]
    return who


def commit_codes(
    cluster: VirtualShard, request: coordinator_pb2.OffsetCommitRequest
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Topics of the answer in order, with partition and error of each entry."""
    answer = cluster.ask(request)
    assert isinstance(answer, coordinator_pb2.OffsetCommitResponse)
    return [(topic.name, [(p.partition, p.error_code) for p in topic.partitions]) for topic in answer.topics]


def fetch_entries(
    cluster: VirtualShard, *groups: str, **topics: list[int]
) -> list[tuple[str, int, dict[tuple[str, int], tuple[int, int, str]]]]:
    """Per group: its id, its error, and (offset, leader epoch, metadata) by topic and partition."""
    wanted = [common_pb2.TopicPartitions(topic=name, partitions=parts) for name, parts in topics.items()]
    asked = [coordinator_pb2.OffsetFetchRequest.Group(group_id=group, topics=wanted) for group in groups]
    answer = cluster.ask(coordinator_pb2.OffsetFetchRequest(groups=asked))
    assert isinstance(answer, coordinator_pb2.OffsetFetchResponse)
    return [
        (
            group.group_id,
            group.error_code,
            {
                (topic.name, entry.partition): (entry.offset, entry.leader_epoch, entry.metadata)
                for topic in group.topics
                for entry in topic.partitions
            },
        )
        for group in answer.groups
    ]


def listed(
    cluster: VirtualShard, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[tuple[str, str, int, str]]:
    """Id, protocol type, state and type of the groups that pass the filters."""
    answer = cluster.ask(coordinator_pb2.ListGroupsRequest(states=states, types=types))
    assert isinstance(answer, coordinator_pb2.ListGroupsResponse)
    assert answer.error_code == 0
    return [(group.group_id, group.protocol_type, group.state, group.type) for group in answer.groups]


def from_records(*records: records_pb2.Record) -> VirtualShard:
    """A shard loaded from a log with these records."""
    return VirtualShard(
        acts.shard().config, [(Position(1, 3 + index), record) for index, record in enumerate(records)]
    )


def stored_commit(
    offset: int, *, topic: str = "t", written_at_ms: int = 1, **fields: Any
) -> records_pb2.Record:
    """The record of a commit of partition 0 from outside the group."""
    commit = records_pb2.OffsetCommitted(
        group_id="g",
        generation=-1,
        offsets=[records_pb2.CommittedOffset(topic=topic, offset=offset, leader_epoch=-1)],
        **fields,
    )
    return records_pb2.Record(written_at_ms=written_at_ms, offset_committed=commit)


def stored_generation(
    members: Iterable[records_pb2.Member], *, protocol_type: str = "consumer", generation: int = 1
) -> records_pb2.Record:
    """The record of a generation; its first member leads."""
    entries = list(members)
    started = records_pb2.GenerationStarted(
        group_id="g",
        generation=generation,
        protocol_type=protocol_type,
        protocol_name="range" if entries else "",
        leader=entries[0].member_id if entries else "",
        members=entries,
    )
    return records_pb2.Record(written_at_ms=1, generation_started=started)


def stored_member(member_id: str, metadata: bytes, *, instance: str = "") -> records_pb2.Member:
    """A member as a record knows it."""
    return records_pb2.Member(
        member_id=member_id,
        group_instance_id=instance,
        session_timeout_ms=acts.SESSION_MS,
        rebalance_timeout_ms=acts.REBALANCE_MS,
        protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=metadata)],
    )
