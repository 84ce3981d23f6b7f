"""One decision: records that are stored together, and the group as they leave it."""

from collections.abc import Callable, Collection, Iterable, Mapping

from google.protobuf.message import Message
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_core.incremental.application import apply
from muster_core.incremental.decisions.reconciliation import Report, Step, next_step
from muster_core.incremental.group import IncrementalGroup, among
from muster_core.incremental.member import Member, Told
from muster_core.incremental.partitions import by_topic
from muster_core.incremental.rollout import Hold
from muster_core.incremental.targets.target import Changes
from muster_core.position import NOWHERE, Position

_LATER = (1 << 63) - 1
"""Epoch of places that are not known yet: after all that are."""

_SAYS_NOTHING = Report(None, NOWHERE)


class Decision:
    """Records of one decision. Each is carried out on a draft at once, as a replay will do it.

    Args:
        group: the group as it is; not changed.
        group_id: its id.
        new_record: makes an empty record, with the time.
        removed: numbers of removed partitions, by topic, which nobody is given.

    Attributes:
        began: the group as it is.
        group: the group as it will be, but for the places of the records.
        records: what is to be stored, in order.
    """

    def __init__(
        self,
        group: IncrementalGroup,
        group_id: str,
        new_record: Callable[[], records_pb2.Record],
        removed: Mapping[str, Collection[int]],
    ) -> None:
        self.began = group
        self.group = group.draft()
        self.records: list[records_pb2.Record] = []
        self._group_id = group_id
        self._new_record = new_record
        self._removed = removed
        self._retargeted: set[str] = set()

    def subscribe(self, told: Told, *, joined: bool) -> None:
        """A member joined, or said something else."""
        message = incremental_pb2.MemberSubscribed(
            group_id=self._group_id, member=told.to_record(), joined=joined
        )
        self._add("member_subscribed", message)

    def replace(self, old_member_id: str, told: Told) -> None:
        """A new process has the place of a static member."""
        message = incremental_pb2.InstanceMoved(
            group_id=self._group_id, old_member_id=old_member_id, member=told.to_record()
        )
        self._add("instance_moved", message)

    def leave_for_a_while(self, member_id: str) -> None:
        """A static member is away."""
        self._add(
            "member_went_away", incremental_pb2.MemberWentAway(group_id=self._group_id, member_id=member_id)
        )

    def remove(self, member_id: str, cause: common_pb2.RebalanceCause, *, clock_moved: bool = False) -> None:
        """A member is gone."""
        message = incremental_pb2.MemberRemoved(
            group_id=self._group_id, member_id=member_id, cause=cause, clock_moved=clock_moved
        )
        self._add("member_removed", message)

    def resolve(self, expression: str, topics: Iterable[str]) -> None:
        """Which topics an expression matches."""
        message = incremental_pb2.ExpressionResolved(
            group_id=self._group_id, expression=expression, topics=sorted(topics)
        )
        self._add("expression_resolved", message)

    def hold(self, hold: Hold) -> None:
        """A member's join holds moves back, or the group starts."""
        message = incremental_pb2.MovesHeld(
            group_id=self._group_id,
            member_id=hold.member_id,
            began_ms=hold.began_ms,
            until_ms=hold.until_ms,
            is_start=hold.is_start,
        )
        self._add("moves_held", message)

    def end_hold(self) -> None:
        """Moves are not held back any more; the next record raises the epoch."""
        self._add("moves_held", incremental_pb2.MovesHeld(group_id=self._group_id))

    def raise_epoch(self, cause: common_pb2.RebalanceCause, topics_hash: bytes) -> None:
        """What the assignment depends on has changed."""
        message = incremental_pb2.EpochRaised(
            group_id=self._group_id, epoch=self.group.epoch + 1, cause=cause, topics_hash=topics_hash
        )
        self._add("epoch_raised", message)

    def assign(self, server_assignor: str, epoch: int, changes: Changes) -> None:
        """What each member should have: the target of the epoch that it was computed for."""
        message = incremental_pb2.TargetAssigned(
            group_id=self._group_id, epoch=epoch, server_assignor=server_assignor
        )
        for member_id, change in changes.items():
            message.changes.add(member_id=member_id, gets=by_topic(change.gets), loses=by_topic(change.loses))
        self._retargeted.update(changes)
        self._add("target_assigned", message)
        self._free_what_nobody_runs(changes)

    def _free_what_nobody_runs(self, changed: Iterable[str]) -> None:
        """Who is away runs nothing: what the target takes from it is free (docs/safety.md, INC-09).

        Of one that named no join that is not known: its process may not have heard of its own leaving.
        """
        for member in map(self.group.members.__getitem__, changed):
            gone = member.assigned - member.target
            if gone and member.is_away and member.told.is_numbered:
                self._step(member, Step(member.epoch, gone))

    def reconcile(self, member_id: str, report: Report) -> None:
        """Brings a member one step towards its target, if there is one to be made."""
        member = self.group.members[member_id]
        step = next_step(self.group, member, report, self._removed)
        if step is not None:
            self._step(member, step)

    def wake(self) -> None:
        """Steps the stream members for whom the records before change something (docs/safety.md, INC-18)."""
        group = self.group
        concerned = self._retargeted & group.members.keys()
        concerned.update([group.wanting[partition] for partition in among(group.wanting, group.freed)])
        if group.renewed:
            concerned.update(one.member_id for one in group.members.values() if one.stale(group.renewed))
        for member_id in sorted(concerned):
            member = group.members[member_id]
            if member.told.on_session and not member.is_away:
                self.reconcile(member_id, _SAYS_NOTHING)

    def _step(self, member: Member, step: Step) -> None:
        message = incremental_pb2.MemberStepped(
            group_id=self._group_id,
            member_id=member.member_id,
            epoch=step.epoch,
            released=by_topic(step.released),
            taken=by_topic(step.taken),
            given=by_topic(step.given),
            waits=step.waits,
        )
        self._add("member_stepped", message)

    def _add(self, kind: str, message: Message) -> None:
        record = self._new_record()
        record.critical = True
        getattr(record, kind).CopyFrom(message)
        self.records.append(record)
        apply(self.group, kind, Position(_LATER, len(self.records)), message)
