"""A classic group becomes an incremental one while its members work (docs/safety.md, INC-70 to INC-77)."""

from collections.abc import Callable, Mapping
from functools import partial

from muster_protos.muster.log.v1 import incremental_pb2
from muster_protos.muster.v1 import session_pb2

from muster_core import error_code
from muster_core.events import Push, Request
from muster_core.features import Feature
from muster_core.incremental import causes
from muster_core.incremental.conversion import SERVER_ASSIGNORS, converted
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.upkeep import tend
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import Told
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.targets.target import Topics, subscribed_topics
from muster_core.position import Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.group_timer import GroupTimer
from muster_core.protocol.incremental.settings import assignors_of
from muster_core.protocol.incremental.targets import Targets
from muster_core.protocol.incremental.topics import topics_of
from muster_core.protocol.open_append import nothing_follows
from muster_core.record_bounds import is_one_append
from muster_core.state.group import CONSUMER, Group
from muster_core.state.group_settings import convert_of
from muster_core.state.members.claims import Claims
from muster_core.state.members.member import Member
from muster_core.state.published import read_assignment, read_subscription

_AGAIN_MS = 1_000
"""Pause before a group is looked at again that could not be converted, at least."""

_UNKNOWN_PLACE = Position((1 << 63) - 1, 1)
"""Of a record that is not stored yet: after all that are."""


class Conversions:
    """Converts classic groups whose members can all be incremental.

    Args:
        context: the shard.
        rebalancer: begins generations, and ends what waits for one.
        deadlines: the members' clocks in the group that follows.
        targets: how its targets come about.
    """

    def __init__(
        self, context: ShardContext, rebalancer: Rebalancer, deadlines: Deadlines, targets: Targets
    ) -> None:
        self._context = context
        self._targets = targets
        self._rebalancer = rebalancer
        self._deadlines = deadlines
        self._due: dict[str, GroupTimer] = {}
        rebalancer.on_generation = self.follow
        context.application.on_converted = self._end_classic

    # --- when

    def follow(self, group: Group) -> None:
        """A generation has begun, or the group was loaded: it may be converted some time after that."""
        config = self._context.config
        due = self._due.pop(group.group_id, None)
        if due is not None:
            self._context.purgatory.wheel.cancel(due)
        policy = convert_of(group.settings, config)
        is_on = policy != "never" and Feature.INCREMENTAL_GROUPS in self._context.features
        if is_on and any(member.process_id for member in group.members.values()):
            wait_ms = config.convert_after_ms if policy == "auto" else 0
            due = self._due[group.group_id] = GroupTimer(self.fire, group)
            self._context.purgatory.wheel.arm(due, self._context.now.boot_ms + max(wait_ms, _AGAIN_MS))

    def fire(self, due: GroupTimer) -> None:
        """The wait after the last generation is over."""
        if self._due.get(due.group_id) is due:
            del self._due[due.group_id]
            if (group := due.group) is not None:
                self._context.lines.in_line(group, partial(self._try, group))

    def _try(self, group: Group) -> None:
        if self._context.groups.get(group.group_id) is not group:
            return
        if self._policy_fault(group) or self.fault_of(group) or self.convert(group, nothing_follows):
            self.follow(group)

    def _policy_fault(self, group: Group) -> str:
        """Why a group is not converted by itself, though it might be; empty: it is."""
        if group.pending_members or not all(member.recorded for member in group.members.values()):
            return "somebody is about to join"
        if any(member.stream_id is None for member in group.members.values()):
            return "a member is on no session stream"
        return ""

    def fault_of(self, group: Group) -> str:
        """Why a group cannot be converted, for people; empty: it can (INC-71, INC-72)."""
        if Feature.INCREMENTAL_GROUPS not in self._context.features:
            return f"the cluster has not enabled the feature {Feature.INCREMENTAL_GROUPS}"
        if not any(member.recorded for member in group.members.values()):
            return "the group is no classic one with members of a generation"
        assignor = SERVER_ASSIGNORS.get(group.protocol_name, "")
        if group.protocol_type != CONSUMER or assignor not in self._context.room.assignors:
            return f"nothing takes the place of its assignor {group.protocol_name!r}"
        for member in group.members.values():
            if not _is_capable(member) or _told_by(group, member) is None:
                return f"member {member.member_id} can only be in a classic group"
        if group.reverted:
            return "it has just become a classic one; its members have no assignment since"
        if group.renewed_topics:
            return "a topic was deleted that its members work on; the next assignment ends that"
        claims = Claims(group.members.values(), self._context.config.max_partitions)
        if not claims.complete or any(_keeps_more(group, claims, member_id) for member_id in group.members):
            return "members are still to release what they keep"
        return ""

    # --- how

    def convert(
        self, group: Group, then: Callable[[], None], call: Request | None = None, reason: str = ""
    ) -> str:
        """Stores the record. What nobody has is given out with it, by a target of the next epoch.

        Args:
            group: a group of which `fault_of` says nothing, and of which nothing is in flight.
            then: what follows.
            call: the operator's, which waits for it; None: nobody asked.
            reason: the operator's.

        Returns:
            Why it cannot be stored, for people; empty: it is on its way.
        """
        context = self._context
        topics = topics_of(context.catalog)
        record = self._record_of(group, topics)
        if call is not None:
            record.cause.CopyFrom(causes.converted_by_operator(context.now.wall_ms, reason))
        draft = _draft(group, record)
        decision = Decision(draft, group.group_id, context.record, context.catalog.removed)
        if not record.topics_hash:
            decision.raise_epoch(record.cause, topics.hash_of(subscribed_topics(draft)))
            assignors = assignors_of(context.room.assignors, group.settings)
            tend(decision, topics, assignors, partial(self._targets.when, group))
        first = context.record()
        first.critical = True
        first.group_converted.CopyFrom(record)
        records = [first, *decision.records]
        if not is_one_append(records):
            return "its members take more than the log takes at a time"
        if full := context.bounds.too_much(draft.held_bytes, at_work=True):
            return full
        calls = [] if call is None else [call.call_id]
        context.append(records, partial(self._converted, group, then), holds=group, calls=calls)
        return ""

    def _record_of(self, group: Group, topics: Topics) -> incremental_pb2.GroupConverted:
        record = incremental_pb2.GroupConverted(
            group_id=group.group_id,
            generation=group.generation,
            cause=causes.converted(self._context.now.wall_ms),
            server_assignor=SERVER_ASSIGNORS[group.protocol_name],
        )
        for _, member in sorted(group.members.items()):
            told = _told_by(group, member)
            if told is not None and member.recorded:
                record.members.append(told.to_record())
        draft = _draft(group, record)
        wanted = {(name, number) for name in subscribed_topics(draft) for number in topics.numbers(name)}
        if group.assigned_generation == group.generation and wanted == draft.owners.keys():
            record.topics_hash = topics.hash_of(subscribed_topics(draft))
        return record

    def _end_classic(self, group: Group) -> None:
        """The log has it: what members wait for is answered, and those on streams are told (INC-73)."""
        context = self._context
        self._rebalancer.end_waits(group)
        for member_id in tuple(group.pending_members):  # its owner may join as an incremental member
            if (timer := group.take_back(member_id)) is not None:
                context.purgatory.wheel.cancel(timer)
        for member in tuple(group.members.values()):
            if member.heartbeat is not None:
                context.purgatory.wheel.cancel(member.heartbeat)
            context.refuse_join(group, member, error_code.GROUP_CONVERTED, "")
            if member.sync_call is not None:
                context.refuse(member.sync_call, error_code.GROUP_CONVERTED)
                member.sync_call = None
            if member.stream_id is not None:
                news = session_pb2.GroupChanged(
                    group_id=group.group_id,
                    member_id=member.member_id,
                    error_code=error_code.GROUP_CONVERTED,
                    shard_epoch=context.epoch,
                )
                context.news.append(Push(member.stream_id, news))
                context.detach(member)

    def _converted(self, group: Group, then: Callable[[], None]) -> None:
        self._deadlines.begin_anew(group)
        then()


def _draft(group: Group, record: incremental_pb2.GroupConverted) -> IncrementalGroup:
    """The group as the record will leave it, but for the place of that."""
    members = {entry.member_id: group.members[entry.member_id] for entry in record.members}
    versions = {member_id: member.token for member_id, member in members.items()}
    seqs = {member_id: member.commit_seq for member_id, member in members.items()}
    return converted(record, _UNKNOWN_PLACE, group.owners, versions, seqs)


def _is_capable(member: Member) -> bool:
    """Whether a member said that it can be incremental, in the log and since [`capable_stored`]."""
    return bool(member.process_id) and (
        not member.recorded or member.recorded_process_id == member.process_id
    )


def _told_by(group: Group, member: Member) -> Told | None:
    """What a classic member is as an incremental one; None: what it told cannot be read."""
    metadata: Mapping[str, bytes] = dict(member.terms.protocols)
    subscription = read_subscription(metadata.get(group.protocol_name, b""))
    if subscription is None or (member.assignment and read_assignment(member.assignment) is None):
        return None
    return Told(
        member.member_id,
        member.group_instance_id,
        subscription.rack_id,
        member.client_id,
        member.host,
        max(member.terms.rebalance_timeout_ms, 1),
        frozenset(subscription.topics),
        "",
        SERVER_ASSIGNORS.get(group.protocol_name, ""),
        member.join_seq,
        member.process_id,
        member.lock.secret_hash,
        member.identity,
        on_session=member.stream_id is not None,
        classic_session_ms=member.session_timeout_ms,
        can_be_classic=True,
        session_timeout_ms=member.session_timeout_ms,
        disconnect_grace_ms=member.terms.disconnect_grace_ms or member.session_timeout_ms,
        weight=member.recorded_weight,
        client_version=member.terms.client_version,
        classic_protocols=frozenset(metadata),
    )


def _keeps_more(group: Group, claims: Claims, member_id: str) -> bool:
    """Whether a member may work on what the last assignment did not give it (INC-72)."""
    kept: list[TopicPartition] = [
        (topic, number) for topic, numbers in claims.of(member_id).items() for number in numbers
    ]
    return any(group.owners.get(partition, ("",))[0] != member_id for partition in kept)
