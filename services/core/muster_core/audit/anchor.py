"""Anchors: where an earlier audit saw the logs end. A log without that was set back, or written anew."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster_core.audit.invariants import Findings
from muster_core.position import NOWHERE, Position


@dataclass(frozen=True, slots=True)
class End:
    """Where a log ended: the last acknowledged entry and its hash, which covers all entries before it."""

    position: Position
    hash: bytes


@dataclass(frozen=True, slots=True)
class Anchor:
    """The ends of the logs of a cluster, as an audit without violations saw them.

    Attributes:
        cluster_id: identity of the cluster.
        made_at_ms: when it was made, wall clock, ms since the Unix epoch.
        ends: by the number of the log.
    """

    cluster_id: str
    made_at_ms: int
    ends: Mapping[int, End]


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore from a backup that was meant, as the catalog's log tells it.

    Attributes:
        position: of its record in the catalog's log.
        at_ms: when it was recorded, wall clock, ms since the Unix epoch.
        reason: why, in the operator's words.
    """

    position: Position
    at_ms: int
    reason: str


def check_end(
    end: End,
    found: bytes | None,
    first: Position,
    acknowledged: Position,
    covered: Mapping[Position, bytes],
    findings: Findings,
) -> str:
    """Checks that a log contains an end that was seen before; returns what could not be compared, or nothing.

    Args:
        end: what was seen.
        found: hash of the entry at its place; None: there is no such entry.
        first: where the log begins.
        acknowledged: where it ends.
        covered: the last places that snapshots of the log cover → the hashes of the entries there.
        findings: takes the result, of invariant L12.
    """
    place, seen = end.position, found if found is not None else covered.get(end.position)
    if seen is not None:
        text = f"another entry is here than an earlier audit saw: its hash was {end.hash.hex()[:16]}…"
        findings.expect("L12", seen == end.hash, place, text)
        return ""
    reach = max(covered, default=NOWHERE)
    trimmed = place.offset < first.offset and place.offset <= reach.offset and place.epoch <= reach.epoch
    text = (
        f"an earlier audit saw the log reach {place.stream_id}, which no node has; it ends at "
        f"{acknowledged.stream_id}"
    )
    findings.expect("L12", trimmed and acknowledged >= place, place, text)
    if not trimmed:
        return ""
    return (
        f"its end at the anchor, {place.stream_id}, was trimmed since and is covered by the snapshot up to "
        f"{reach.stream_id}: check an export with the same anchor to compare its hash"
    )


def excusing(anchor: Anchor, catalog: int, restores: Collection[Restore]) -> Restore | None:
    """The last restore that was recorded after an anchor was made; None: there is none.

    A restore raises the epochs of all logs above those that can have been used before, so its record has a
    higher epoch than the anchor's end. One that the anchor knew excuses nothing.

    Args:
        anchor: the anchor.
        catalog: number of the catalog's log.
        restores: those in the catalog's log.
    """
    known = anchor.ends[catalog].position.epoch if catalog in anchor.ends else 0
    later = [restore for restore in restores if restore.position.epoch > known]
    return max(later, key=lambda restore: restore.position, default=None)
