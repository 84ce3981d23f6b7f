"""Names of the partitions that this process works on, from the catalog."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from muster._backoff import Backoff
from muster._errors import ClusterUnavailable
from muster._values import Topic, TopicPartition

log = logging.getLogger("muster")

ReadTopics = Callable[[Iterable[str]], Awaitable[list[Topic]]]


class Names:
    """Finds the names of partitions.

    What is asked together is read together, and read anew for each assignment: a topic may have been deleted
    and created again.

    Args:
        read_topics: reads topics from the catalog.
    """

    def __init__(self, read_topics: ReadTopics) -> None:
        self._read_topics = read_topics
        self._reading: dict[str, asyncio.Task[Topic | None]] = {}
        self._numbered: set[str] = set()

    def note(self, topic: Topic) -> None:
        """Takes in what is known of a topic: one without names is not asked for again."""
        if not topic.names:
            self._numbered.add(topic.name)

    def assigned(self) -> None:
        """Forgets what was read for an earlier assignment."""
        self._reading.clear()

    async def of(self, where: TopicPartition) -> str | None:
        """The name of a partition; None: its topic has no names. Waits while the catalog does not have it."""
        backoff = Backoff()
        while where.topic not in self._numbered:
            topic = await self._topic(where.topic)
            if topic is not None and not topic.names:
                break
            if topic is not None and where.number < len(topic.names) and topic.names[where.number]:
                return topic.names[where.number]
            # It was removed, and is about to be revoked; or what was read is older than the assignment.
            await backoff.pause()
            self._reading.pop(where.topic, None)
        return None

    async def _topic(self, name: str) -> Topic | None:
        if name not in self._reading:
            self._reading[name] = asyncio.get_running_loop().create_task(
                self._read(name), name="muster-names"
            )
        return await asyncio.shield(self._reading[name])

    async def _read(self, name: str) -> Topic | None:
        while True:
            try:
                found = await self._read_topics([name])
            except ClusterUnavailable as error:
                log.warning("the names of the partitions of %s cannot be read: %s; trying again", name, error)
            else:
                return found[0] if found else None
