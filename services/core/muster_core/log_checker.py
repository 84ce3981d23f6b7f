"""Checks a log, entry by entry, against the promises about logs."""

from collections import Counter

from google.protobuf.message import DecodeError
from muster_protos.muster.log.v1 import records_pb2

from muster_core.chain import BEFORE_GENESIS, chain_hash
from muster_core.group_checker import GroupChecker
from muster_core.invariants import Findings
from muster_core.position import GENESIS, NOWHERE, Position
from muster_core.replay import Entry


class LogChecker:
    """Checks one log, entry by entry, in order.

    It goes on after a violation, taking each entry as it stands, so that one break is reported once.

    Args:
        shard: number of the log.
        anchor: where the entries begin when the log was trimmed: place and hash of the entry before the
            first one; None: the log begins with its Genesis.
        limit: violations kept per invariant; all are counted.
    """

    def __init__(self, shard: int, anchor: tuple[Position, bytes] | None = None, limit: int = 20) -> None:
        self.shard = shard
        self.findings = Findings(limit)
        self.kinds: Counter[str] = Counter()
        self.entries = 0
        self.end = NOWHERE if anchor is None else anchor[0]
        self._hash = BEFORE_GENESIS if anchor is None else anchor[1]
        self._trimmed = anchor is not None
        self._nonces: set[bytes] = set()
        self._groups = GroupChecker(self.findings, trimmed=self._trimmed)
        self._owner: tuple[str, str] | None = None
        self._handed_off = False

    def add(self, entry: Entry) -> None:
        """Takes the next entry."""
        record = self._decoded(entry)
        kind = record.WhichOneof("kind") or "" if record is not None else ""
        self._check_place(entry.position, kind)
        self._check_chain(entry)
        if record is not None:
            self.kinds[kind or "unknown"] += 1
            self._check_owner(entry.position, record, kind)
            self._groups.add(entry.position, record)
        self.entries += 1
        self.end = entry.position
        self._hash = entry.hash

    # -- the log ------------------------------------------------------------------------------------

    def _decoded(self, entry: Entry) -> records_pb2.Record | None:
        try:
            record = records_pb2.Record.FromString(entry.record)
        except DecodeError:
            self.findings.expect(
                "L10", False, entry.position, f"its {len(entry.record)} bytes are not a record"
            )
            return None
        known = record.WhichOneof("kind") is not None
        self.findings.expect(
            "L10", known or not record.critical, entry.position, "a critical record of an unknown kind"
        )
        return record

    def _check_place(self, position: Position, kind: str) -> None:
        before = self.end
        if self.entries == 0:
            first = position == GENESIS and kind == "genesis"
            self.findings.expect(
                "L8",
                first or self._trimmed,
                position,
                f"the log begins with {kind or 'no record'} and no snapshot reaches there",
            )
            if not self._trimmed:
                return
        self.findings.expect(
            "L1",
            position.offset == before.offset + 1,
            position,
            f"offset {position.offset} follows {before.offset}",
        )
        self.findings.expect(
            "L2", position.epoch >= before.epoch, position, f"epoch {position.epoch} follows {before.epoch}"
        )

    def _check_chain(self, entry: Entry) -> None:
        expected = chain_hash(self._hash, entry.position, entry.nonce, entry.record)
        self.findings.expect(
            "L6",
            expected == entry.hash,
            entry.position,
            f"its hash is {entry.hash.hex()[:16]}…, the entries up to it give {expected.hex()[:16]}…",
        )
        repeated = entry.nonce in self._nonces
        self.findings.expect(
            "L7", not repeated, entry.position, f"nonce {entry.nonce.hex()} stands further up, too"
        )
        self._nonces.add(entry.nonce)

    def _check_owner(self, position: Position, record: records_pb2.Record, kind: str) -> None:
        new_epoch = position.epoch != self.end.epoch and self.end != NOWHERE
        if kind == "claim":
            claim = record.claim
            self.findings.expect(
                "L3",
                position.epoch > self.end.epoch,
                position,
                f"a Claim by {claim.node_id} in epoch {position.epoch}, which was claimed before",
            )
            previous = Position.from_proto(claim.previous)
            self.findings.expect(
                "L3",
                previous == self.end,
                position,
                f"the Claim names {previous.stream_id} as the entry before it, which is {self.end.stream_id}",
            )
            self._owner = (claim.node_id, claim.session)
            self._handed_off = False
            return
        if kind == "genesis":
            if position != GENESIS:
                self.findings.expect("L8", False, position, "a Genesis inside the log")
            return
        if new_epoch:
            self.findings.expect(
                "L3", False, position, f"epoch {position.epoch} begins with {kind}, not with a Claim"
            )
        self.findings.expect("L4", not self._handed_off, position, f"{kind} after the Handoff of the epoch")
        if kind == "handoff":
            self._handed_off = True
            owner = self._owner
            self.findings.expect(
                "L4",
                owner is None or owner[0] == record.handoff.node_id,
                position,
                f"a Handoff by {record.handoff.node_id} in the epoch of {owner[0] if owner else 'nobody'}",
            )
