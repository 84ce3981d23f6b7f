"""The partitions of a large table of committed offsets by topic, and their order."""

from collections.abc import Collection, Iterable, Iterator, Set
from typing import Any

from muster_core.state.offsets.runs import RUN, Runs
from muster_core.state.published import TopicPartition

_TOPIC_COST = 8
"""To look at a topic takes as long as to sort so many numbers."""
_WORTH_HIDING = 100
"""Topics with so many partitions, on average, have lists that are worth hiding from a garbage collector."""


class OffsetOrder:
    """The partitions of a table by topic. They are put in order when somebody is about to read them.

    Args:
        table: all partitions that it has now.
    """

    __slots__ = ("_names", "_topics", "_waiting")

    def __init__(self, table: Iterable[TopicPartition]) -> None:
        self._names = Runs[str]()
        self._topics: dict[str, Runs[int]] = {}
        self._waiting: set[str] = set()
        for partition in table:
            self.came(partition)

    def containers(self, partitions: int) -> list[Collection[Any]]:
        """Names and numbers alone, as many as the table has.

        Not the lists of each topic where topics have few partitions: to hide a list from a garbage collector
        takes longer than to have it look at a hundred numbers (LIM-18).

        Args:
            partitions: how many the table has.
        """
        found: list[Collection[Any]] = [self._waiting, *self._names.containers]
        if partitions >= _WORTH_HIDING * len(self._topics):
            for numbers in self._topics.values():
                found += numbers.containers
        return found

    def put_in_order(self) -> bool:
        """Puts some more in order; returns whether all are."""
        if not self._names.sort_some():
            return False
        left = RUN
        while self._waiting and left > 0:
            topic = self._waiting.pop()
            numbers = self._topics.get(topic)
            if numbers is not None:
                left -= _TOPIC_COST + min(RUN, len(numbers.waiting))
                if not numbers.sort_some():
                    self._waiting.add(topic)
        return not self._waiting

    def came(self, partition: TopicPartition) -> None:
        """Notes what has come to the table."""
        topic, number = partition
        numbers = self._topics.get(topic)
        if numbers is None:
            numbers = self._topics[topic] = Runs()
            self._names.add(topic)
        waiting = numbers.waiting
        if not waiting:
            self._waiting.add(topic)
        if numbers.gone is None:
            waiting.append(number)
        else:
            numbers.add(number)

    def forget(self, topic: str, numbers: Collection[int]) -> None:
        """Leaves out partitions that are gone from the table."""
        if not numbers:
            return
        known = self._topics[topic]
        known.leave_out(numbers)
        if known.is_empty:
            del self._topics[topic]
            self._waiting.discard(topic)
            self._names.leave_out((topic,))
        elif not known.is_sorted:
            self._waiting.add(topic)

    def clear_some(self, most: int) -> bool:
        """Forgets some, for order lists that nobody reads any more; returns whether nothing is left."""
        self._waiting.clear()
        for topic, numbers in self._topics.items():
            if numbers.clear_some(most):
                del self._topics[topic]
            return False
        return self._names.clear_some(most)

    def numbers_of(self, names: Set[str]) -> dict[str, list[int]]:
        """The numbers of the partitions that are kept under some names, by name."""
        return {name: self._topics[name].all() for name in self._topics.keys() & names}

    def names(self) -> Set[str]:
        """The names of the topics, to be read only."""
        return self._topics.keys()

    def after(self, partition: TopicPartition | None) -> Iterator[TopicPartition]:
        """Everything in order, from the first one after that partition; None: all."""
        topic, number = ("", -1) if partition is None else partition
        for name in self._names.after(topic, or_at=True):
            for found in self._topics[name].after(number if name == topic else -1):
                yield name, found
