"""What was read of a log so far: the state that a snapshot and the records after it make."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from google.protobuf.message import DecodeError
from muster_core.config import GroupConfig
from muster_core.log.chain import HASH_BYTES, NONCE_BYTES
from muster_core.log.record_run import RecordRun, not_beginning_like_a_commit
from muster_core.log.replay import ChainReader, LogDamaged, Marker
from muster_core.log.snapshot import Covered, SnapshotReader, SnapshotUnusable, nothing_of
from muster_core.position import Position
from muster_core.shard import Shard
from muster_core.state.quarantine import NOBODY, Quarantine
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_runtime import clock

from muster_coordinator.failstop.failures import Failure, of_replay


class LoadFailed(Exception):
    """The log can be read, but must not be served: it is damaged, shorter than it was, or not understood.

    Attributes:
        failure: the record that made this program fail, where that is one of a group; None: nothing of it.
    """

    def __init__(self, text: str, failure: Failure | None = None) -> None:
        super().__init__(text)
        self.failure = failure


PART_BYTES = 256 << 10
"""Records that are taken at a stretch: at most ten thousand offsets or so, for some ten milliseconds."""

_DECISION_BYTES = 256
_DECISION_WEIGHT = 8
"""What is no commit takes as long as one of so many times its bytes, and these: its members are looked at,
and the partitions that move are noted."""


class LogImage:
    """The state after the last entry that was read, and that entry's place and hash.

    Args:
        shard: the shard.
        config: for its core.
        quarantine: groups of which only the offsets are taken over.

    Attributes:
        core: the state.
        chain: the end of what was read.
        base: what the snapshot covers that the read began with.
        base_bytes: size of that snapshot.
        records: number of records that were replayed.
        size_bytes: bytes of these.
        written_at_ms: when the last of them was written, wall clock.
        unusable: snapshots that turned out not to be usable, by the last position that they cover.
    """

    def __init__(self, shard: int, config: GroupConfig, quarantine: Quarantine = NOBODY) -> None:
        self.shard = shard
        self._quarantine = quarantine
        self.unusable: set[Position] = set()
        self._config = config
        self.restart()

    def restart(self) -> None:
        """Forgets all that was read, but not which snapshots are unusable."""
        self.core = Shard(self.shard, self._config, self._quarantine)
        self.chain = ChainReader()
        self.base: Covered = nothing_of(self.shard)
        self.records = self.size_bytes = self.base_bytes = self.written_at_ms = 0
        self._restoring: SnapshotReader | None = None
        self._digest = b""

    @property
    def fresh(self) -> bool:
        """Whether nothing was read yet."""
        return self.chain.end.offset == 0 and self._restoring is None

    @property
    def base_marker(self) -> Marker | None:
        """The marker of the snapshot that the read began with; None: none, or it was not read yet."""
        for marker in self.chain.markers:
            snapshot = marker.snapshot
            if Position.from_proto(snapshot.upto) == self.base.upto:
                same = snapshot.hash == self.base.hash and snapshot.digest == self._digest
                return marker if same else None
        return None

    def take_part(self, part: bytes) -> None:
        """Takes the next part of a snapshot; before any entries.

        Raises:
            SnapshotUnusable: see `SnapshotReader.take`.
        """
        if self._restoring is None:
            self._restoring = self.core.restore()
        self._restoring.take(part)
        self.base_bytes += len(part)

    def take(self, run: bytes) -> None:
        """Takes all parts of a run at a stretch; see `take_in_parts`."""
        for _ in self.take_in_parts(run):
            pass

    def take_in_parts(self, run: bytes) -> Iterator[None]:
        """Checks the entries of a serialised `EntryRun` and replays their records, some at a time.

        A page of the log may hold two hundred thousand offsets: at a stretch they would hold the loop for a
        quarter of a second.

        Yields:
            After each part.

        Raises:
            SnapshotUnusable: they come before the snapshot is complete.
            LogDamaged: those of a part do not follow what was read before; nothing of that part was taken.
            LoadFailed: this version must not serve them.
        """
        if self._restoring is not None:
            self._begin_after(self._restoring)
        columns = metadata_pb2.EntryRun.FromString(run)
        first, datas = Position(columns.epoch, columns.first_offset), columns.records[:]
        nonces, hashes = columns.nonces, columns.hashes
        ends = _ends_of_parts(datas)
        begin = 0
        for end in ends:
            rest = end == ends[-1]  # what is too much in the columns is the last part's, which refuses it
            self._take_records(
                _decoded(first.after(begin), datas[begin:end]),
                nonces[NONCE_BYTES * begin : None if rest else NONCE_BYTES * end],
                hashes[HASH_BYTES * begin : None if rest else HASH_BYTES * end],
            )
            begin = end
            yield

    def _take_records(self, records: RecordRun, nonces: bytes, hashes: bytes) -> None:
        self.chain.read_run(records, nonces, hashes)
        first = records.first
        try:
            self.core.replay_run(records)
        except MemoryError:
            raise  # no group is to blame: whoever logs it ends the process
        except Exception as error:
            where = f"from {first.stream_id} to {self.chain.end.stream_id}"
            raise LoadFailed(
                f"a record {where} cannot be replayed: {error!r}",
                of_replay(self.core, clock.wall_ms(), error),
            ) from error
        self.records += len(records)
        self.size_bytes += sum(map(len, records.datas))
        self.written_at_ms = max(self.written_at_ms, records.times_ms()[-1])

    def _begin_after(self, restored: SnapshotReader) -> None:
        if not restored.complete or restored.covered is None:
            raise SnapshotUnusable("the snapshot ends before its last item")
        self._restoring = None
        self.base, self._digest = restored.covered, restored.digest
        self.chain = ChainReader(self.base.upto, self.base.hash)


def _ends_of_parts(datas: Sequence[bytes]) -> list[int]:
    """Where the parts end: each has less than `PART_BYTES`, as commits, before its last record."""
    sizes_bytes = [*map(len, datas)]
    for index in not_beginning_like_a_commit(datas):
        sizes_bytes[index] = _DECISION_WEIGHT * (_DECISION_BYTES + sizes_bytes[index])
    ends, begun_bytes = [], 0
    for end, read_bytes in enumerate(accumulate(sizes_bytes), 1):
        if read_bytes - begun_bytes >= PART_BYTES:
            ends.append(end)
            begun_bytes = read_bytes
    if not ends or ends[-1] < len(datas):
        ends.append(len(datas))
    return ends


def _decoded(first: Position, datas: Sequence[bytes]) -> RecordRun:
    """The records of a run.

    Raises:
        LogDamaged: one of them is no record.
    """
    try:
        return RecordRun(first, datas)
    except DecodeError:
        for index, data in enumerate(datas):
            try:
                records_pb2.Record.FromString(data)
            except DecodeError:
                raise LogDamaged(first.after(index), "its record cannot be decoded") from None
        raise
