"""Reading a log back: the chain of its entries is checked before any record is believed."""

from typing import NamedTuple

from google.protobuf.message import DecodeError
from muster_protos.muster.log.v1 import records_pb2

from muster_core.log.chain import BEFORE_GENESIS, HASH_BYTES, NONCE_BYTES, chain_hash, chain_hashes, pieces
from muster_core.log.record_run import RecordRun
from muster_core.position import NOWHERE, Position

_OTHER_HASH = "its chain hash does not match its content and the entry before it"
_NOTED = frozenset({"claim", "genesis", "snapshot"})


class LogDamaged(Exception):
    """An entry does not follow the one before it: a gap, a swap, an edit, two writers.

    Attributes:
        position: place of the entry.
    """

    def __init__(self, position: Position, what: str) -> None:
        super().__init__(f"the log is damaged at {position.stream_id}: {what}")
        self.position = position


class Entry(NamedTuple):
    """An entry of a log."""

    position: Position
    record: bytes
    nonce: bytes
    hash: bytes


class Marker(NamedTuple):
    """A Snapshot record of a log."""

    position: Position
    hash: bytes
    snapshot: records_pb2.Snapshot


class ChainReader:
    """Checks entries in order: dense offsets, epochs that change only at a Claim, and the chain hash.

    Args:
        end: the last entry before the first one to come; by default the log is read from its genesis.
        end_hash: the chain hash of that entry.

    Attributes:
        end: place of the last entry that was read.
        end_hash: its chain hash, 32 bytes.
        nonces_of_claims: epoch → nonce of its Claim, of what was read.
        markers: the Snapshot records of what was read, in order.
    """

    def __init__(self, end: Position = NOWHERE, end_hash: bytes = BEFORE_GENESIS) -> None:
        self.end = end
        self.end_hash = end_hash
        self.nonces_of_claims: dict[int, bytes] = {}
        self.markers: list[Marker] = []

    def read(self, entry: Entry) -> records_pb2.Record:
        """Checks the next entry and decodes its record.

        Raises:
            LogDamaged: it does not follow, or cannot be decoded.
        """
        position = entry.position
        if position.offset != self.end.offset + 1:
            raise LogDamaged(position, f"offsets are not dense: before it comes {self.end.stream_id}")
        if chain_hash(self.end_hash, position, entry.nonce, entry.record) != entry.hash:
            raise LogDamaged(position, _OTHER_HASH)
        record = records_pb2.Record()
        try:
            record.ParseFromString(entry.record)
        except DecodeError:
            raise LogDamaged(position, "its record cannot be decoded") from None
        self._check_epoch(position, record.WhichOneof("kind") or "", record)
        self._note(position, entry.nonce, entry.hash, record)
        self.end, self.end_hash = position, entry.hash
        return record

    def read_run(self, run: RecordRun, nonces: bytes, hashes: bytes) -> None:
        """Checks the next entries, all of one epoch, as `read` does one by one, in a fraction of the time.

        Args:
            run: their records.
            nonces: their nonces, 16 bytes each.
            hashes: their chain hashes, 32 bytes each.

        Raises:
            LogDamaged: one of them does not follow; nothing was taken then.
        """
        first, datas = run.first, run.datas
        if first.offset != self.end.offset + 1:
            raise LogDamaged(first, f"offsets are not dense: before it comes {self.end.stream_id}")
        lengths = len(self.end_hash), len(nonces), len(hashes)
        if lengths != (HASH_BYTES, NONCE_BYTES * len(datas), HASH_BYTES * len(datas)):
            raise LogDamaged(first, "from here on nonces or hashes have another length than they must have")
        nonce_of, stored = pieces(nonces, NONCE_BYTES), pieces(hashes, HASH_BYTES)
        found = chain_hashes(self.end_hash, first, nonce_of, datas, stored)
        if found != stored:
            wrong = next(i for i in range(len(datas)) if found[i] != stored[i])
            raise LogDamaged(first.after(wrong), _OTHER_HASH)
        self._check_epoch(first, run.kinds[0], run.others.get(0))
        noted = [index for index in run.others if run.kinds[index] in _NOTED]
        for index in noted:
            if index and run.kinds[index] != "snapshot":
                raise LogDamaged(first.after(index), f"there is a {run.kinds[index]} inside an epoch")
        for index in noted:
            self._note(first.after(index), nonce_of[index], stored[index], run.others[index])
        self.end, self.end_hash = first.after(len(datas) - 1), stored[-1]

    def _note(self, position: Position, nonce: bytes, hash_: bytes, record: records_pb2.Record) -> None:
        if record.HasField("claim"):
            self.nonces_of_claims[position.epoch] = nonce
        elif record.HasField("snapshot"):
            self.markers.append(Marker(position, hash_, record.snapshot))

    def _check_epoch(self, position: Position, kind: str, record: records_pb2.Record | None) -> None:
        """Checks where epochs begin; `record` is not needed of a commit."""
        if self.end == NOWHERE:
            if kind != "genesis":
                raise LogDamaged(position, "it is the first entry and no Genesis")
        elif position.epoch < self.end.epoch:
            raise LogDamaged(position, f"its epoch is below {self.end.epoch}, that of the entry before it")
        elif position.epoch == self.end.epoch:
            if kind in ("claim", "genesis"):
                raise LogDamaged(position, f"there is a {kind} inside an epoch")
        elif kind != "claim" or record is None:
            raise LogDamaged(position, "an epoch begins without a Claim")
        elif Position.from_proto(record.claim.previous) != self.end:
            raise LogDamaged(position, f"its Claim names another entry before it than {self.end.stream_id}")
