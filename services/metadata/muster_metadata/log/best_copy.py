"""Which copy of a log a claim goes after: the one that goes furthest, unless it is not the log at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster_core.position import Position

from muster_metadata.log import verdicts
from muster_metadata.log.damage import report_damage
from muster_metadata.log.verdicts import Verdict
from muster_metadata.nodes.entries import LogEnd, parse_id
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import NodeReply, Status


@dataclass(frozen=True, slots=True)
class Copy:
    """What a node that gave its promise has of the log.

    Attributes:
        node: the node.
        end: where its copy ends.
        acknowledged: the acknowledged position that it knows, and the hash of its entry there; no hash: it
            has none there.
    """

    node: Node
    end: LogEnd
    acknowledged: LogEnd

    @classmethod
    def read(cls, node: Node, reply: NodeReply) -> "Copy":
        """Reads the answer to `prepare`."""
        _, _, acknowledged, _, hash_ = reply.values
        return cls(node, reply.end, LogEnd(parse_id(acknowledged), hash_))


@dataclass(frozen=True, slots=True)
class NotTheLog:
    """A node whose copy lacks what a majority has and knows to be acknowledged."""

    node: Node


async def best_copy(quorum: Quorum, shard: int, copies: Sequence[Copy]) -> Copy | NotTheLog | Verdict:
    """The copy that a claim goes after.

    What was acknowledged is on a majority, and every later log contains it. A copy that goes further and has
    something else there was damaged, or put there by somebody: a log under another one's name, an entry whose
    id was changed on the disk. After it the log of the others would be overwritten.

    Args:
        quorum: all nodes.
        shard: which log.
        copies: those of a majority that gave its promise.

    Returns:
        The copy; or a node that must not be counted, where the others are to be asked again; or why there is
        no copy to go after.
    """
    best = max(copies, key=lambda copy: copy.end.position)
    if not await _contradicted(quorum, shard, best, copies):
        return _unless_cut(quorum, shard, best, copies)
    facts = await _facts(quorum, shard, copies)
    for place, found in facts.items():
        if sum(end == place for end in found.values()) < quorum.majority:
            continue
        for copy in copies:
            here = found.get(copy.node)
            if here is not None and here != place and copy.end.position >= place.position:
                problem = (
                    f"{place.position.stream_id}, which most nodes have as acknowledged, is not in its copy"
                )
                report_damage(copy.node, shard, problem)
                return NotTheLog(copy.node)
    cut = _unless_cut(quorum, shard, best, copies)
    heard_all = all(len(found) == len(quorum.nodes) for found in facts.values())
    return cut if heard_all or isinstance(cut, Verdict) else verdicts.UNKNOWN


def _unless_cut(quorum: Quorum, shard: int, best: Copy, copies: Sequence[Copy]) -> Copy | Verdict:
    """The best copy, or the verdict that it lacks its end.

    A node stores the acknowledged position only if it has the entry, so an acknowledged entry was removed.
    Offsets are dense over epochs, so a shorter log of a later epoch lacks it as well. One node that lacks the
    entry itself is passed over where a majority has what it knows to be acknowledged: that node lost its end,
    or its position was changed.
    """
    sound = [copy for copy in copies if copy.acknowledged.hash]
    position = best.end.position
    for copy in copies:
        acknowledged = copy.acknowledged.position
        if acknowledged <= position and acknowledged.offset <= position.offset:
            continue
        if copy in sound or len(sound) < quorum.majority:
            return verdicts.truncated(position, acknowledged)
        report_damage(
            copy.node, shard, f"it lacks {acknowledged.stream_id}, which it has stored as acknowledged"
        )
    return best


async def _contradicted(quorum: Quorum, shard: int, best: Copy, copies: Sequence[Copy]) -> bool:
    """Whether the best copy lacks the latest entry that one of them has as acknowledged."""
    latest = {copy.acknowledged for copy in _latest(copies)}
    if not latest or latest == {best.acknowledged}:
        return False
    if len(latest) > 1:
        return True
    (place,) = latest
    found = await _found(quorum, shard, place.position, best.node)
    return found.get(best.node) != place


def _latest(copies: Sequence[Copy]) -> list[Copy]:
    known = [copy for copy in copies if copy.acknowledged.hash]
    top = max((copy.acknowledged.position for copy in known), default=None)
    return [copy for copy in known if copy.acknowledged.position == top]


async def _facts(
    quorum: Quorum, shard: int, copies: Sequence[Copy]
) -> Mapping[LogEnd, Mapping[Node, LogEnd | None]]:
    """For each entry that somebody has as acknowledged: what each node has there, or last before it."""
    places = {copy.acknowledged for copy in copies if copy.acknowledged.hash}
    return {place: await _found(quorum, shard, place.position) for place in places}


async def _found(
    quorum: Quorum, shard: int, position: Position, only: Node | None = None
) -> dict[Node, LogEnd | None]:
    """The last entry at or before a position, on each node that answers; None: its copy begins later."""
    _, replies = await quorum.ask(
        lambda node: node.hashes(shard, position.stream_id, 1) if only in (None, node) else None,
        lambda _, final: final or None,
    )
    return {
        node: LogEnd(parse_id(reply.values[0]), reply.values[1]) if reply.values else None
        for node, reply in zip(quorum.nodes, replies, strict=True)
        if reply is not None and reply.status is Status.OK
    }
