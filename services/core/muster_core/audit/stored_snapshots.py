"""L9: the snapshots that nodes hold, their markers, and that nothing was trimmed which they do not cover."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.invariants import Findings
from muster_core.log.snapshot import digest_of, part_hash
from muster_core.position import GENESIS, NOWHERE, Position


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot as a node holds it.

    Attributes:
        parts: its parts.
        hashes: the hashes of the parts as they are stored beside them, joined.
    """

    parts: Sequence[bytes]
    hashes: bytes


Snapshots = Mapping[Position, Callable[[], StoredSnapshot | None]]
"""Stored snapshots: the last position each covers → what reads it; it gives None where a newer one has taken
its place meanwhile, as happens while the cluster runs."""


class SnapshotCheck:
    """Checks stored snapshots against the markers of a log.

    Args:
        findings: takes the results, of invariant L9.

    Attributes:
        reach: number of a node → how far the right snapshots on it cover the log.
    """

    def __init__(self, findings: Findings) -> None:
        self.reach: dict[int, Position] = {}
        self._findings = findings
        self._markers: dict[Position, tuple[Position, records_pb2.Snapshot]] = {}
        self._groups: dict[Position, int] = {}
        self._replaced = False

    @property
    def covered(self) -> dict[Position, bytes]:
        """The last places that the marked snapshots cover → the hashes of the entries there."""
        return {upto: marker.hash for upto, (_, marker) in self._markers.items()}

    def replayed(self, upto: Position, groups: int) -> None:
        """Notes how many groups there were at the end of a stored snapshot."""
        self._groups[upto] = groups

    def mark(self, position: Position, marker: records_pb2.Snapshot, hash_: bytes | None) -> None:
        """Takes a marker.

        Args:
            position: its place.
            marker: what it says.
            hash_: of the entry that its snapshot ends with; empty: there is none; None: not known.
        """
        upto = Position.from_proto(marker.upto)
        self._markers[upto] = position, marker
        if hash_ is not None:
            text = f"the marker names another hash of the entry at {upto.stream_id} than that has"
            self._findings.expect("L9", marker.hash == hash_, position, text)
        groups = self._groups.get(upto, marker.groups)
        text = f"the marker says {marker.groups} groups; there were {groups} at {upto.stream_id}"
        self._findings.expect("L9", marker.groups == groups, position, text)

    def check_copies(self, node: int, stored: Snapshots, before: Container[Position] | None = None) -> None:
        """Checks what a node holds, after the last page; see `check_fronts`.

        Args:
            node: its number.
            stored: its snapshots.
            before: those that it listed before the log was read; None: the same. One that came since has its
                marker after what was read, and may have taken the place of one that reached as far.
        """
        self.reach[node] = NOWHERE
        for upto, read in stored.items():
            if before is not None and upto not in before:
                self.reach[node] = max(self.reach[node], upto)
                continue
            if upto not in self._markers:
                continue
            place, marker = self._markers[upto]
            found = read()
            if found is None:
                self._replaced = True
                continue
            hashes = [part_hash(part) for part in found.parts]
            same = len(hashes) == marker.parts and digest_of(hashes) == marker.digest
            text = f"node {node} holds other bytes than the marker says for the snapshot up to"
            self._findings.expect("L9", same, place, f"{text} {upto.stream_id}")
            listed = found.hashes == b"".join(hashes)
            if same and not listed:
                text = f"node {node} holds other hashes than its parts have for the snapshot up to"
                self._findings.expect("L9", False, place, f"{text} {upto.stream_id}")
            if same and listed:
                self.reach[node] = max(self.reach[node], upto)

    def check_lists(
        self, listed: Mapping[int, Mapping[Position, Position]], first: Position, end: Position
    ) -> None:
        """Checks the markers that nodes list against those in the log.

        Args:
            listed: number of a node → the last place each snapshot covers → where its marker is.
            first: where the log begins that was read; older markers are gone from it.
            end: up to where it was read.
        """
        for node, markers in listed.items():
            for upto, place in markers.items():
                if not first <= place <= end:
                    continue
                there = upto in self._markers and self._markers[upto][0] == place
                text = f"node {node} lists a snapshot up to {upto.stream_id} whose marker is not here"
                self._findings.expect("L9", there, place, text)

    def check_fronts(self, fronts: Mapping[int, Position], begins: Position) -> None:
        """Checks that each node has the beginning of the log or a right snapshot of it.

        A node where the log begins earlier than where it was read has more of it than is needed.

        Args:
            fronts: number of a node → where the log begins there.
            begins: where the log begins that was read.
        """
        if self._replaced:
            return
        for node, first in fronts.items():
            if first == GENESIS or first < begins:
                continue
            reach = self.reach.get(node, NOWHERE)
            self._findings.expect(
                "L9",
                reach.offset >= first.offset,
                first,
                f"the log begins at {first.stream_id} on node {node}, which has no right snapshot that "
                "reaches there",
            )
