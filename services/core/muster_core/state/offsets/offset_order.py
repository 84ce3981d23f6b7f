"""The order in which the committed offsets of a group are read."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from muster_core.state.published import TopicPartition

PORTION = 4_000
"""Partitions that are put in order at a time, in some milliseconds."""

_GONE_SHARE = 4
"""Once one number of so many of a topic is gone, its list is made anew, before more are put in order."""

_FEW = 8
"""Where one number of so many goes, or more, as of a topic that is deleted, they are left out at once."""

_NONE = frozenset[int]()


class OffsetOrder:
    """The partitions of a table in the order of topic and number, as far as they were taken.

    Those that were taken are the first of the table, which has them in the order in which they came. The
    others are listed: to pass over the first half million of a table takes longer than to put some in order.
    Once one of them goes the list is of no use, and is made anew when it is needed next. Of those that were
    taken it is noted which are gone, and passed over: to move a hundred thousand numbers together takes
    milliseconds, for each topic of a removal.
    """

    __slots__ = ("_begin", "_gone", "_names", "_numbers", "_taken", "_to_take")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._numbers: dict[str, list[int]] = {}
        self._gone: dict[str, set[int]] = {}
        self._taken = 0
        self._to_take: list[TopicPartition] | None = []
        self._begin = 0

    @property
    def containers(self) -> list[Collection[Any]]:
        """All that grows with the table."""
        return [self._names, self._to_take or [], *self._numbers.values(), *self._gone.values()]

    def take_some(self, table: Collection[TopicPartition]) -> bool:
        """Takes some more of a table; returns whether it has all of it now."""
        if self._made_anew():
            return False
        if len(self._names) != len(self._numbers):
            self._names = [name for name in self._names if name in self._numbers]
        if self._taken == len(table):
            return True
        if self._to_take is None:
            self._to_take, self._begin = list(islice(table, self._taken, None)), 0
        some = self._to_take[self._begin : self._begin + PORTION]
        self._begin += len(some)
        if self._begin == len(self._to_take):
            self._to_take, self._begin = [], 0
        came: dict[str, list[int]] = {}
        for topic, number in some:
            came.setdefault(topic, []).append(number)
        self._names += (name for name in came if name not in self._numbers)
        self._names.sort()
        for topic, numbers in came.items():
            known = self._numbers.setdefault(topic, [])
            self._taken += len(numbers)
            if gone := self._gone.get(topic):
                back = gone.intersection(numbers)  # their places are there still
                gone -= back
                numbers = [number for number in numbers if number not in back]
            known += numbers
            known.sort()  # what was in order is merged only
        return self._taken == len(table)

    def came(self, partition: TopicPartition) -> None:
        """Notes what has come to the end of the table."""
        if self._to_take is not None:
            self._to_take.append(partition)

    def forget(self, topic: str, numbers: Sequence[int]) -> None:
        """Leaves out partitions that are gone from the table; those that were not taken are passed over."""
        if self._to_take:
            self._to_take = None  # some of it may be gone
        known = self._numbers.get(topic)
        if not known or not numbers:
            return
        gone = self._gone.setdefault(topic, set())
        before, end = len(gone), len(known)
        some = slice(bisect_left(known, min(numbers)), bisect_right(known, max(numbers)))
        if some.stop - some.start <= _FEW * len(numbers):
            going = frozenset(numbers) - gone
            known[some] = [number for number in known[some] if number not in going]
            self._taken -= end - len(known)
            end = len(known)
        else:
            for number in numbers:
                place = bisect_left(known, number)
                if place < end and known[place] == number:
                    gone.add(number)
            self._taken -= len(gone) - before
        if len(gone) == end:
            del self._numbers[topic], self._gone[topic]  # its name goes with the next that is taken
        elif not gone:
            del self._gone[topic]

    def _made_anew(self) -> bool:
        """Makes the list of one topic anew of which much is gone; returns whether there was one."""
        for topic, gone in self._gone.items():
            known = self._numbers[topic]
            if len(gone) * _GONE_SHARE >= len(known):
                self._numbers[topic] = [number for number in known if number not in gone]
                del self._gone[topic]
                return True
        return False

    def clear_some(self, most: int) -> int:
        """Forgets some numbers, for order lists that nobody reads any more; returns how many."""
        self._gone.clear()
        for topic, known in self._numbers.items():
            gone = min(most, len(known))
            del known[-gone:]
            if not known:
                del self._numbers[topic]
            return gone
        return 0

    def numbers_of(
        self, is_meant: Callable[[str], bool], table: Collection[TopicPartition]
    ) -> dict[str, list[int]]:
        """The numbers of the partitions of some topics by name: what was taken is not looked through.

        Args:
            is_meant: whether the topic of a name is one of them.
            table: as it was for `take_some`.
        """
        numbers = {name: self._left(name) for name in self._numbers if is_meant(name)}
        if self._taken == len(table):
            return numbers
        came: defaultdict[str, list[int]] = defaultdict(list)
        for name, number in islice(table, self._taken, None):
            came[name].append(number)
        for name, some in came.items():
            if is_meant(name):
                numbers.setdefault(name, []).extend(some)
        return numbers

    def names(self, table: Collection[TopicPartition]) -> set[str]:
        """The names of topics in a table, as it was for `take_some`: what was taken is not looked through."""
        names = set(self._numbers)
        if self._taken != len(table):
            names.update(map(itemgetter(0), islice(table, self._taken, None)))
        return names

    def after(self, partition: TopicPartition | None) -> Iterator[TopicPartition]:
        """What was taken, from the first one after that partition; None: all."""
        topic, number = ("", -1) if partition is None else partition
        for index in range(bisect_left(self._names, topic), len(self._names)):
            name = self._names[index]
            numbers = self._numbers[name]
            begin = bisect_right(numbers, number) if name == topic else 0
            gone = self._gone.get(name, _NONE)
            for place in range(begin, len(numbers)):
                if numbers[place] not in gone:
                    yield name, numbers[place]

    def _left(self, name: str) -> list[int]:
        """The numbers of a topic that was taken."""
        known, gone = self._numbers[name], self._gone.get(name)
        return [number for number in known if number not in gone] if gone else known[:]
