"""One pass over one log: every check, the coordinator's own replay, and the snapshots against that replay."""

from collections.abc import Callable, Iterable, Mapping

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.invariants import Findings
from muster_core.audit.log_checker import LogChecker
from muster_core.audit.nonces import NonceBook
from muster_core.config import GroupConfig
from muster_core.log.page import Page
from muster_core.log.record_run import FollowRun, RecordRun
from muster_core.log.snapshot import SnapshotReader, SnapshotUnusable, digest_of, part_hash, parts
from muster_core.position import GENESIS, NOWHERE, Position
from muster_core.shard import Shard
from muster_core.state.group import Group

Snapshots = Mapping[Position, Callable[[], Iterable[bytes] | None]]
"""Stored snapshots: the last position each covers → what reads its parts; it gives None where a newer one has
taken its place meanwhile, as happens while the cluster runs."""


class LogAudit:
    """Checks a log and plays it back. `muster verify` and the Spark audit both run this.

    A log that was trimmed is replayed from a snapshot that reaches its beginning; where there is none, its
    groups are checked as far as the records show them, and not replayed.

    Args:
        shard: number of the log.
        cluster: what a Genesis of the cluster must say; None: not known.
        limits: what a group may be.
        limit: violations kept per invariant; all are counted.
        nonces: remembers nonces; absent: in memory.
        replay: whether records of groups are checked and replayed; see `CatalogAudit` for the catalog's log.
        snapshots: those that are stored.
        watch: takes the records that could be decoded.
    """

    def __init__(
        self,
        shard: int,
        *,
        cluster: records_pb2.Genesis | None = None,
        limits: GroupConfig | None = None,
        limit: int = 20,
        nonces: NonceBook | None = None,
        replay: bool = True,
        snapshots: Snapshots | None = None,
        watch: FollowRun | None = None,
    ) -> None:
        self._limits = GroupConfig() if limits is None else limits
        self._snapshots = dict(snapshots or {})
        self._watch = watch
        self._state: Shard | None = Shard(shard, self._limits) if replay else None
        self._replaying = False
        self._markers: dict[Position, tuple[Position, records_pb2.Snapshot]] = {}
        self.checker = LogChecker(
            shard,
            limit=limit,
            cluster=cluster,
            limits=limits,
            nonces=nonces,
            groups=replay,
            follow=self._follow if replay or watch is not None else None,
            pauses=self._snapshots.keys(),
        )

    @property
    def findings(self) -> Findings:
        """What was found so far."""
        return self.checker.findings

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups that the replay has made so far; none without a replay."""
        return self._state.groups if self._state is not None and self._replaying else {}

    def add_page(self, page: Page) -> None:
        """Takes the next entries."""
        self.checker.add_page(page)

    def check_copies(self, copies: Mapping[int, Snapshots]) -> None:
        """Checks the stored snapshots against their markers, after the last page.

        Args:
            copies: number of a node → what it has.
        """
        right: set[Position] = set()
        replaced = False
        for node, stored in copies.items():
            for upto, read in stored.items():
                if upto not in self._markers:
                    continue
                place, marker = self._markers[upto]
                found = read()
                if found is None:
                    replaced = True
                    continue
                hashes = [part_hash(part) for part in found]
                same = len(hashes) == marker.parts and digest_of(hashes) == marker.digest
                if same:
                    right.add(upto)
                text = f"node {node} holds other bytes than the marker says for the snapshot up to"
                self.findings.expect("L9", same, place, f"{text} {upto.stream_id}")
        if self.checker.begins_trimmed and not replaced:
            first = self.checker.first
            self.findings.expect(
                "L9",
                any(upto.offset >= first.offset - 1 for upto in right),
                first,
                f"the log begins at {first.stream_id}, and no node has a right snapshot that reaches there",
            )

    def finish(self, acknowledged: Position) -> Findings:
        """Checks what can only be known at the end.

        Args:
            acknowledged: place up to which the log was read, and acknowledged.
        """
        findings = self.checker.finish()
        findings.expect(
            "L5",
            self.checker.end == acknowledged and self.checker.entries > 0,
            acknowledged,
            f"the log was acknowledged up to {acknowledged.stream_id} and no node has that entry",
        )
        if self._replaying and self._state is not None:
            findings.expect("G12", True, GENESIS, "")
        return findings

    def _follow(self, run: RecordRun) -> None:
        if self._watch is not None:
            self._watch(run)
        for index, part in run.in_order_by_partition():
            if not isinstance(part, list):
                self._other(run.position(index), run.kinds[index], part)
            elif self._replaying and self._state is not None:
                self._state.replay_commits(part)
        last = run.position(len(run) - 1)
        if last in self._snapshots:
            self._meet_snapshot(last)

    def _other(self, position: Position, kind: str, record: records_pb2.Record) -> None:
        """Takes a record that is no commit."""
        if kind == "snapshot":
            self._markers[Position.from_proto(record.snapshot.upto)] = (position, record.snapshot)
        if kind == "genesis" and position == GENESIS:
            self._replaying = self._state is not None
        if not self._replaying or self._state is None:
            return
        try:
            self._state.replay_as(kind, position, record)
        except Exception as error:
            self.findings.expect("G12", False, position, f"{type(error).__name__}: {error}")
            self._state = None

    def _meet_snapshot(self, position: Position) -> None:
        """Compares a snapshot with the replay, or begins the replay with it; leaves one that was replaced."""
        state = self._state
        stored = None if state is None else self._snapshots[position]()
        if state is None or stored is None:
            return
        groups: dict[str, Group] = {} if self._replaying else state.groups
        reader = SnapshotReader(state.number, groups, self._limits.history_length)
        problem = read_back(reader, stored, position)
        if problem:
            self.findings.expect("G12", False, position, problem)
            self._state = state if self._replaying else None
        elif self._replaying:
            self._compare(state, reader, position)
        else:
            self.checker.groups.begin_with(groups.values(), position)
            self._replaying = True

    def _compare(self, state: Shard, stored: SnapshotReader, position: Position) -> None:
        assert stored.covered is not None
        differing = [
            group_id
            for group_id, group in stored.groups.items()
            if group_id in state.groups and dict(group.offsets) != dict(state.groups[group_id].offsets)
        ]
        self.findings.expect(
            "O2",
            not differing,
            position,
            f"the snapshot has other offsets than the records, of {differing[:5]}",
        )
        for group_id in differing:
            stored.groups[group_id].offsets = state.groups[group_id].offsets
        same = list(parts(stored.groups.values(), stored.covered)) == list(
            parts(state.groups.values(), stored.covered)
        )
        self.findings.expect("G12", same, position, "the snapshot holds another state than the records make")


def read_back(reader: SnapshotReader, stored: Iterable[bytes], position: Position) -> str:
    """Reads the snapshot that reaches a place; gives what is wrong with it, or nothing."""
    try:
        for part in stored:
            reader.take(part)
    except SnapshotUnusable as error:
        return str(error)
    if not reader.complete or reader.covered is None:
        return "the snapshot has no end"
    if reader.covered.upto != position:
        return f"the snapshot says that it reaches {reader.covered.upto.stream_id}"
    return ""


def compare_nodes(
    logs: Mapping[int, Iterable[Page]],
    nodes: int,
    acknowledged: Position,
    findings: Findings,
    begins: Mapping[int, Position] | None = None,
    marks: Mapping[int, Position] | None = None,
) -> None:
    """Lays the nodes' entries side by side, up to the acknowledged position, and keeps one page of each.

    The end of a node that was away when a later epoch began is no violation, but to be repaired: what a
    minority has where the acknowledged log goes on with a later epoch was never acknowledged.

    Args:
        logs: number of a node that was read → its pages.
        nodes: how many nodes the log has.
        acknowledged: up to where they must agree.
        findings: takes the results, of invariants L5 and L6n.
        begins: where each node's log begins, if the pages are only a part of it.
        marks: how far each node knows its log to be acknowledged.
    """
    marks = {} if marks is None else marks
    walks = {node: (entry for page in pages for entry in page.entries()) for node, pages in logs.items()}
    heads = {node: head for node, walk in walks.items() if (head := next(walk, None)) is not None}
    firsts = {node: head.position for node, head in heads.items()} if begins is None else dict(begins)
    complete_from = max(firsts.values(), default=NOWHERE)
    while heads:
        position = min(head.position for head in heads.values())
        if position > acknowledged:
            return
        having = {node: head for node, head in heads.items() if head.position == position}
        contents: dict[bytes, list[int]] = {}
        for node, head in having.items():
            contents.setdefault(head.hash + head.nonce + head.record, []).append(node)
        held = " and ".join(f"nodes {holders}" for holders in contents.values())
        findings.expect("L6n", len(contents) == 1, position, f"{held} hold different entries")
        ahead = [head.position for head in heads.values() if position < head.position <= acknowledged]
        uncut = (
            any(position.epoch < other.epoch and other.offset <= position.offset for other in ahead)
            and len(having) <= nodes // 2
            and all(marks.get(node, NOWHERE) < position for node in having)
        )
        holes = [node for node in heads if node not in having and firsts[node] < position]
        if uncut:
            for node in having:
                findings.uncut.setdefault(node, position)
        elif holes:
            text = f"nodes {holes} lack it and have earlier and later ones"
            findings.expect("L6n", False, position, text)
        if position >= complete_from and not uncut:
            most = max(len(holders) for holders in contents.values())
            findings.expect(
                "L5",
                # A node that was not read may have it.
                most + nodes - len(logs) > nodes // 2,
                position,
                f"{most} of {nodes} nodes have it; {len(logs)} were read",
            )
        for node in having:
            following = next(walks[node], None)
            if following is None:
                del heads[node]
            else:
                heads[node] = following
