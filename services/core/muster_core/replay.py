"""Reading a log back: the chain of its entries is checked before any record is believed."""

from typing import NamedTuple

from google.protobuf.message import DecodeError
from muster_protos.muster.log.v1 import records_pb2

from muster_core.chain import BEFORE_GENESIS, chain_hash
from muster_core.position import NOWHERE, Position


class LogDamaged(Exception):
    """An entry does not follow the one before it: a gap, a swap, an edit, two writers.

    Attributes:
        position: place of the entry.
    """

    def __init__(self, position: Position, what: str) -> None:
        super().__init__(f"the log is damaged at {position.stream_id}: {what}")
        self.position = position


class Entry(NamedTuple):
    """An entry as it stands in the log."""

    position: Position
    record: bytes
    nonce: bytes
    hash: bytes


class ChainReader:
    """Checks entries in order: dense offsets, epochs that change only at a Claim, and the chain hash.

    Args:
        end: the last entry before the first one to come; by default the log is read from its genesis.
        end_hash: the chain hash of that entry.

    Attributes:
        end: place of the last entry that was read.
        end_hash: its chain hash, 32 bytes.
        nonces_of_claims: epoch → nonce of its Claim, of what was read.
    """

    def __init__(self, end: Position = NOWHERE, end_hash: bytes = BEFORE_GENESIS) -> None:
        self.end = end
        self.end_hash = end_hash
        self.nonces_of_claims: dict[int, bytes] = {}

    def read(self, entry: Entry) -> records_pb2.Record:
        """Checks the next entry and decodes its record.

        Raises:
            LogDamaged: it does not follow, or cannot be decoded.
        """
        position = entry.position
        if position.offset != self.end.offset + 1:
            raise LogDamaged(position, f"offsets are not dense: before it comes {self.end.stream_id}")
        if chain_hash(self.end_hash, position, entry.nonce, entry.record) != entry.hash:
            raise LogDamaged(position, "its chain hash does not match its content and the entry before it")
        record = records_pb2.Record()
        try:
            record.ParseFromString(entry.record)
        except DecodeError:
            raise LogDamaged(position, "its record cannot be decoded") from None
        self._check_epoch(position, record)
        if record.WhichOneof("kind") == "claim":
            self.nonces_of_claims[position.epoch] = entry.nonce
        self.end, self.end_hash = position, entry.hash
        return record

    def _check_epoch(self, position: Position, record: records_pb2.Record) -> None:
        kind = record.WhichOneof("kind")
        if self.end == NOWHERE:
            if kind != "genesis":
                raise LogDamaged(position, "it is the first entry and no Genesis")
        elif position.epoch < self.end.epoch:
            raise LogDamaged(position, f"its epoch is below {self.end.epoch}, that of the entry before it")
        elif position.epoch == self.end.epoch:
            if kind in ("claim", "genesis"):
                raise LogDamaged(position, f"a {kind} stands inside an epoch")
        elif kind != "claim":
            raise LogDamaged(position, "an epoch begins without a Claim")
        elif Position.from_proto(record.claim.previous) != self.end:
            raise LogDamaged(position, f"its Claim names another entry before it than {self.end.stream_id}")
