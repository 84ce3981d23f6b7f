"""Encodes and decodes subscriptions and assignments, whose messages are public."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from google.protobuf.message import DecodeError
from muster_protos.limits import PARTITION_WEIGHT_MAX
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2

from muster._config import check_between, check_partition, check_partition_names
from muster._errors import SettingsError
from muster._values import Topic, TopicPartition
from muster.assignors import MemberSnapshot

VERSION = 1
PROTOCOL_TYPE = "consumer"


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, both in order."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(set(partitions)):
        by_topic[topic].append(number)
    return dict(by_topic)


_LONGEST_LIST = 200


def in_words(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for people: `sites 0-3 7, users 2`; only their number where the list would be long."""
    by_topic = group_by_topic(partitions)
    text = ", ".join(f"{topic} {runs(numbers)}" for topic, numbers in by_topic.items())
    if len(text) > _LONGEST_LIST:
        return f"{sum(map(len, by_topic.values())):,} partitions"
    return text or "no partition"


def runs(numbers: Iterable[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2 5`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] + 1 == number:
            found[-1][-1] = number
        else:
            found.append([number, number])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def to_messages(partitions: Iterable[TopicPartition]) -> list[common_pb2.TopicPartitions]:
    """Partitions as messages, one for each topic."""
    return [
        common_pb2.TopicPartitions(topic=topic, partitions=numbers)
        for topic, numbers in group_by_topic(partitions).items()
    ]


def from_messages(messages: Iterable[common_pb2.TopicPartitions]) -> tuple[TopicPartition, ...]:
    """The partitions in some messages."""
    return tuple(TopicPartition(entry.topic, number) for entry in messages for number in entry.partitions)


def encode_zones(zones: Mapping[str, Iterable[int]]) -> common_pb2.TopicZones:
    """Zones of a topic's partitions as a message.

    Raises:
        SettingsError: it is no such mapping, or a partition cannot be one.
    """
    message = common_pb2.TopicZones()
    if not isinstance(zones, Mapping):
        raise SettingsError("zones", f"must map zones to numbers of partitions, not be {zones!r}")
    for name, partitions in zones.items():
        listed: object = partitions
        if not isinstance(name, str) or isinstance(listed, str) or not isinstance(listed, Iterable):
            raise SettingsError("zones", f"must map names to lists of numbers, not {name!r} to {listed!r}")
        numbers = [check_partition("zones", number) for number in partitions]
        message.zones.add(name=name, partitions=numbers)
    return message


def decode_topic(message: discovery_pb2.Topic) -> Topic:
    """The topic in a message."""
    zones = {zone.name: tuple(zone.partitions) for zone in message.zones.zones}
    entries = message.names.partitions
    return Topic(
        message.name,
        message.partitions,
        MappingProxyType(zones),
        tuple(entry.name for entry in entries),
        tuple((entry.weight or 1) if entry.name else 0 for entry in entries),
    )


def encode_names(names: Mapping[str, int] | Iterable[str]) -> common_pb2.PartitionNames:
    """Names of partitions as a message, with their weights where these are given.

    Raises:
        SettingsError: a name or weight cannot be one.
    """
    message = common_pb2.PartitionNames()
    for name in check_partition_names(names):
        entry = message.partitions.add(name=name)
        if isinstance(names, Mapping):
            check_between("weight", names[name], 1, PARTITION_WEIGHT_MAX)
            entry.weight = names[name]
    return message


def encode_subscription(
    topics: Iterable[str],
    *,
    owned: Iterable[TopicPartition],
    keeps_owned: bool,
    generation: int,
    rack_id: str,
    user_data: bytes = b"",
) -> bytes:
    """The subscription of a member: the topics it wants and the partitions it owned."""
    message = common_pb2.Subscription(
        version=VERSION,
        topics=sorted(set(topics)),
        owned_partitions=to_messages(owned),
        keeps_owned=keeps_owned,
        generation=generation,
        rack_id=rack_id,
        user_data=user_data,
    )
    return message.SerializeToString(deterministic=True)


def decode_subscription(data: bytes) -> common_pb2.Subscription | None:
    """The subscription in a member's metadata; None if the bytes are not one of this version."""
    message = common_pb2.Subscription()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message if message.version == VERSION else None


def decode_member(member: coordinator_pb2.JoinGroupResponse.Member) -> MemberSnapshot | None:
    """A member as its subscription describes it; None if the bytes are not a subscription of this version."""
    message = decode_subscription(member.metadata)
    if message is None:
        return None
    return MemberSnapshot(
        member_id=member.member_id,
        topics=tuple(message.topics),
        group_instance_id=member.group_instance_id,
        rack_id=message.rack_id,
        owned=from_messages(message.owned_partitions),
        keeps_owned=message.keeps_owned,
        generation=message.generation,
        user_data=message.user_data,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The assignment of a member."""
    message = common_pb2.Assignment(version=VERSION, partitions=to_messages(partitions))
    return message.SerializeToString(deterministic=True)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...] | None:
    """The partitions of an assignment, none for no bytes; None if it is not one of this version."""
    if not data:
        return ()
    message = common_pb2.Assignment()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return from_messages(message.partitions) if message.version == VERSION else None


def tokens_of(
    partitions: Iterable[TopicPartition], response: coordinator_pb2.SyncGroupResponse
) -> Mapping[TopicPartition, str]:
    """The fencing token of each partition of an assignment."""
    kept = {TopicPartition(entry.topic, entry.partition): entry.token for entry in response.kept_tokens}
    return {partition: kept.get(partition, response.token) for partition in sorted(partitions)}
