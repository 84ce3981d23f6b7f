"""Names of a topic's partitions: what may be stored, and what a change makes of them."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from muster_protos.limits import NAME_RULE, PARTITION_WEIGHT_MAX, TOPIC_PARTITIONS_MAX, is_name
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2

MAX_NAMES_BYTES = 256 << 10
"""What the names of a topic take: the leader of each of its groups reads them."""

MAX_ALL_NAMES_BYTES = 1 << 20
"""What the names of all topics take: each change of the catalog is sent to every server."""

MAX_REMOVED = 20_000
"""Removed partitions of all topics that there are: every coordinator knows each of them."""

_ENTRY_BYTES = 4
"""What a partition takes at least beside its name."""

_CACHED_TOPICS = 256

_Partition = common_pb2.PartitionNames.Partition


def names_problem(topic: discovery_pb2.Topic) -> str:
    """Why a topic cannot be created with the names that it gives; empty: it can."""
    partitions = topic.names.partitions
    if len(partitions) != topic.partitions:
        return f"topic.names: {len(partitions):,} names are given for {topic.partitions:,} partitions"
    problem = _entries_problem("topic.names.partitions", partitions)
    return problem or _size_problem(len(stored_names(topic.names)))


def stored_names(names: common_pb2.PartitionNames) -> bytes:
    """The serialised names in the one form in which they are stored; empty: there are none."""
    plain = common_pb2.PartitionNames()
    plain.CopyFrom(names)
    plain.DiscardUnknownFields()
    for entry in plain.partitions:
        if entry.weight == 1:
            entry.weight = 0
    return plain.SerializeToString(deterministic=True)


def names_of(stored: bytes) -> common_pb2.PartitionNames | None:
    """What `stored_names` gave; None: there are none."""
    return common_pb2.PartitionNames.FromString(stored) if stored else None


def number_of(stored: bytes) -> int:
    """How many partitions the names are of, removed ones included; 0: there are none."""
    return len(common_pb2.PartitionNames.FromString(stored).partitions)


@lru_cache(maxsize=_CACHED_TOPICS)
def removed_in(stored: bytes) -> frozenset[int]:
    """Numbers of the partitions that were removed."""
    names = common_pb2.PartitionNames.FromString(stored)
    return frozenset(number for number, entry in enumerate(names.partitions) if not entry.name)


def removed_by_topic(topics: Iterable[discovery_pb2.Topic]) -> dict[str, frozenset[int]]:
    """Numbers of the partitions that were removed, of the topics that have lost any."""
    return {
        topic.name: removed
        for topic in topics
        if topic.HasField("names")
        and (removed := removed_in(topic.names.SerializeToString(deterministic=True)))
    }


class NamesChange:
    """What a request to change partitions comes to.

    Args:
        stored: the names before it.
        request: the request.

    Attributes:
        problem: why it cannot be carried out; empty: it can.
        missing: whether that is because a partition to remove is not there.
        record: what is to be stored; None: nothing, since it is so already.
    """

    def __init__(self, stored: bytes, request: discovery_pb2.AlterPartitionsRequest) -> None:
        names = common_pb2.PartitionNames.FromString(stored)
        self.record: records_pb2.PartitionsAltered | None = None
        self.missing = False
        self.problem = _entries_problem("put", request.put)
        if self.problem:
            return
        numbers = {entry.name: number for number, entry in enumerate(names.partitions) if entry.name}
        named = {entry.name for entry in request.put}
        for index, name in enumerate(request.remove):
            if name in named:
                self.problem = f"remove[{index}]: partition {name!r} is given more than once"
            elif name not in numbers:
                self.problem = f"topic {request.topic!r} has no partition {name!r}"
                self.missing = True
            if self.problem:
                return
            named.add(name)
        record = records_pb2.PartitionsAltered(
            topic=request.topic, removed=sorted(numbers[name] for name in request.remove)
        )
        end = len(names.partitions)
        put: list[tuple[int, str, int]] = []
        for entry in request.put:
            name, weight = entry.name, entry.weight
            plain, number = 0 if weight == 1 else weight, numbers.get(name, end)
            if number == end:
                end += 1
            elif not weight or names.partitions[number].weight == plain:
                continue
            put.append((number, name, plain))
        if end > TOPIC_PARTITIONS_MAX:
            self.problem = (
                f"put: the topic would have had {end:,} partitions, and at most {TOPIC_PARTITIONS_MAX:,} may "
                f"be, removed ones included; create another topic"
            )
        elif put or record.removed:
            for number, name, weight in sorted(put):
                added = record.put.add()
                added.number, added.name, added.weight = number, name, weight
            self.problem = _size_problem(len(altered(stored, record)))
            self.record = record


def altered(stored: bytes, record: records_pb2.PartitionsAltered) -> bytes:
    """The names that a record makes of those before it; leaves out what cannot be."""
    names = common_pb2.PartitionNames.FromString(stored)
    entries = names.partitions
    for put in record.put:
        if put.number == len(entries):
            entries.add()
        if put.number < len(entries):
            entry = entries[put.number]
            entry.name, entry.weight = put.name, 0 if put.weight == 1 else put.weight
    for number in record.removed:
        if number < len(entries):
            entries[number].Clear()
    return names.SerializeToString(deterministic=True)


def alteration_problem(stored: bytes, record: records_pb2.PartitionsAltered) -> str:
    """What is wrong with a record of the log, for who checks it; empty: nothing."""
    names = common_pb2.PartitionNames.FromString(stored).partitions
    if not record.put and not record.removed:
        return "nothing is changed"
    end = len(names)
    living = {entry.name for entry in names if entry.name}
    for put in record.put:
        if put.number > end or len(names) <= put.number < end:
            return f"partition {put.number} is put after partition {end - 1}"
        if put.number == end:
            end += 1
            if put.name in living:
                return f"partition {put.name!r} gets number {put.number}, and has another one"
        elif names[put.number].name != put.name:
            return f"number {put.number} of {names[put.number].name!r} is given to {put.name!r}"
        living.add(put.name)
    for number in record.removed:
        if number >= len(names) or not names[number].name:
            return f"partition {number} is removed, and there is none"
    return _entries_problem("put", [_plain(put.name, put.weight) for put in record.put])


def _plain(name: str, weight: int) -> _Partition:
    return _Partition(name=name, weight=0 if weight == 1 else weight)


def _entries_problem(field: str, entries: Sequence[_Partition]) -> str:
    given = [entry.name for entry in entries]
    if sum(map(len, given)) + _ENTRY_BYTES * len(given) > MAX_NAMES_BYTES:
        return f"the names of a topic take at most {MAX_NAMES_BYTES:,} bytes, and those of {field} more"
    heaviest = max([entry.weight for entry in entries], default=0)
    if heaviest <= PARTITION_WEIGHT_MAX and len(set(given)) == len(given) and all(map(is_name, given)):
        return ""
    names: set[str] = set()
    for index, entry in enumerate(entries):
        if not is_name(entry.name):
            return f"{field}[{index}].name must be {NAME_RULE}"
        if entry.weight > PARTITION_WEIGHT_MAX:
            return f"{field}[{index}].weight must be from 1 to {PARTITION_WEIGHT_MAX:,}"
        if entry.name in names:
            return f"{field}[{index}]: partition {entry.name!r} is given more than once"
        names.add(entry.name)
    return ""


def _size_problem(size_bytes: int) -> str:
    if size_bytes <= MAX_NAMES_BYTES:
        return ""
    return f"the names of a topic take at most {MAX_NAMES_BYTES:,} bytes, not {size_bytes:,}"
