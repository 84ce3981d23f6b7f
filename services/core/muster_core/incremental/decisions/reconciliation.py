"""How a member is brought towards its target: first gives back, then gets (conformance RC-01 to RC-32).

| the member … | … reports nothing new | … reports that what was taken is gone | the target changed |
|---|---|---|---|
| is settled | nothing | nothing | takes what it should not have; else gives what is free |
| has to give back | nothing | that is free; then as the target says | waits until it gave back |
| waits for others | gives what is free by now | - | takes what it should not have; else gives |

A stream member makes its step with the record that changes something for it; where its list stays there
is none, since its epoch follows by itself (docs/safety.md, INC-18, INC-19).
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from muster_core.incremental.group import IncrementalGroup, among
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import NONE, Partitions, without
from muster_core.position import Position


class Report(NamedTuple):
    """What a member says of what it works on.

    Attributes:
        owned: of some partitions those that it works on; None: it works on all that it was given.
        version: newest record that it has heard of; None: it names none, and is judged as Kafka does.
    """

    owned: Callable[[Partitions], Partitions] | None
    version: Position | None = None


class Step(NamedTuple):
    """A step towards the target.

    Attributes:
        epoch: the member's from here on.
        released: what it gave back.
        taken: what it has to give back.
        given: what it may work on.
        waits: others still have something of its target.
    """

    epoch: int
    released: Partitions = NONE
    taken: Partitions = NONE
    given: Partitions = NONE
    waits: bool = False


def next_step(
    group: IncrementalGroup, member: Member, report: Report, removed: Mapping[str, Collection[int]]
) -> Step | None:
    """The step that a member makes now; None: none.

    Args:
        group: its group.
        member: who makes it.
        report: what it says.
        removed: numbers of removed partitions by topic. Nobody gets one that a target of before has: it waits
            for the next target (TOP-18).
    """
    released, epoch = NONE, group.epoch_of(member)
    stale = member.stale(group.renewed)
    if member.pending:
        released = _released(member, report)
        if not released:
            return None
        if released != member.pending:
            return Step(epoch, released)
        if report.version is None:
            # as Kafka 4.1 does where more is to be given back; there nobody owes who is at the target's epoch
            epoch = min(epoch + 1, group.target_epoch)
    elif not member.told.on_session and member.epoch == group.target_epoch and not member.waits and not stale:
        return None
    kept = without(member.assigned, stale)
    lacking = without(member.target, kept)
    taken = without(member.assigned, member.target) | stale
    if taken and not _shows_gone(report, taken):
        return Step(epoch, released, taken)
    own = NONE if report.version is None else released  # Kafka 4.1 gives it with the next request
    owned = among(group.owners, lacking) - own
    if removed:
        owned |= frozenset([one for one in lacking if one[1] in removed.get(one[0], ())])
    given = without(lacking, owned)
    step = Step(group.target_epoch, released | taken, NONE, given, waits=bool(owned))
    return None if _changes_nothing(member, step, report) else step


def _released(member: Member, report: Report) -> Partitions:
    """What of that which was taken the member shows to have given back.

    A list that is older than the record which took a partition says nothing of it (docs/safety.md,
    INC-04). Kafka's rule, for whoever names no version, is all or nothing.
    """
    if report.owned is None:
        return NONE
    version, kept = report.version, report.owned(member.pending)
    if version is None:
        return NONE if kept else member.pending
    return frozenset(p for p in member.pending - kept if member.held[p].taken <= version)


def _shows_gone(report: Report, taken: Partitions) -> bool:
    """Whether a list lacks what was not taken yet; only Kafka's rules make anything of that (RC-07)."""
    return report.version is None and report.owned is not None and not report.owned(taken)


def _changes_nothing(member: Member, step: Step, report: Report) -> bool:
    if step.released or step.given:
        return False
    if member.told.on_session:
        return True
    if (step.epoch, step.waits) != (member.epoch, member.waits):
        return False
    # Kafka counts the same epoch again, which ends the tolerance for the one before (MI-12).
    return report.version is not None or member.previous_epoch == member.epoch
