"""Checks the generations of classic groups: a log has about as many members in them as it has commits."""

from collections.abc import Collection, Mapping, Sequence

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.groups.binding_checker import BindingChecker
from muster_core.audit.groups.followed import FollowedGroup, FollowedMember
from muster_core.audit.groups.record_forms import is_plain, wrong_in_generation
from muster_core.audit.invariants import Findings
from muster_core.config import GroupConfig
from muster_core.position import NOWHERE, Position
from muster_core.state.members.terms import is_later_join


class GenerationChecker:
    """Carries generations out on what is known of their groups, and looks at each before.

    Nearly all generations have the members of the one before, in the same order, each with the record that
    it had then, or with one that differs in the number of its join. That is one comparison for each; what was
    right of these records is right again.

    Args:
        findings: where the results go.
        limits: what a group may be.
        bindings: looks at whom members belong to.
    """

    def __init__(self, findings: Findings, limits: GroupConfig, bindings: BindingChecker) -> None:
        self._findings = findings
        self._limits = limits
        self._bindings = bindings

    def take(self, position: Position, record: records_pb2.Record, group: FollowedGroup) -> None:
        """Takes a generation.

        Args:
            position: place of its record.
            record: the record.
            group: what is known of its group, which is a classic one; changed in place.
        """
        message, now_ms = record.generation_started, record.written_at_ms
        rows, generation, leader = message.members[:], message.generation, message.leader
        protocol_type, protocol_name = message.protocol_type, message.protocol_name
        if generation != group.generation + 1 or not group.generation:
            self._check_number(position, message, group)
        if protocol_type != group.protocol_type and any(row.member_id in group.members for row in rows):
            text = f"{_name(message)}: of type {protocol_type!r}, and was {group.protocol_type!r}"
            self._findings.broke("G16", position, text)
        members = group.members
        as_before = (
            bool(rows)
            and group.members_are_right
            and protocol_name == group.protocol_name
            and _say_the_same(rows, members.values())
        )
        if as_before:
            for member, row in zip(members.values(), rows, strict=True):
                member.record, member.heard_ms = row, now_ms
            group.seqs_of_strangers.clear()
            self._findings.checked["G18"] += len(rows)
            changed: Sequence[records_pb2.Member] = ()
        else:
            changed = _changed(group, rows)
            self._check_lives(position, message, rows, members)
            group.members = members = _members_of(group, rows, now_ms)
            group.members_are_right = self._check_members(position, message, rows, members)
            self._bindings.generation_started(position, message, rows)
        if not (as_before and is_plain(record, message)) and (
            problem := wrong_in_generation(record, changed)
        ):
            self._findings.broke("G16", position, f"no coordinator writes this generation started: {problem}")
            group.members_are_right = False
        if leader not in members if members else bool(leader):
            text = f"{_name(message)}: leader {leader!r} of members {list(members)}"
            self._findings.broke("G5", position, text)
        if group.gone and not group.gone.isdisjoint(members):
            back = sorted(group.gone.intersection(members))
            self._findings.broke("M4", position, f"{_name(message)}: {back} left, or were left out, before")
        if len(rows) > (most := self._limits.max_size):
            text = f"{_name(message)}: {len(rows)} members of at most {most}"
            self._findings.broke("G11", position, text)
        if group.removal is not None:
            group.removal.check(message, self._findings)
            group.removal = None
        if not rows:
            group.given, group.reverted = {}, False
        group.generation = generation
        group.assignment = None
        group.protocol_type = protocol_type
        group.protocol_name = protocol_name
        group.leader = leader
        group.is_over = False

    def _check_number(
        self, position: Position, message: records_pb2.GenerationStarted, group: FollowedGroup
    ) -> None:
        generation = message.generation
        unknown = group.met_in_the_middle and group.generation == 0
        if generation != group.generation + 1 and not (unknown and generation > 0):
            text = f"{_name(message)} follows generation {group.generation}"
            self._findings.broke("G1", position, text)
        if group.born_after != NOWHERE and group.generation == 0:
            self._findings.expect(
                "G13",
                generation == 1,
                position,
                f"{_name(message)} of a group that was removed at {group.born_after.stream_id}",
            )

    def _check_lives(
        self,
        position: Position,
        message: records_pb2.GenerationStarted,
        rows: Sequence[records_pb2.Member],
        before: Mapping[str, FollowedMember],
    ) -> None:
        """Checks what no join changes, of the members that stay, and whose place a new one has."""
        holders = {one.record.group_instance_id: name for name, one in before.items()}
        for row in rows:
            known, instance = before.get(row.member_id), row.group_instance_id
            if known is None:
                if instance and instance in holders:
                    text = f"{row.member_id} has the static id {instance!r}, which {holders[instance]} had"
                    self._findings.broke("G10", position, f"{_name(message)}: {text}")
                continue
            had = known.record.group_instance_id
            if instance != had:
                text = f"{row.member_id} has the static id {instance!r}, and had {had!r}"
                self._findings.broke("G10", position, f"{_name(message)}: {text}")
            if problem := _wrong_in_join(row, known.record):
                self._findings.broke("G16", position, f"{_name(message)}: {row.member_id} {problem}")

    def _check_members(
        self,
        position: Position,
        message: records_pb2.GenerationStarted,
        rows: Sequence[records_pb2.Member],
        members: dict[str, FollowedMember],
    ) -> bool:
        """Checks the records of members; whether all is right."""
        broke, chosen, right = self._findings.broke, message.protocol_name, True
        if "" in members:
            broke("M5", position, f"{_name(message)}: a member without an id")
            right = False
        if len(members) != len(rows):
            broke("G5", position, f"{_name(message)}: a member twice among {[row.member_id for row in rows]}")
            right = False
        without = [
            row.member_id for row in rows if chosen not in [protocol.name for protocol in row.protocols[:]]
        ]
        if without:
            broke("G6", position, f"{_name(message)}: {without} do not support {chosen!r}")
            right = False
        static = [instance for row in rows if (instance := row.group_instance_id)]
        if len(set(static)) != len(static):
            broke("G10", position, f"{_name(message)}: two members have one static id among {static}")
            right = False
        return right


def _say_the_same(rows: Sequence[records_pb2.Member], members: Collection[FollowedMember]) -> bool:
    """Whether records say of members what the ones before said, but for the numbers of their joins."""
    known = [member.record for member in members]
    return rows == known or (len(rows) == len(known) and all(map(is_later_join, rows, known)))


def _changed(group: FollowedGroup, rows: Sequence[records_pb2.Member]) -> Sequence[records_pb2.Member]:
    """Those members that are new, or of which another thing is said than what was found right before."""
    if not group.members_are_right:
        return rows
    known = group.members
    return [
        row for row in rows if (one := known.get(row.member_id)) is None or not is_later_join(row, one.record)
    ]


def _members_of(
    group: FollowedGroup, rows: Sequence[records_pb2.Member], now_ms: int
) -> dict[str, FollowedMember]:
    """The members of a new generation; what is known of those that stay is kept, the rest forgotten."""
    members: dict[str, FollowedMember] = {}
    before, strangers = group.members, group.seqs_of_strangers
    for row in rows:
        member_id = row.member_id
        member = before.get(member_id)
        if member is None:
            members[member_id] = FollowedMember(row, now_ms, strangers.get(member_id, 0))
        else:
            member.record, member.heard_ms = row, now_ms
            members[member_id] = member
    strangers.clear()
    group.gone |= before.keys() - members.keys()
    return members


def _wrong_in_join(row: records_pb2.Member, before: records_pb2.Member) -> str:
    """What the number of a member's join says against it; empty: nothing, as of joins without a number."""
    if 0 < row.member_seq < before.member_seq:
        return f"is of join {row.member_seq}, and has made join {before.member_seq}"
    if 0 < row.member_seq == before.member_seq and _asked_for(row) != _asked_for(before):
        return f"asks for something else than before, and has not joined since its join {row.member_seq}"
    return ""


def _asked_for(row: records_pb2.Member) -> tuple[object, ...]:
    """What a member says with each join, to every version."""
    protocols = [(protocol.name, protocol.metadata) for protocol in row.protocols[:]]
    return row.session_timeout_ms, row.rebalance_timeout_ms, row.disconnect_grace_ms, protocols


def _name(message: records_pb2.GenerationStarted) -> str:
    return f"group {message.group_id!r}, generation {message.generation}"
