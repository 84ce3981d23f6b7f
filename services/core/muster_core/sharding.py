"""Java's hash of a string, and the shard of a group that follows from it."""


def java_hash(text: str) -> int:
    """`String.hashCode()` of Java: over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def java_map_bucket(text: str) -> int:
    """Where a small `HashMap` of Java (up to 12 entries) holds a string, which is its place in the order."""
    value = java_hash(text) & 0xFFFFFFFF
    return (value ^ value >> 16) & 15


def shard_of(group_id: str, shard_count: int) -> int:
    """The shard of a group, from 0: `abs32(java_hash(group_id)) mod shard_count`.

    As Kafka's `Utils.abs`, the absolute value of the smallest 32-bit number is 0 (conformance FC-08).
    """
    value = java_hash(group_id)
    return (0 if value == -0x8000_0000 else abs(value)) % shard_count
