"""The user data of Kafka's sticky assignors, which a member that speaks as Kafka's clients do may send.

`sticky`: an array of (topic, array of numbers), then the generation, which the oldest version lacks;
`cooperative-sticky`: the generation. Numbers have four bytes, arrays and names begin with their length.
"""

import struct

from muster_assignors._snapshot import TopicPartition

UNKNOWN_GENERATION = -1


def decode_previous(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """What the member had, and in which generation; nothing in generation -1 where that cannot be read."""
    found: list[TopicPartition] = []
    try:
        (topics,) = struct.unpack_from(">i", data)
        at = 4
        for _ in range(topics):
            (size,) = struct.unpack_from(">h", data, at)
            name, count = struct.unpack_from(f">{size}si", data, at + 2)
            at += 6 + size
            topic = name.decode()
            found += [TopicPartition(topic, n) for n in struct.unpack_from(f">{count}i", data, at)]
            at += 4 * count
        generation = struct.unpack_from(">i", data, at)[0] if at < len(data) else UNKNOWN_GENERATION
    except (struct.error, UnicodeDecodeError):
        return (), UNKNOWN_GENERATION
    return tuple(found), generation


def decode_generation(data: bytes) -> int:
    """The generation that a member of `cooperative-sticky` sent; -1 where it cannot be read."""
    try:
        return int(struct.unpack_from(">i", data)[0])
    except struct.error:
        return UNKNOWN_GENERATION
