"""When the shards of a process take snapshots."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotPace:
    """When snapshots are taken and what is trimmed.

    Attributes:
        records: a snapshot is due when a load would replay so many records; 0: never.
        size_bytes: or so many bytes.
        retention_ms: entries that are older may be trimmed, wall clock; 0: none.
        only_exported: but only those of which the audit said that it has them.
        tick_ms: how often the shards are looked at.
        retry_ms: pause before a snapshot that came to nothing is tried again.
        damaged_ms: the same after the log could not be read: an operator has to act first.
        trim_ms: how often a log is looked at that may be trimmed.
        at_once: shards that are looked after at a time; each is read into memory a second time.
        limit_ms: time for one, after which it pauses as long.
    """

    records: int = 10_000
    size_bytes: int = 32 << 20
    retention_ms: int = 7 * 86_400_000
    only_exported: bool = False
    tick_ms: int = 500
    retry_ms: int = 5_000
    damaged_ms: int = 60_000
    trim_ms: int = 10_000
    at_once: int = 2
    limit_ms: int = 120_000
