"""Orders of Java's that decide in Kafka's assignors: of text, and of what is in a hash table."""

import struct
from collections.abc import Iterable

_FEWEST_BUCKETS = 16
"""A hash table of Java begins with so many and doubles when it is three quarters full."""


def text_order(text: str) -> bytes:
    """Sort key that orders text as Java does, by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def in_text_order(texts: Iterable[str]) -> list[str]:
    """Texts sorted as Java does."""
    listed = list(texts)
    return sorted(listed, key=None if all(map(str.isascii, listed)) else text_order)


def text_hash(text: str) -> int:
    """What `String.hashCode` returns, as an unsigned number of 32 bits."""
    units = text_order(text)
    value = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def hash_order(keys: Iterable[str]) -> list[str]:
    """Different texts in the order in which a `HashMap` that got them in this order has them."""
    listed = list(keys)
    last = buckets_for(len(listed)) - 1
    return sorted(listed, key=lambda key: spread(text_hash(key)) & last)


def buckets_for(entries: int, buckets: int = _FEWEST_BUCKETS) -> int:
    """How many buckets a hash table of so many entries has that had some number of buckets before."""
    while 4 * entries > 3 * buckets:
        buckets *= 2
    return buckets


def spread(value: int) -> int:
    """A hash as `HashMap` uses it: buckets are chosen by its low bits."""
    return value ^ (value >> 16)


class NumberSet:
    """The partitions of one topic in a `HashSet<TopicPartition>`: which one comes first?

    Args:
        topic_hash: `text_hash` of the topic.
    """

    def __init__(self, topic_hash: int) -> None:
        self._topic_hash = topic_hash
        self._buckets = _FEWEST_BUCKETS
        self._numbers: dict[int, None] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def add(self, number: int) -> None:
        """Puts a partition in that is not there."""
        self._numbers[number] = None
        self._buckets = buckets_for(len(self._numbers), self._buckets)

    def remove(self, number: int) -> None:
        """Takes a partition out that is there."""
        del self._numbers[number]

    def first(self) -> int:
        """The partition that an iterator returns first."""
        last = self._buckets - 1
        return min(self._numbers, key=lambda number: self._hash(number) & last)

    def _hash(self, number: int) -> int:
        return spread((31 * (31 + number) + self._topic_hash) & 0xFFFFFFFF)
