"""A shard: the groups of one coordinator partition, as a pure state machine."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2, incremental_pb2
from muster_protos.muster.v1.group_conversion_pb2 import ConvertGroupRequest
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest

from muster_core import error_code
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.events import (
    AppendDone,
    Assigned,
    Attach,
    Beat,
    Cancelled,
    Detach,
    Effects,
    Event,
    FeaturesEnabled,
    GroupRequest,
    Request,
    Resolved,
    Resume,
    StreamBroken,
    Suspend,
    Tick,
    TopicsChanged,
    Unload,
    groups_of,
)
from muster_core.features import Feature
from muster_core.log.application import group_of
from muster_core.log.commits import CommittedRow
from muster_core.log.record_run import RecordRun
from muster_core.log.snapshot import SnapshotReader
from muster_core.position import Position
from muster_core.protocol.bindings import NOT_YOURS, fault_of_identity
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations import causes
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.group_settings import SettingsChanges
from muster_core.protocol.holdups import Holdups
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.descriptions import Descriptions
from muster_core.protocol.incremental.heartbeats import IncrementalHeartbeats
from muster_core.protocol.incremental.kinds.conversions import Conversions
from muster_core.protocol.incremental.kinds.kind_changes import KindChanges
from muster_core.protocol.incremental.kinds.reversions import Reversions
from muster_core.protocol.incremental.removals import Removals
from muster_core.protocol.incremental.stream_members import StreamMembers
from muster_core.protocol.incremental.targets import Targets
from muster_core.protocol.membership.joins import Joins
from muster_core.protocol.membership.leaves import Leaves
from muster_core.protocol.membership.streams import Streams
from muster_core.protocol.membership.syncs import Syncs
from muster_core.protocol.offsets.offset_commits import OffsetCommits
from muster_core.protocol.offsets.offsets import Offsets
from muster_core.protocol.offsets.retention import Retention
from muster_core.protocol.queries import Queries
from muster_core.protocol.responses import IN_QUARANTINE
from muster_core.protocol.room import Room
from muster_core.protocol.tenure import MOVED, SUSPENDED, Tenure
from muster_core.protocol.topics.removed_partitions import RemovedPartitions
from muster_core.protocol.topics.topic_deletions import TopicDeletions
from muster_core.state.group_table import GroupTable
from muster_core.state.quarantine import NOBODY, Quarantine

_ENDS = frozenset({Suspend, Unload})  # no deadline is played before these


class Shard:
    """The group protocol for the groups of one shard.

    Life: `restore` a snapshot if there is one, `replay` each record of the log after it, `loaded` once, then
    `handle` events until `Unload`. Every call of the protocol is answered exactly once: at once, later, or
    when the shard is suspended or unloaded; a call whose caller is gone is not.

    Args:
        number: the shard, from 0.
        config: limits and times.
        quarantine: groups that no event reaches.
    """

    def __init__(self, number: int, config: GroupConfig, quarantine: Quarantine = NOBODY) -> None:
        self.number = number
        self._context = context = ShardContext(config)
        self._context.quarantine = quarantine
        self._context.application.frozen = quarantine.groups
        self._rebalancer = Rebalancer(context)
        self._deletions = TopicDeletions(context)
        self._removed_partitions = RemovedPartitions(context, self._deletions)
        self._syncs = Syncs(context, self._rebalancer, self._deletions)
        self._targets = Targets(context)
        self._deadlines = Deadlines(context, self._targets)
        self._leaves = Leaves(context, self._rebalancer, Removals(context, self._deadlines, self._targets))
        self._stream_members = StreamMembers(context, self._deadlines)
        self._conversions = Conversions(context, self._rebalancer, self._deadlines, self._targets)
        reversions = Reversions(
            context, self._rebalancer, self._deadlines, self._stream_members, self._targets
        )
        self._joins = Joins(context, self._rebalancer, reversions)
        self._incremental = IncrementalHeartbeats(
            context, self._deletions, self._deadlines, self._stream_members, self._targets, reversions
        )
        self._descriptions = Descriptions(context, self._deadlines)
        self._commits = OffsetCommits(context, self._rebalancer, self._deletions)
        self._offsets = Offsets(context, self._commits)
        self._streams = Streams(context, self._rebalancer)
        holdups = Holdups(context, self._rebalancer)
        self._queries = Queries(context, self._offsets, self._commits, self._descriptions, holdups)
        self._retention = Retention(number, context, self._offsets)
        self._tenure = Tenure(
            context,
            self._rebalancer,
            self._incremental,
            self._deadlines,
            self._targets,
            self._stream_members,
            self._conversions,
        )
        self._event: Event | None = None
        self._context.lines.route_with(self._route)
        self._events: dict[type[Event], Callable[[Any], None]] = {
            Request: self._request,
            Cancelled: self._cancelled,
            AppendDone: self._append_done,
            Tick: lambda _: self._context.end_gathering(),
            Suspend: lambda _: self._tenure.suspend(),
            Resume: lambda _: self._tenure.resume(),
            Unload: self._tenure.end,
            TopicsChanged: self._topics_changed,
            FeaturesEnabled: self._features_enabled,
            Attach: self._streams.attach,
            Detach: self._detach,
            Beat: self._beat,
            StreamBroken: self._stream_broken,
            Assigned: self._targets.assigned,
            Resolved: self._incremental.resolved,
        }
        self._requests: dict[type[Any], Callable[[Request, Any], None]] = {
            coordinator_pb2.JoinGroupRequest: self._joins.handle,
            coordinator_pb2.SyncGroupRequest: self._syncs.handle,
            coordinator_pb2.HeartbeatRequest: self._syncs.heartbeat,
            coordinator_pb2.LeaveGroupRequest: self._leaves.handle,
            coordinator_pb2.OffsetCommitRequest: self._commits.handle,
            coordinator_pb2.OffsetFetchRequest: self._offsets.fetch,
            coordinator_pb2.OffsetDeleteRequest: self._offsets.delete,
            coordinator_pb2.DescribeGroupsRequest: self._queries.describe,
            coordinator_pb2.ListGroupsRequest: self._queries.list,
            coordinator_pb2.DeleteGroupsRequest: self._queries.delete,
            coordinator_pb2.GroupHistoryRequest: self._queries.history,
            AlterGroupSettingsRequest: SettingsChanges(context, self._conversions, self._targets).alter,
            ConvertGroupRequest: KindChanges(context, self._conversions, reversions).convert,
            incremental_pb2.ConsumerGroupHeartbeatRequest: self._incremental.handle,
            incremental_pb2.ConsumerGroupDescribeRequest: self._descriptions.describe,
        }

    @property
    def groups(self) -> GroupTable:
        """The groups by id, to be read only."""
        return self._context.groups

    def put_groups_in_order(self) -> bool:
        """Puts some thousand ids of groups in order, as lists of groups need it; returns whether all are."""
        return self._context.groups.put_in_order()

    def live_in(self, room: Room) -> None:
        """Sets the process around it, whose limits count too; without one only the shard's own count."""
        self._context.live_in(room)

    @property
    def held_bytes(self) -> int:
        """About what its groups hold in memory, with the records that are on their way to the log."""
        return self._context.holdings.bytes

    def weigh(self) -> int:
        """What its groups hold, also during its load, when all of them are looked at."""
        return self.held_bytes or sum([group.weight_bytes for group in self.groups.values()])

    @property
    def streams(self) -> int:
        """Number of session streams with members of this shard."""
        return len(self._context.streams.keys() | self._stream_members.streams)

    @property
    def quarantine(self) -> Quarantine:
        """The groups in quarantine."""
        return self._context.quarantine

    @property
    def features(self) -> frozenset[Feature]:
        """What the cluster has enabled."""
        return self._context.features

    @property
    def config(self) -> GroupConfig:
        """Limits and times."""
        return self._context.config

    @property
    def failed_record(self) -> tuple[Position, records_pb2.Record] | None:
        """The record that made a replay raise; None: none did."""
        return self._context.application.failed

    @property
    def blamed(self) -> str:
        """The group that was being worked on when a method raised; empty: none in particular.

        The state is half changed then: it must be dropped, and loaded again from the log.
        """
        context = self._context
        for work in (context.purgatory.wheel.failed, context.working_on):
            if work is not None and work.group_id:
                return work.group_id
        match self._event:
            case Request(message=message):
                named = groups_of(message)
                return named[0] if len(named) == 1 else ""
            case Attach(request=request) | Detach(request=request):
                return request.group_id
            case _:
                failed = context.application.failed
                return "" if failed is None else group_of(failed[1])

    @property
    def open_calls(self) -> int:
        """Number of calls that wait for their answer."""
        return len(self._context.calls)

    @property
    def skipped_records(self) -> int:
        """Number of records of an unknown kind that the load passed over."""
        return self._context.application.skipped

    def restore(self) -> SnapshotReader:
        """Returns what reads a snapshot into the shard, which must be fresh, before records are replayed."""
        length = self._context.config.history_length
        return SnapshotReader(self.number, self._context.groups, length, self._deletions.restore)

    @property
    def catalog_place(self) -> Position:
        """Up to where in the catalog's log deletions were carried out; nowhere: the log does not say."""
        return self._context.application.catalog_place

    @property
    def incarnations(self) -> tuple[tuple[str, int], ...]:
        """Of the topics that offsets and assignments belong to, by name, in order, as far as known."""
        return tuple(sorted(self._context.application.incarnations.items()))

    @property
    def removed(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Numbers of partitions that were removed, as far as the log says, by topic, in order."""
        known = self._context.application.removed
        return tuple((topic, tuple(sorted(numbers))) for topic, numbers in sorted(known.items()))

    def replay(self, position: Position, record: records_pb2.Record) -> None:
        """Takes over a record of the log, in order, while loading.

        Raises:
            UnknownCriticalRecord: this version must not serve the shard.
            IllegalTransition, KeyError, ValueError: the record contradicts those before it.
        """
        self._context.application.apply(position, record)

    def replay_as(self, kind: str, position: Position, record: records_pb2.Record) -> None:
        """Takes over a record whose kind the caller has looked up; empty: this version does not know it.

        Raises:
            UnknownCriticalRecord, IllegalTransition, KeyError, ValueError: as `replay`.
        """
        self._context.application.apply_as(kind, position, record)

    def replay_commits(self, rows: Iterable[CommittedRow]) -> None:
        """Takes over commits that follow each other."""
        self._context.application.apply_commits(rows)

    def replay_run(self, run: RecordRun) -> None:
        """Takes over many records of one epoch.

        Raises:
            UnknownCriticalRecord, IllegalTransition, KeyError, ValueError: as `replay`.
        """
        self._context.application.apply_run(run)

    def loaded(self, epoch: int, now: Now, features: frozenset[Feature]) -> Effects:
        """Begins to serve: full sessions for everybody, and what the last owner had begun is finished.

        Args:
            epoch: epoch of the ownership.
            now: the time.
            features: what the cluster has enabled.
        """
        self._context.epoch = epoch
        self._context.features = features
        self._context.begin_turn(now)
        self._context.purgatory.move_clock(now.boot_ms)
        self._retention.start()
        self._context.application.counts_in = self._context.holdings
        self._context.application.on_incremental = self._incremental.changed
        self._tenure.begin()
        return self._end()

    def handle(self, event: Event, now: Now) -> Effects:
        """Plays one event.

        Args:
            event: what happened.
            now: when; what has come due by then happens first. Not before a suspension or an unload: nobody
                knows what the members said while this process could not hear them.

        Returns:
            What the driver has to do.
        """
        context = self._context
        context.begin_turn(now)
        self._event = event
        if self._tenure.suspended or type(event) in _ENDS:
            context.purgatory.move_clock(now.boot_ms)
        else:
            context.purgatory.advance(now.boot_ms)
            self._deadlines.remove_silent()
        self._events[type(event)](event)
        return self._end()

    def _end(self) -> Effects:
        context = self._context
        if self._tenure.suspended:
            return context.effects  # what changed is told when the lease is held again (INC-90)
        self._incremental.end_turn()
        context.tell_news()
        if not self._tenure.unloaded:
            deadline_ms = context.purgatory.wheel.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= context.now.boot_ms:  # a delay of 0
                context.purgatory.advance(context.now.boot_ms)
                self._deadlines.remove_silent()
                self._stream_members.tell()
                deadline_ms = context.purgatory.wheel.next_deadline_ms()
            context.effects.next_deadline_ms = (
                context.now.boot_ms if context.lines.is_gathering else deadline_ms
            )
        return context.effects

    # --- events

    def _request(self, call: Request) -> None:
        context = self._context
        context.calls[call.call_id] = context.arrived = call
        if self._tenure.unloaded:
            context.refuse(call.call_id, error_code.NOT_COORDINATOR, MOVED, self._tenure.successor)
        elif self._tenure.suspended:
            context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, SUSPENDED)
        elif context.quarantine.groups and self._is_held(call.message):
            context.refuse(call.call_id, error_code.GROUP_QUARANTINED, IN_QUARANTINE)
        else:
            self._route(call)

    def _is_held(self, message: GroupRequest) -> bool:
        """Whether a call is refused because of the one group that it is about; batches look at each."""
        return getattr(message, "group_id", "") in self._context.quarantine.groups

    def _route(self, call: Request) -> None:
        """Plays a call, at once or after it waited in line."""
        fault = fault_of_identity(self._context.groups, call)
        if fault is not None:
            request: Any = call.message
            who = request.member_id or request.group_instance_id
            self._context.room.foreign(request.group_id, who, call.identity, call.host)
            self._context.refuse(call.call_id, fault, NOT_YOURS)
        else:
            self._requests[type(call.message)](call, call.message)

    def _cancelled(self, event: Cancelled) -> None:
        call = self._context.calls.pop(event.call_id, None)
        if call is None or not isinstance(
            call.message, coordinator_pb2.JoinGroupRequest | coordinator_pb2.SyncGroupRequest
        ):
            return
        group = self._context.working_on = self._context.groups.get(call.message.group_id)
        message = call.message
        member = group.member_of(message.member_id, message.group_instance_id) if group is not None else None
        if group is None or member is None:
            return
        if member.join_call == event.call_id:
            group.unpark_join(member)
            self._rebalancer.touch(group, member)
        elif member.sync_call == event.call_id:
            member.sync_call = None
            self._rebalancer.touch(group, member)

    def _append_done(self, event: AppendDone) -> None:
        if not self._tenure.unloaded:
            seen = self._context.application.catalog_place
            self._context.append_done(event.append_id, event.position)
            if self._context.application.catalog_place != seen:
                self._incremental.take_what_was_deleted()

    def _detach(self, event: Detach) -> None:
        self._streams.detach(event)
        self._stream_members.detach(event.stream_id, event.request.group_id, event.request.member_id)

    def _beat(self, event: Beat) -> None:
        self._streams.beat(event)
        self._stream_members.beat(event)

    def _stream_broken(self, event: StreamBroken) -> None:
        self._streams.broken(event)
        self._stream_members.broken(event)

    def _features_enabled(self, event: FeaturesEnabled) -> None:
        self._context.features |= event.features
        for group in self._context.groups.values():
            self._conversions.follow(group)

    def _topics_changed(self, event: TopicsChanged) -> None:
        topics = event.topics | event.weighed_since(self._context.catalog)
        self._context.working_on = None
        for group in [
            one
            for one in self._context.groups.peopled()
            if one.incremental is not None or not event.topics.isdisjoint(one.subscribed_topics or ())
        ]:
            self._context.working_on = group
            self._incremental.look_again(group, topics)
            changed = sorted(topic for topic in event.topics if topic in (group.subscribed_topics or ()))
            if changed and group.members:
                cause = causes.topics_changed(changed, self._context.now.wall_ms)
                self._context.lines.in_line(group, partial(self._rebalancer.prepare_anew, group, cause))
        self._deletions.carry_out(event)
        self._removed_partitions.carry_out()
        self._incremental.tend()
