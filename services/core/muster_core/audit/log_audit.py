"""One pass over one log: every check, the coordinator's own replay, and the snapshots against that replay."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.anchor import End, check_end
from muster_core.audit.difference import first_difference
from muster_core.audit.groups.removal_checker import Catalog
from muster_core.audit.invariants import Findings
from muster_core.audit.log_checker import LogChecker
from muster_core.audit.node_log import NodeLog, check_ends, fronts, lacks, witness
from muster_core.audit.nonces import NonceBook
from muster_core.audit.remembered import is_part_of
from muster_core.audit.stored_snapshots import SnapshotCheck, Snapshots
from muster_core.config import GroupConfig
from muster_core.log.page import Page
from muster_core.log.record_run import FollowRun, RecordRun
from muster_core.log.replay import Entry
from muster_core.log.snapshot import SnapshotReader, SnapshotUnusable, parts
from muster_core.position import GENESIS, NOWHERE, Position
from muster_core.shard import Shard
from muster_core.state.group import Group


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

    Attributes:
        checker: checks the entries.
        snapshots: checks the stored snapshots.
        notes: what breaks no promise but is worth knowing.
        unacknowledged: entries after the acknowledged position, on the node that has most of them.
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
        self._stored = dict(snapshots or {})
        self._watch = watch
        # What groups remember of their generations is compared with snapshots, and read by nothing else.
        config = self._limits if self._stored else replace(self._limits, history_length=0)
        self._state: Shard | None = Shard(shard, config) if replay else None
        self._replaying = False
        self.checker = LogChecker(
            shard,
            limit=limit,
            cluster=cluster,
            limits=limits,
            nonces=nonces,
            groups=replay,
            follow=self._follow if replay or watch is not None else None,
            pauses=self._stored.keys(),
        )
        self.snapshots = SnapshotCheck(self.checker.findings)
        self.notes: list[str] = []
        self.unacknowledged = 0
        self._nodes: Collection[NodeLog] = ()

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

    def check_nodes(self, nodes: Collection[NodeLog], copies: Mapping[int, Snapshots]) -> None:
        """Checks what the nodes say of the log and the snapshots that they hold, after the last page.

        Args:
            nodes: what each of them says; none: the log is not read from nodes.
            copies: number of a node → the snapshots that it has.
        """
        self._nodes = nodes
        check_ends(nodes, self.findings)
        before = {node.node: node.markers for node in nodes}
        for node, stored in copies.items():
            self.snapshots.check_copies(node, stored, before.get(node))
        first, end = self.checker.first, self.checker.end
        if first == NOWHERE:
            return
        self.snapshots.check_lists({node.node: node.markers for node in nodes}, first, end)
        self.snapshots.check_fronts(fronts(nodes) if nodes else {1: first}, first)
        self.notes += lacks(nodes)

    def check_tail(self, node: int, before: Entry, read: Callable[[], Iterable[Page]]) -> None:
        """Checks what a node has after the acknowledged position: not acknowledged, but never rotten either.

        It is read again where something is wrong, since a repair may have cut it meanwhile.

        Args:
            node: number of the node.
            before: its entry at the acknowledged position.
            read: reads what follows.
        """
        for final in (False, True):
            checker = LogChecker(self.checker.shard, (before.position, before.hash), groups=False)
            for page in read():
                checker.add_page(page)
            violations = checker.finish().violations
            if final or not violations:
                for one in violations:
                    text = f"node {node}, after the acknowledged position: {one.detail}"
                    self.findings.expect(one.invariant, False, one.position, text)
                self.unacknowledged = max(self.unacknowledged, checker.entries)
                return

    def check_catalog_seen(self, end: Position) -> None:
        """Checks that the catalog goes as far as the owners of this log saw it, after the last page.

        Args:
            end: place of the last entry of the catalog's log, on the node that has most, read after this log.
        """
        if self._replaying and self._state is not None:
            seen = self._state.catalog_place
            text = f"the catalog was seen up to {seen.stream_id}, and no node has that entry of its log"
            # Which entries of a later epoch took the place of others, after a restore, is not known here.
            self.findings.expect("L5", seen <= end, self.checker.end, text)

    def check_removed(self, read: Callable[[], Catalog | None]) -> None:
        """Checks that the catalog removed the partitions that the log notes as removed, after the last page.

        Args:
            read: gives it, as it is later than the log that was read; asked only where there are such.
        """
        if not self._replaying or self._state is None or not self.checker.groups.removals.noted:
            return
        catalog = read()
        if catalog is not None:
            incarnations, seen = dict(self._state.incarnations), self._state.catalog_place
            self.checker.groups.removals.check_catalog(catalog, incarnations, seen, self.checker.end)

    def check_anchor(self, end: End, found: Entry | None, acknowledged: Position) -> None:
        """Checks that the log contains what an earlier audit saw at its end, after the last page.

        Args:
            end: what was seen.
            found: the entry at that place; None: no node has it.
            acknowledged: up to where the log is acknowledged.
        """
        hash_ = None if found is None else found.hash
        first, covered = self.checker.first, self.snapshots.covered
        self.notes += filter(None, [check_end(end, hash_, first, acknowledged, covered, self.findings)])

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
            f"{witness(self._nodes, acknowledged)}, and no node has that entry",
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
        if last in self._stored:
            self._meet_snapshot(last)

    def _other(self, position: Position, kind: str, record: records_pb2.Record) -> None:
        """Takes a record that is no commit."""
        if kind == "snapshot":
            upto = Position.from_proto(record.snapshot.upto)
            self.snapshots.mark(position, record.snapshot, self.checker.hash_at(upto))
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
        stored = None if state is None else self._stored[position]()
        if state is None or stored is None:
            return
        reader = SnapshotReader(state.number, {}, self._limits.history_length)
        if not self._replaying:
            reader = state.restore()
        problem = read_back(reader, stored.parts, position)
        if problem:
            self.findings.expect("G12", False, position, problem)
            self._state = state if self._replaying else None
            return
        self._check_header(reader, position)
        if self._replaying:
            self._compare(state, reader, position)
        else:
            self.checker.groups.begin_with(state.groups, position)
            self.checker.groups.removals.begin_with(dict(state.removed), position)
            self._replaying = True
        self.snapshots.replayed(position, len(state.groups))

    def _check_header(self, reader: SnapshotReader, position: Position) -> None:
        assert reader.covered is not None
        text = "the snapshot names another hash of the entry that it ends with"
        self.findings.expect("L9", reader.covered.hash == self.checker.end_hash, position, text)

    def _compare(self, state: Shard, stored: SnapshotReader, position: Position) -> None:
        assert stored.covered is not None
        self.checker.groups.compare(stored.groups.values(), position)
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
        for group_id, group in stored.groups.items():
            made = state.groups.get(group_id)
            if made is not None and is_part_of(group.history, made.history):
                group.history = made.history
        place = state.catalog_place
        if not stored.covered.catalog_place.epoch:  # an earlier version wrote the snapshot
            place = Position(0, place.offset)
        covered = replace(
            stored.covered, catalog_place=place, incarnations=state.incarnations, removed=state.removed
        )
        theirs = parts(stored.groups.values(), stored.covered)
        differs = first_difference(theirs, parts(state.groups.values(), covered))
        text = f"the snapshot holds another state than the records make: {differs}"
        self.findings.expect("G12", not differs, position, text)


def read_back(reader: SnapshotReader, stored: Iterable[bytes], position: Position) -> str:
    """Reads the snapshot that reaches a place; returns what is wrong with it, or nothing."""
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


def go_on(nodes: Iterable[int], walks: Mapping[int, Iterator[Entry]], heads: dict[int, Entry]) -> None:
    """Has nodes show their next entries; those that have no more are no longer among the heads."""
    for node in nodes:
        following = next(walks[node], None)
        if following is None:
            del heads[node]
        else:
            heads[node] = following


def compare_nodes(
    logs: Mapping[int, Iterable[Page]],
    nodes: int,
    acknowledged: Position,
    findings: Findings,
    begins: Mapping[int, Position] | None = None,
    marks: Mapping[int, Position] | None = None,
    reach: Mapping[int, Position] | None = None,
) -> None:
    """Compares the nodes' entries up to the acknowledged position; keeps one page of each in memory.

    The end of a node that was away when a later epoch began is no violation, but to be repaired: what a
    minority has where the acknowledged log goes on with a later epoch was never acknowledged. A node has an
    entry, too, that was trimmed there after a right snapshot on it had covered it.

    Args:
        logs: number of a node that was read → its pages.
        nodes: how many nodes the log has.
        acknowledged: up to where they must agree.
        findings: takes the results, of invariants L5 and L6n.
        begins: where each node's log begins, if the pages are only a part of it.
        marks: how far each node knows its log to be acknowledged.
        reach: how far right snapshots on each node cover the log.
    """
    marks = {} if marks is None else marks
    walks = {node: (entry for page in pages for entry in page.entries()) for node, pages in logs.items()}
    heads = {node: head for node, walk in walks.items() if (head := next(walk, None)) is not None}
    firsts = {node: head.position for node, head in heads.items()} if begins is None else dict(begins)
    reaches = {} if reach is None else reach
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
        most = max(len(holders) for holders in contents.values())
        covered = sum(
            position < first and position.offset <= reaches.get(node, NOWHERE).offset
            for node, first in firsts.items()
        )
        if not uncut:
            findings.expect(
                "L5",
                # A node that was not read may have it.
                most + covered + nodes - len(logs) > nodes // 2,
                position,
                f"{most} of {nodes} nodes have it, and {covered} a snapshot of it; {len(logs)} were read",
            )
        go_on(having, walks, heads)
