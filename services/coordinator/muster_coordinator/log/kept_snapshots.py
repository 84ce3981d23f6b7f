"""What an owner knows of its log's snapshots: when one is due, and how far the log may be trimmed."""

from muster_core.log.snapshot import Covered
from muster_core.position import NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_coordinator.log.log_image import LogImage
from muster_coordinator.log.shard_log import ShardLog

RECORD_WEIGHT_BYTES = 1 << 10
"""To replay a record takes as long as to restore so much of a snapshot, however small the record is."""


class KeptSnapshots:
    """The snapshots of one served log.

    Args:
        shard_log: the log, after the owner's claim.
        image: what was loaded.

    Attributes:
        log: the log.
        newest: what the newest snapshot covers of which this owner is certain.
        newest_bytes: size of that snapshot.
        marker: its marker; None: there is none.
        trimmed: entries before this place were asked to be removed.
        skips: whether the load passed over records of kinds that this version does not know.
    """

    def __init__(self, shard_log: ShardLog, image: LogImage) -> None:
        self.log = shard_log
        self.newest: Covered = image.base
        self.newest_bytes = image.base_bytes
        marker = image.base_marker
        self.marker: metadata_pb2.LogEnd | None = None
        if marker is not None:
            self.marker = metadata_pb2.LogEnd(position=marker.position.to_proto(), hash=marker.hash)
        self.trimmed = NOWHERE
        self.skips = image.core.skipped_records > 0
        self._bytes_before = image.size_bytes

    @property
    def records_since(self) -> int:
        """Number of records after the newest snapshot: what a load would replay."""
        return int(self.log.end.position.offset - self.newest.upto.offset)

    @property
    def bytes_since(self) -> int:
        """About how many bytes they have."""
        return self._bytes_before + self.log.written_bytes

    @property
    def outweighed(self) -> bool:
        """Whether a load would take as long for the records since the newest snapshot as for that."""
        return max(self.bytes_since, RECORD_WEIGHT_BYTES * self.records_since) >= self.newest_bytes

    def taken(self, covered: Covered, marker: metadata_pb2.LogEnd, size_bytes: int, bytes_after: int) -> None:
        """A new snapshot counts.

        Args:
            covered: what it covers.
            marker: its marker.
            size_bytes: its size.
            bytes_after: what `bytes_since` counts from now on.
        """
        self.newest, self.marker, self.newest_bytes = covered, marker, size_bytes
        self._bytes_before = bytes_after - self.log.written_bytes

    def trimmable(self, before_wall_ms: int) -> Position:
        """Up to where the log may be removed: covered by both snapshots, and written before a time.

        Nowhere: nothing may.
        """
        found = NOWHERE
        for milestone in self.newest.milestones:
            if milestone.position <= self.newest.previous_upto and milestone.written_at_ms <= before_wall_ms:
                found = max(found, milestone.position)
        return found
