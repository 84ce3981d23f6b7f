"""Checks a log, entry by entry, against the promises about logs."""

from collections import Counter
from collections.abc import Collection

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.groups.group_checker import GroupChecker
from muster_core.audit.hash_window import HashWindow
from muster_core.audit.invariants import Findings
from muster_core.audit.nonces import NonceBook, NonceSet
from muster_core.config import GroupConfig
from muster_core.log.chain import BEFORE_GENESIS, HASH_BYTES, NONCE_BYTES, chain_hash, chain_hashes
from muster_core.log.page import Page
from muster_core.log.record_run import COMMIT, FollowRun, RecordRun
from muster_core.log.replay import Entry
from muster_core.position import GENESIS, NOWHERE, Position

_OF_THE_LOG = frozenset({"genesis", "claim", "handoff", "snapshot", ""})
_OF_THE_CATALOG = frozenset(
    {"topic_stored", "topic_tombstone", "partitions_altered", "node_replaced", "feature_enabled", "restored"}
)
_KINDS = frozenset(field.name for field in records_pb2.Record.DESCRIPTOR.oneofs_by_name["kind"].fields)
_OF_SHARDS = _KINDS - _OF_THE_CATALOG - _OF_THE_LOG
_BY_ENTRY = ("L1", "L2", "L4", "L6", "L7", "L10")


class LogChecker:
    """Checks one log in order.

    It goes on after a violation, taking each entry as it is, so that one break is reported once. `finish`
    says what can only be known at the end.

    Args:
        shard: number of the log.
        anchor: where the entries begin when it is known what was before: place and hash of the entry before
            the first one. Without it a log that does not begin with its Genesis must hold a Snapshot that
            reaches its beginning.
        limit: violations kept per invariant; all are counted.
        cluster: what a Genesis of the cluster must say; None: not known.
        limits: what a group may be (invariant G11).
        nonces: remembers nonces; absent: in memory.
        groups: whether the records of groups are checked, too.
        follow: takes the records that could be decoded, after their checks.
        pauses: places after which nothing is checked before `follow` has seen the record there.
    """

    def __init__(
        self,
        shard: int,
        anchor: tuple[Position, bytes] | None = None,
        limit: int = 20,
        *,
        cluster: records_pb2.Genesis | None = None,
        limits: GroupConfig | None = None,
        nonces: NonceBook | None = None,
        groups: bool = True,
        follow: FollowRun | None = None,
        pauses: Collection[Position] = (),
    ) -> None:
        self.shard = shard
        self.findings = Findings(limit)
        self.kinds: Counter[str] = Counter()
        self.entries = 0
        self.first = NOWHERE
        self.end = NOWHERE if anchor is None else anchor[0]
        self.groups = GroupChecker(
            self.findings,
            trimmed=anchor is not None,
            limits=limits,
            shard=shard,
            shard_count=0 if cluster is None else cluster.shard_count,
        )
        self._hash = BEFORE_GENESIS if anchor is None else anchor[1]
        self._anchored = anchor is not None
        self._cluster = cluster
        self._foreign = frozenset[str]()
        if cluster is not None:
            self._foreign = _OF_SHARDS if shard == cluster.shard_count else _OF_THE_CATALOG
        self._nonces = NonceSet() if nonces is None else nonces
        self._check_groups = groups
        self._follow = follow
        self._pauses = pauses
        self._owner: tuple[str, str] | None = None
        self._handed_off = False
        self._covered = NOWHERE
        self._hashes = HashWindow()

    @property
    def begins_trimmed(self) -> bool:
        """Whether the beginning of the log is missing and nothing was said of what was before."""
        return self.first not in (NOWHERE, GENESIS) and not self._anchored

    @property
    def end_hash(self) -> bytes:
        """Chain hash of the last entry."""
        return self._hash

    def hash_at(self, position: Position) -> bytes | None:
        """The hash of an earlier entry; empty: there is no such entry; None: it is too long ago."""
        return None if position < self.first else self._hashes.at(position)

    def add(self, entry: Entry) -> None:
        """Takes the next entry."""
        record = self._decoded(entry.position, entry.record)
        self._check(entry, record)
        if record is not None:
            self._pass_on(RecordRun(entry.position, [entry.record]))

    def add_page(self, page: Page) -> None:
        """Takes the next entries: what `add` does, at a fraction of the cost where nothing is wrong."""
        for part in page.dense_parts():
            self._add_dense(part)

    def _add_dense(self, page: Page) -> None:
        try:
            run = RecordRun(page.first, page.records)
        except DecodeError:
            for entry in page.entries():
                self.add(entry)
            return
        begin = 0
        for index in (*self._singles(run), len(page)):
            if begin < index:
                self._add_stretch(page.part(begin, index), run.part(begin, index))
            if index < len(page):
                self.add(page.entry(index))
            begin = index + 1

    def finish(self) -> Findings:
        """Checks what can only be known at the end."""
        self.check_nonces()
        if self.begins_trimmed:
            first = self.first.stream_id
            if self._covered == NOWHERE:
                text = (
                    f"the log begins at {first}, not with its Genesis, and no snapshot says what was before"
                )
                self.findings.expect("L8", False, self.first, text)
            else:
                self.findings.expect(
                    "L9",
                    self._covered.offset >= self.first.offset - 1,
                    self.first,
                    f"the log begins at {first}; the newest snapshot reaches only {self._covered.stream_id}",
                )
        return self.findings

    def check_nonces(self) -> None:
        """Checks what is known of nonces only after the last entry; a part of `finish`."""
        late = self._nonces.late(self.findings.limit)
        for position, nonce in late.first:
            self.findings.broke("L7", position, _repeated(nonce))
        if late.total > len(late.first):
            self.findings.broken["L7"] += late.total - len(late.first)

    # -- pages on which nothing is wrong ------------------------------------------------------------

    def _singles(self, run: RecordRun) -> list[int]:
        """Indexes of the entries that are taken one by one."""
        kinds, foreign = run.kinds, self._foreign
        singles = [index for index in run.others if kinds[index] in _OF_THE_LOG or kinds[index] in foreign]
        if COMMIT in foreign and len(run.others) < len(run):
            singles += [index for index, kind in enumerate(kinds) if kind == COMMIT]
        epoch, first = run.first
        pauses = [place.offset - first for place in self._pauses if place.epoch == epoch]
        return sorted({*singles, *(index for index in pauses if 0 <= index < len(run))})

    def _add_stretch(self, page: Page, run: RecordRun) -> None:
        """Takes entries of groups or of the catalog."""
        if not self._is_plain(page):
            for entry in page.entries():
                self.add(entry)
            return
        count = len(page)
        for invariant in _BY_ENTRY:
            self.findings.checked[invariant] += count
        self.kinds.update(run.kinds)
        self.entries += count
        self.end = page.last
        self._hash = page.hashes[-1]
        self._hashes.add(page.first, page.hashes)
        if self._check_groups or self._follow is not None:
            self._pass_on(run)

    def _is_plain(self, page: Page) -> bool:
        """Whether entries break no promise about logs; then their nonces are taken."""
        end = self.end
        if self.entries == 0 or self._handed_off or page.first != (end.epoch, end.offset + 1):
            return False
        if set(map(len, page.nonces)) != {NONCE_BYTES} or set(map(len, page.hashes)) != {HASH_BYTES}:
            return False
        hashes = [*page.hashes]
        if chain_hashes(self._hash, page.first, page.nonces, page.records, hashes) != hashes:
            return False
        return self._nonces.add_all(page.nonces, page.first)

    def _pass_on(self, run: RecordRun) -> None:
        """Gives records to those who look at groups."""
        if self._check_groups:
            self.groups.add_run(run)
        if self._follow is not None:
            self._follow(run)

    # -- one entry ----------------------------------------------------------------------------------

    def _check(self, entry: Entry, record: records_pb2.Record | None) -> None:
        """Checks an entry against the promises about logs."""
        position = entry.position
        kind = record.WhichOneof("kind") or "" if record is not None else ""
        if self.entries == 0:
            self.first = position
        if self.begins_trimmed and self.entries == 0:
            self._begin_in_the_middle(entry)
        else:
            self._check_place(position, kind)
            self._check_chain(entry)
        if record is not None:
            self._check_kind(position, record, kind)
            self.kinds[kind or "unknown"] += 1
            self._check_owner(position, record, kind)
        self.entries += 1
        self.end = position
        self._hash = entry.hash
        self._hashes.add(position, (entry.hash,))

    def _check_kind(self, position: Position, record: records_pb2.Record, kind: str) -> None:
        problem = ""
        if not kind and record.critical:
            problem = "a critical record of a kind that this version does not know"
        elif not kind and not len(UnknownFieldSet(record)):
            problem = "a record of no kind"
        elif kind in self._foreign:
            problem = f"a {kind.replace('_', ' ')}, which is no record of this log"
        self.findings.expect("L10", not problem, position, problem)

    def _decoded(self, position: Position, data: bytes) -> records_pb2.Record | None:
        try:
            return records_pb2.Record.FromString(data)
        except DecodeError:
            self.findings.expect("L10", False, position, f"its {len(data)} bytes are not a record")
            return None

    def _begin_in_the_middle(self, entry: Entry) -> None:
        """The first entry of a trimmed log: it is believed, and the chain goes on from its hash."""
        self.groups.trimmed = True
        self._check_nonce(entry)
        self.findings.checked["L8"] += 1

    def _check_place(self, position: Position, kind: str) -> None:
        before = self.end
        if before == NOWHERE:
            self.findings.expect(
                "L8",
                position == GENESIS and kind == "genesis",
                position,
                f"the log begins with {kind or 'no record'}",
            )
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
        if position.epoch < before.epoch:
            text = f"a record of epoch {position.epoch} is stored after the Claim of epoch {before.epoch}"
            self.findings.expect("E3", False, position, text)

    def _check_chain(self, entry: Entry) -> None:
        expected = chain_hash(self._hash, entry.position, entry.nonce, entry.record)
        self.findings.expect(
            "L6",
            expected == entry.hash,
            entry.position,
            f"its hash is {entry.hash.hex()[:16]}…, the entries up to it give {expected.hex()[:16]}…",
        )
        self._check_nonce(entry)

    def _check_nonce(self, entry: Entry) -> None:
        position, nonce = entry.position, entry.nonce
        if len(nonce) != NONCE_BYTES:
            text = f"its nonce has {len(nonce)} bytes, not {NONCE_BYTES}"
            self.findings.expect("L7", False, position, text)
        else:
            self.findings.expect("L7", self._nonces.add(nonce, position), position, _repeated(nonce))

    def _check_owner(self, position: Position, record: records_pb2.Record, kind: str) -> None:
        if kind == "claim":
            self._check_claim(position, record.claim)
            self.groups.claimed()
            return
        if kind == "genesis":
            self._check_genesis(position, record.genesis)
            return
        if position.epoch != self.end.epoch and self.end != NOWHERE:
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
        elif kind == "snapshot":
            self._check_snapshot(position, record.snapshot)

    def _check_claim(self, position: Position, claim: records_pb2.Claim) -> None:
        text = "a Claim that does not say whose it is"
        self.findings.expect("L3", bool(claim.node_id), position, text)
        begins = self.end == NOWHERE or (self.begins_trimmed and self.entries == 0)
        if not begins:
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
            self.findings.checked["E3"] += 1
        self._owner = (claim.node_id, claim.session)
        self._handed_off = False

    def _check_genesis(self, position: Position, genesis: records_pb2.Genesis) -> None:
        if position != GENESIS:
            self.findings.expect("L8", False, position, "a Genesis inside the log")
        cluster = self._cluster
        if cluster is None:
            return
        stated = (genesis.cluster_id, genesis.shard_count, genesis.shard)
        if stated != (cluster.cluster_id, cluster.shard_count, self.shard):
            text = (
                f"the Genesis is that of log {genesis.shard} of {genesis.shard_count} in cluster "
                f"{genesis.cluster_id}, not of log {self.shard} of {cluster.shard_count} in "
                f"{cluster.cluster_id}"
            )
            self.findings.expect("L8", False, position, text)

    def _check_snapshot(self, position: Position, snapshot: records_pb2.Snapshot) -> None:
        upto = Position.from_proto(snapshot.upto)
        self.findings.expect(
            "L9",
            upto < position,
            position,
            f"a Snapshot that reaches {upto.stream_id}, which is not before it",
        )
        self._covered = max(self._covered, upto)


def _repeated(nonce: bytes) -> str:
    return f"nonce {nonce.hex()} was used before"
