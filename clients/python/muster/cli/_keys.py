"""Partitions as people call them: by name where the catalog has names."""

from collections.abc import Iterable, Sequence

from muster_protos.limits import TOPIC_NAMES_MAX, is_name

from muster._cluster.cluster import Cluster
from muster._messages import runs
from muster._values import Topic, TopicPartition

MOST_NAMES = 50
"""A list of more names ends with how many follow."""


class Keys:
    """Names of the partitions of some topics.

    Args:
        topics: as the catalog has them; partitions of others go by their numbers.
    """

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self._names = {topic.name: topic.names for topic in topics if topic.names}

    def of(self, partition: TopicPartition) -> str:
        """Name of a partition, or its number where it has none."""
        names = self._names.get(partition.topic, ())
        return (names[partition.number] if partition.number < len(names) else "") or str(partition.number)

    def in_words(self, partition: TopicPartition) -> str:
        """`tenants-3 (acme)`, or `sites-3`."""
        key = self.of(partition)
        return str(partition) if key == str(partition.number) else f"{partition} ({key})"

    def of_topic(self, topic: str, numbers: Sequence[int]) -> str:
        """Several partitions of a topic: `tenants acme globex`, or `sites 0-3 7`."""
        if topic not in self._names:
            return f"{topic} {runs(numbers)}"
        keys = [self.of(TopicPartition(topic, number)) for number in numbers[:MOST_NAMES]]
        more = [f"… and {len(numbers) - MOST_NAMES:,} more"] if len(numbers) > MOST_NAMES else []
        return " ".join([topic, *keys, *more])


async def keys_of(cluster: Cluster, topics: Iterable[str]) -> Keys:
    """The names of the partitions of some topics; what is no name of a topic has none."""
    wanted = sorted({name for name in topics if is_name(name)})
    found: list[Topic] = []
    for first in range(0, len(wanted), TOPIC_NAMES_MAX):
        found += await cluster.topics(wanted[first : first + TOPIC_NAMES_MAX])
    return Keys(found)
