"""Checks the records of incremental groups: owners, steps, targets, epochs, and who is a member."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from muster_protos.muster.log.v1 import incremental_pb2

from muster_core.audit.groups.incremental.removals import check_removal
from muster_core.audit.groups.incremental.state import GroupState, MemberState
from muster_core.audit.invariants import Findings
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY
from muster_core.incremental.partitions import TopicPartition, named_in
from muster_core.incremental.rollout import Hold
from muster_core.position import Position


class IncrementalChecker:
    """Carries records out on what is known of their groups, and looks at each before.

    Args:
        findings: where the results go.
        max_size: members that a group may have.
    """

    def __init__(self, findings: Findings, max_size: int) -> None:
        self._findings = findings
        self._max_size = max_size
        self._now_ms = 0
        self._steps: dict[str, Callable[[Position, GroupState, Any], None]] = {
            "member_subscribed": self._subscribed,
            "epoch_raised": self._epoch_raised,
            "target_assigned": self._target_assigned,
            "member_stepped": self._stepped,
            "member_went_away": self._went_away,
            "instance_moved": self._instance_moved,
            "member_removed": self._removed,
            "moves_held": self._held,
            "expression_resolved": self._resolved,
        }

    def take(self, kind: str, position: Position, group: GroupState, message: Any, now_ms: int) -> None:
        """Takes a record.

        Args:
            kind: one of the kinds of records of such groups.
            position: its place.
            group: what is known of its group; changed in place.
            message: its part of that kind.
            now_ms: when it was written.
        """
        self._now_ms = now_ms
        self._steps[kind](position, group, message)

    def compare(self, group_id: str, mine: GroupState, stored: IncrementalGroup, position: Position) -> None:
        """Checks who has what by which token in a snapshot."""
        differs = mine.difference(stored)
        text = f"group {group_id!r}: the snapshot gives {differs} other partitions or tokens than the records"
        self._findings.expect("I7", not differs, position, text)

    # -- members ------------------------------------------------------------------------------------

    def _subscribed(
        self, position: Position, group: GroupState, message: incremental_pb2.MemberSubscribed
    ) -> None:
        told = message.member
        name = f"group {message.group_id!r}: {told.member_id}"
        member = group.members.get(told.member_id)
        self._expect(
            "M5", bool(told.member_id), position, f"group {message.group_id!r}: a member without an id"
        )
        self._expect("G7", member is not None or message.joined, position, f"{name} did not join")
        self._check_static(position, group, told, {told.member_id}, name)
        self._check_binding(position, member, told, same_process=True)
        if member is not None and (problem := _wrong_in_join(message, member.told)):
            self._findings.broke("G16", position, f"{name} {problem}")
        if member is None:
            member = group.members[told.member_id] = MemberState(told)
            size = len(group.members)
            text = f"group {message.group_id!r}: {size} members of at most {self._max_size}"
            self._expect("G11", size <= self._max_size, position, text)
        elif message.joined:
            member.epoch = group.derived_epoch(member)  # it may be on no session from now on
            self._begin_anew(position, group, member, told)
        elif member.is_away:
            member.epoch = 0  # it is here again
        member.told = told
        self._heard(member)

    def _instance_moved(
        self, position: Position, group: GroupState, message: incremental_pb2.InstanceMoved
    ) -> None:
        told, old_id = message.member, message.old_member_id
        name = f"group {message.group_id!r}: {told.member_id}"
        self._expect(
            "M5", bool(told.member_id), position, f"group {message.group_id!r}: a member without an id"
        )
        holder = group.members.get(old_id)
        holds = holder is not None and holder.told.group_instance_id == told.group_instance_id
        follows = bool(told.group_instance_id) or old_id == told.member_id
        text = f"{name} takes {told.group_instance_id!r} over from {old_id}, which does not hold it"
        self._expect("G10", holds and follows, position, text)
        self._check_static(position, group, told, {told.member_id, old_id}, name)
        self._check_binding(position, holder, told, same_process=False)
        if holder is None:
            holder = MemberState(told)
        target, held, epoch = set(holder.target), dict(holder.held), group.derived_epoch(holder)
        group.remove(old_id)
        group.remove(told.member_id)
        member = group.members[told.member_id] = MemberState(told, epoch)
        member.held, member.target = held, target
        group.owners.update(dict.fromkeys(held, told.member_id))
        group.wanted.update(dict.fromkeys(target, told.member_id))
        self._begin_anew(position, group, member, told)
        if not told.member_seq:
            member.epoch = 0
        self._heard(member)

    @staticmethod
    def _begin_anew(
        position: Position, group: GroupState, member: MemberState, told: incremental_pb2.IncrementalMember
    ) -> None:
        """A new life: what it was to give back is free, the rest is its own from this record on."""
        if member.is_away:
            member.epoch = group.target_epoch if told.member_seq else 0
        group.free_what_was_taken(member)
        for partition in member.assigned:
            group.give(told.member_id, partition, position)
        member.commit_seq = 0

    def _heard(self, member: MemberState) -> None:
        member.heard_ms = self._now_ms
        member.shortest_ms = min(member.shortest_ms, member.told.rebalance_timeout_ms)

    def _check_static(
        self,
        position: Position,
        group: GroupState,
        told: incremental_pb2.IncrementalMember,
        own: Collection[str],
        name: str,
    ) -> None:
        instance = told.group_instance_id
        holder = ""
        if instance:
            rows = group.members.items()
            holder = next((id_ for id_, row in rows if row.told.group_instance_id == instance), "")
        text = f"{name} has the static id {instance!r}, which {holder} has"
        self._expect("G10", not holder or holder in own, position, text)

    def _check_binding(
        self,
        position: Position,
        before: MemberState | None,
        told: incremental_pb2.IncrementalMember,
        *,
        same_process: bool,
    ) -> None:
        """A member belongs to whom it belonged to, and a process is known by its secret."""
        self._findings.checked["G18"] += 1
        if before is None:
            return
        if before.told.identity not in ("", told.identity):
            owner = repr(told.identity) if told.identity else "nobody"
            whose = f"{before.told.member_id} to {before.told.identity!r}"
            text = f"{told.member_id} belongs to {owner}, and {whose}"
            self._findings.broke("G18", position, text)
        if same_process and before.told.secret_hash not in (b"", told.secret_hash):
            self._findings.broke("G18", position, f"{told.member_id} has another secret than before")

    def _went_away(
        self, position: Position, group: GroupState, message: incremental_pb2.MemberWentAway
    ) -> None:
        member = self._member(position, group, message.group_id, message.member_id, "leaves for a while")
        if member is None:
            return
        text = f"group {message.group_id!r}: {message.member_id} leaves for a while and is no static member"
        self._expect("I6", bool(member.told.group_instance_id), position, text)
        group.free_what_was_taken(member)
        member.epoch = AWAY

    def _removed(self, position: Position, group: GroupState, message: incremental_pb2.MemberRemoved) -> None:
        member = self._member(position, group, message.group_id, message.member_id, "is removed")
        if member is not None:
            check_removal(position, message, member, self._now_ms, self._findings)
            group.remove(message.member_id)
        if not group.members:  # not while another process takes the only member's place
            group.hold = None

    def _member(
        self, position: Position, group: GroupState, group_id: str, member_id: str, what: str
    ) -> MemberState | None:
        member = group.members.get(member_id)
        text = f"group {group_id!r}: {member_id} {what} and is no member"
        self._expect("G7", member is not None, position, text)
        return member

    @staticmethod
    def _resolved(_: Position, group: GroupState, message: incremental_pb2.ExpressionResolved) -> None:
        group.expressions[message.expression] = frozenset(message.topics)

    # -- epochs and targets -------------------------------------------------------------------------

    def _epoch_raised(
        self, position: Position, group: GroupState, message: incremental_pb2.EpochRaised
    ) -> None:
        text = f"group {message.group_id!r}: epoch {message.epoch} follows {group.epoch}"
        self._expect("I4", message.epoch == group.epoch + 1, position, text)
        group.epoch = message.epoch

    def _held(self, position: Position, group: GroupState, message: incremental_pb2.MovesHeld) -> None:
        name = f"group {message.group_id!r}"
        is_on = group.hold is not None and group.hold.is_on
        if not message.until_ms:
            self._expect("I10", is_on, position, f"{name} ends a hold that it does not have")
            group.hold = Hold(freed_epoch=group.epoch + 1)
            return
        text = f"{name}: {message.member_id} holds moves back and is no member"
        self._expect("I10", message.member_id in group.members, position, text)
        if group.hold is not None and not group.hold.is_on and not group.hold.is_start:
            is_next = group.target_epoch >= group.hold.freed_epoch
            text = f"{name} holds moves back again before what was held back could move"
            self._expect("I10", is_next, position, text)
        elif group.hold is not None and is_on:
            goes_on = message.began_ms == group.hold.began_ms and message.until_ms > group.hold.until_ms
            text = f"{name}: a hold from {group.hold.began_ms} to {group.hold.until_ms} becomes another one"
            self._expect("I10", goes_on and not message.is_start, position, text)
        group.hold = Hold(message.member_id, message.began_ms, message.until_ms, message.is_start)

    def _target_assigned(
        self, position: Position, group: GroupState, message: incremental_pb2.TargetAssigned
    ) -> None:
        name = f"group {message.group_id!r}, target of epoch {message.epoch}"
        is_next = group.target_epoch < message.epoch <= group.epoch
        text = f"{name}: after that of epoch {group.target_epoch}, in epoch {group.epoch}"
        self._expect("I4", is_next, position, text)
        moved = _moved_on_hold(group, message)
        self._expect("I10", not moved, position, f"{name} moves {_few(moved)} while moves are held back")
        wrong: list[str] = []
        for change in message.changes:
            member = group.members.get(change.member_id)
            if member is None:
                wrong.append(f"{change.member_id} is no member")
                continue
            member.epoch = group.derived_epoch(member)  # which it keeps while it has something to give back
            loses = set(named_in(change.loses))
            if not loses <= member.target:
                wrong.append(f"{change.member_id} was not to have {_few(loses - member.target)}")
            for partition in loses & member.target:
                del group.wanted[partition]
            member.target -= loses
        for change in message.changes:
            if (member := group.members.get(change.member_id)) is not None:
                wrong += self._gets(group, member, change)
        group.target_epoch = message.epoch
        self._expect("I5", not wrong, position, f"{name}: {'; '.join(wrong[:3])}")

    @staticmethod
    def _gets(
        group: GroupState, member: MemberState, change: incremental_pb2.TargetAssigned.Change
    ) -> Iterable[str]:
        gets = set(named_in(change.gets))
        double = sorted(partition for partition in gets if partition in group.wanted)
        if double:
            yield f"{change.member_id} is to have {_few(double)}, and so is {group.wanted[double[0]]}"
        for partition in double:
            group.members[group.wanted[partition]].target.discard(partition)
        group.wanted.update(dict.fromkeys(gets, change.member_id))
        member.target |= gets

    # -- steps --------------------------------------------------------------------------------------

    def _stepped(self, position: Position, group: GroupState, message: incremental_pb2.MemberStepped) -> None:
        member = self._member(position, group, message.group_id, message.member_id, "makes a step")
        if member is None:
            return
        name = f"group {message.group_id!r}: {message.member_id}"
        released, taken = set(named_in(message.released)), set(named_in(message.taken))
        given = set(named_in(message.given))
        self._findings.checked["I1"] += len(given)
        self._findings.checked["I2"] += len(released) + len(taken)
        self._check_gives_back(position, name, member, released, taken)
        self._check_way(position, name, group, member, message)
        for partition in released & member.held.keys():
            group.free(partition)
        for partition in taken & member.held.keys():
            member.held[partition] = member.held[partition]._replace(taken=position)
        for partition in sorted(given):
            if (owner := group.owners.get(partition)) is not None:
                text = f"{name} is given {_few([partition])}, which {owner} has"
                self._findings.broke("I1", position, text)
            group.give(message.member_id, partition, position)
        self._check_end(position, name, group, member, message)
        if released and not member.is_away:
            self._heard(member)
        if taken:
            member.taken_ms, member.shortest_ms = self._now_ms, member.told.rebalance_timeout_ms
        member.epoch = message.epoch

    def _check_gives_back(
        self,
        position: Position,
        name: str,
        member: MemberState,
        released: set[TopicPartition],
        taken: set[TopicPartition],
    ) -> None:
        """Only who names no join, and is judged as Kafka does, or is away gives back what was not taken."""
        early = released & member.assigned
        if member.told.member_seq and not member.is_away and early:
            self._findings.broke(
                "I2", position, f"{name} gives {_few(early)} back, which was not taken from it"
            )
        if strange := released - member.held.keys():
            self._findings.broke("I2", position, f"{name} gives {_few(strange)} back, which it does not have")
        if strange := taken - (member.assigned - released):
            self._findings.broke(
                "I2", position, f"{_few(strange)} is taken from {name}, which cannot work on it"
            )

    def _check_way(
        self,
        position: Position,
        name: str,
        group: GroupState,
        member: MemberState,
        message: incremental_pb2.MemberStepped,
    ) -> None:
        given = set(named_in(message.given))
        taken = {one for one in named_in(message.taken) if not group.is_stale(member, one)}
        problem = ""
        if given - member.target:
            problem = f"is given {_few(given - member.target)}, which is not in its target"
        elif taken & member.target:
            problem = f"is to give {_few(taken & member.target)} back, which is in its target"
        elif message.epoch > group.target_epoch:
            problem = f"is brought to epoch {message.epoch}, and the target is of epoch {group.target_epoch}"
        elif message.epoch < member.epoch:
            problem = f"goes back from epoch {member.epoch} to {message.epoch}"
        self._expect("I3", not problem, position, f"{name} {problem}")
        if member.is_away:
            early = set(named_in(message.released)) & member.target
            stays = message.epoch == AWAY and not given and not taken and not early
            self._expect("I6", stays, position, f"{name} has left for a while and makes a step")

    def _check_end(
        self,
        position: Position,
        name: str,
        group: GroupState,
        member: MemberState,
        message: incremental_pb2.MemberStepped,
    ) -> None:
        """Who is at the target's epoch and owes nothing has nothing else, and waits for what it lacks.

        Nobody else waits: first a member gives back.
        """
        if message.epoch != group.target_epoch or member.owes:
            text = f"{name} waits for others before it has given back what is not in its target"
            self._expect("I3", not message.waits, position, text)
        else:
            surplus, lacks = member.assigned - member.target, member.target - member.assigned
            right = not surplus and bool(lacks) == message.waits
            text = f"{name} is at the target's epoch with {_few(surplus)} too much, {_few(lacks)} lacking"
            self._expect("I3", right, position, text)

    def _expect(self, invariant: str, holds: bool, position: Position, text: str) -> None:
        self._findings.expect(invariant, holds, position, text)


def _wrong_in_join(
    message: incremental_pb2.MemberSubscribed, before: incremental_pb2.IncrementalMember
) -> str:
    """What the join says against a record of a member that is one already; empty: nothing."""
    told = message.member
    if told.process_id != before.process_id:
        return "is of another process, which took no place over"
    if told.member_seq < before.member_seq + (message.joined and before.member_seq > 0):
        return f"is of join {told.member_seq}, and has made join {before.member_seq}"
    return ""


def _moved_on_hold(group: GroupState, message: incremental_pb2.TargetAssigned) -> set[TopicPartition]:
    """What a target takes from members that still want it, for others, though moves are held back."""
    if group.hold is None or not group.hold.is_on:
        return set()
    given = {partition for change in message.changes for partition in named_in(change.gets)}
    moved = set[TopicPartition]()
    for change in message.changes:
        member = group.members.get(change.member_id)
        if member is not None and not member.told.topic_regex:
            wanted = frozenset(member.told.topics)
            moved |= {one for one in named_in(change.loses) if one in given and one[0] in wanted}
    return moved


def _few(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{number}" for topic, number in sorted(partitions)[:5])
