"""What single nodes say of a log beside its entries, and the promises about that."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from muster_core.audit.invariants import Findings
from muster_core.position import NOWHERE, Position


@dataclass(frozen=True, slots=True)
class NodePromise:
    """What a node promised last for a log.

    Attributes:
        epoch: of the claim.
        nonce: of the claim.
        begins_with: nonce of the first entry of that epoch which the node has; empty: it has none.
        in_doubt: the node restarted and does not vote: a repair lowers its promise before it cuts its log.
    """

    epoch: int
    nonce: bytes
    begins_with: bytes = b""
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class NodeLog:
    """What a node says of a log.

    Attributes:
        node: its number.
        acknowledged: up to where the log is acknowledged, as far as it knows.
        exported: up to where the audit has exported it.
        markers: snapshots that it lists: the last place each covers → where its marker is.
        owner_epoch: epoch of the last claim that is noted for the log; 0: none is.
        first: place of the first entry that it has; nowhere: it has none.
        end: place of the last one.
        promise: what it promised; None: nothing, so it does not vote.
    """

    node: int
    acknowledged: Position = NOWHERE
    exported: Position = NOWHERE
    markers: Mapping[Position, Position] = field(default_factory=dict)
    owner_epoch: int = 0
    first: Position = NOWHERE
    end: Position = NOWHERE
    promise: NodePromise | None = None

    def proofs(self) -> Iterator[tuple[Position, str]]:
        """Places of entries that must have been acknowledged, and how the node says so."""
        yield self.acknowledged, "says that the log was acknowledged up to"
        yield self.exported, "says that the log was exported up to"
        for marker in self.markers.values():
            yield marker, "lists a snapshot whose marker is at"


def proven(nodes: Collection[NodeLog]) -> Position:
    """The last place that is known to have been acknowledged, by whatever any node says."""
    return max((place for node in nodes for place, _ in node.proofs()), default=NOWHERE)


def witness(nodes: Collection[NodeLog], acknowledged: Position) -> str:
    """Who says that the log was acknowledged up to a place, and how."""
    said = (
        f"node {node.node} {how} {place.stream_id}"
        for node in nodes
        for place, how in node.proofs()
        if place == acknowledged
    )
    return next(said, f"the log was acknowledged up to {acknowledged.stream_id}")


def check_ends(nodes: Collection[NodeLog], findings: Findings) -> None:
    """Checks that the log goes as far as it was claimed, and what the nodes promised.

    A promise above the end of the log proves nothing: its claimant may have died before it wrote a Claim.

    Args:
        nodes: all that were read; what a node says of acknowledgements was read before any end, and its
            promise after that.
        findings: takes the results, of invariants L5 and L11.
    """
    end = max((node.end for node in nodes), default=NOWHERE)
    for node in nodes:
        findings.expect(
            "L5",
            node.owner_epoch <= end.epoch,
            end,
            f"node {node.node} notes a claim of epoch {node.owner_epoch}, and no node has an entry of it",
        )
        if node.promise is not None and not node.promise.in_doubt and node.end != NOWHERE:
            problem = _wrong_promise(node.promise, node.end)
            findings.expect("L11", not problem, node.end, f"node {node.node} {problem}")


def _wrong_promise(promise: NodePromise, end: Position) -> str:
    if promise.epoch < end.epoch:
        return f"promised epoch {promise.epoch} and has entries of epoch {end.epoch}"
    if promise.begins_with and promise.begins_with != promise.nonce and promise.epoch:
        return f"promised epoch {promise.epoch} to another claim than the one that wrote in it"
    return ""


def lacks(nodes: Collection[NodeLog]) -> Iterator[str]:
    """What nodes lack that others have: no broken promise, but a reason to look after them."""
    for node in nodes:
        if node.end == NOWHERE:
            yield f"node {node.node} has no entries: it is to be rebuilt"
        elif node.promise is None:
            yield f"node {node.node} has no promise: it does not vote"
        elif node.promise.in_doubt:
            yield f"node {node.node} restarted: it does not vote before it is repaired"


def fronts(nodes: Collection[NodeLog]) -> dict[int, Position]:
    """Where the log begins on each node that has it."""
    return {node.node: node.first for node in nodes if node.first != NOWHERE}
