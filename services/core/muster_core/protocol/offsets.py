"""OffsetCommit, OffsetFetch, OffsetDelete and the expiry of offsets and groups."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from muster_protos.limits import PARKED_PREFIX, topic_of
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.incremental.target import subscribed_topics
from muster_core.protocol.commit_bounds import NOTHING, CommitBounds
from muster_core.protocol.context import IN_QUARANTINE, ShardContext
from muster_core.protocol.incremental.commits import fault_of_commit, fault_of_fetch
from muster_core.protocol.rebalance import Rebalancer
from muster_core.protocol.tombstones import offset_tombstones
from muster_core.protocol.topic_deletions import TopicDeletions
from muster_core.record_bounds import (
    APPEND_MAX_BYTES,
    RECORD_MAX_BYTES,
    RECORD_PART_BYTES,
    in_appends,
    utf8_bytes,
)
from muster_core.state.group import CONSUMER, Group
from muster_core.state.group_state import GroupState
from muster_core.state.holdings import END_BYTES
from muster_core.state.member import Member
from muster_core.state.offset_store import CommittedOffset
from muster_core.state.published import TopicPartition

_NO_GROUP = "there is no such group"

PAGE_BYTES = 1 << 18
"""A page of offsets ends when their metadata strings have so many characters."""
_OTHER_COMMIT = (
    "a commit with this member_seq was stored without some partitions: commit these under a new one"
)
_SUPERSEDED = "the member has committed again since: member_seq is lower than that of its last commit"


PORTION = 10_000
"""Offsets that a search for expired ones looks at before others have their turn."""

_SURELY_SMALL = 100
"""A commit of so many partitions fits into a record, whatever their names and metadata."""

_RetryKey = tuple[str, str, int]
"""Group, member and number of a commit."""


class Offsets:
    """Handles what concerns progress.

    Args:
        context: the shard.
        rebalancer: prolongs sessions.
        deletions: of topics.
    """

    def __init__(self, context: ShardContext, rebalancer: Rebalancer, deletions: TopicDeletions) -> None:
        self._context = context
        self._rebalancer = rebalancer
        self._deletions = deletions
        self._in_flight: dict[_RetryKey, list[int]] = {}
        self._bounds = CommitBounds(context)

    # --- OffsetCommit

    def commit(self, call: Request, request: OffsetCommitRequest) -> None:
        """Answers when the log has the commit."""
        if request.HasField("member_epoch") and Feature.INCREMENTAL_GROUPS not in self._context.features:
            text = f"member_epoch needs the feature {Feature.INCREMENTAL_GROUPS}"
            self._context.refuse(call.call_id, error_code.UNSUPPORTED_VERSION, text)
            return
        group = self._context.groups.get(request.group_id)
        if group is None:
            if request.HasField("member_epoch") and request.member_epoch >= 0:
                self._refuse_known(call, request, error_code.GROUP_ID_NOT_FOUND)
                return
            if request.generation >= 0 and not request.HasField("member_epoch"):
                self._context.refuse(call.call_id, error_code.ILLEGAL_GENERATION, _NO_GROUP)
                return
            full = self._context.too_many_groups()
            if full:
                self._context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, full)
                return
            self._store(call, request, None)
            return
        if self._context.call_in_line(group, call):
            return
        if group.incremental is not None or request.HasField("member_epoch"):
            self._commit_incremental(call, request, group)
            return
        member_id = self._context.proven_id(group, request, call.host)
        fault = self._fault(group, request, member_id)
        if fault is not None:
            self._context.refuse(call.call_id, fault)
            return
        member = group.members.get(member_id)
        if member is None:
            self._store(call, request, None)
            return
        self._rebalancer.touch(group, member)
        if request.ends and (full := self._note_ends(group, request)):
            self._context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, full)
            return
        seqs = member.commit_seq, member.accepted_commit_seq
        if not request.member_seq or not self._is_known(call, request, *seqs):
            self._store(call, request, member)

    def _commit_incremental(self, call: Request, request: OffsetCommitRequest, group: Group) -> None:
        """A commit in an incremental group; it prolongs no session (conformance TM-03)."""
        epoch = request.member_epoch if request.HasField("member_epoch") else request.generation
        fault = fault_of_commit(group, request.member_id, epoch)
        if fault is not None:
            self._refuse_known(call, request, fault)
            return
        incremental = group.incremental
        member = None if incremental is None else incremental.members.get(request.member_id)
        if member is None:
            self._store(call, request, None)
            return
        if request.ends and (full := self._note_ends(group, request)):
            self._context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, full)
            return
        of_member = (group.group_id, member.member_id)
        accepted = max((key[2] for key in self._in_flight if key[:2] == of_member), default=0)
        if not request.member_seq or not self._is_known(call, request, member.commit_seq, accepted):
            self._store(call, request, None, from_member=True)

    def _refuse_known(self, call: Request, request: OffsetCommitRequest, code: ErrorCode) -> None:
        """Refuses a commit of partitions that there are; the others are unknown, as in Kafka."""
        response = self._answer(request)
        unknown = error_code.UNKNOWN_TOPIC_OR_PARTITION
        outcomes = [outcome for topic in response.topics for outcome in topic.partitions]
        for outcome in outcomes:
            if outcome.error_code != unknown:
                outcome.error_code = code
        if all(outcome.error_code == code for outcome in outcomes):
            response.error_code = code
        self._context.reply(call.call_id, response)

    def _note_ends(self, group: Group, request: OffsetCommitRequest) -> str:
        """Notes ends of what the member owns; returns why there is no room for them, or an empty text."""
        reported = {
            (topic.name, entry.partition): entry.end for topic in request.ends for entry in topic.partitions
        }
        owned = {
            partition: end
            for partition, end in reported.items()
            if group.owner_of(partition) == request.member_id
            and partition[0] not in group.renewed_topics  # what it works at is of the topic that was deleted
        }
        grows_bytes = sum(
            END_BYTES + utf8_bytes(topic)
            for topic, number in owned
            if group.ends.get((topic, number)) is None
        )
        if grows_bytes and (full := self._context.too_much(grows_bytes, at_work=True)):
            return full
        for partition, end in owned.items():
            group.ends.put(partition, end)
        group.weigh()
        return ""

    def _is_known(
        self, call: Request, request: OffsetCommitRequest, stored_seq: int, accepted_seq: int
    ) -> bool:
        """Answers a commit whose number is not above all that the member's commits had; False: it is."""
        in_flight = self._in_flight.get(_retry_key(request))
        if in_flight is not None:
            in_flight.append(call.call_id)  # a retry of a commit that is on its way: answered with it
        elif request.member_seq == stored_seq:
            self._context.reply(call.call_id, self._answer_to_retry(request))
        elif request.member_seq < max(stored_seq, accepted_seq):
            self._context.refuse(call.call_id, error_code.INVALID_REQUEST, _SUPERSEDED)
        else:
            return False
        return True

    @staticmethod
    def _fault(group: Group, request: OffsetCommitRequest, member_id: str) -> ErrorCode | None:
        """Why the commit is not accepted (conformance OC-03 to OC-13); None: it is."""
        if request.generation < 0 and group.state is GroupState.EMPTY:
            return None  # an operator or a simple consumer
        if request.generation >= 0 or member_id or request.group_instance_id:
            fault = group.fault_of(member_id, request.group_instance_id, request.generation)
            if fault is not None:
                return fault
            if not group.members[member_id].recorded:
                return error_code.ILLEGAL_GENERATION  # in its first join phase: it is in no generation yet
        elif group.state is not GroupState.EMPTY:
            return error_code.UNKNOWN_MEMBER_ID
        if group.state is GroupState.COMPLETING_REBALANCE:
            return error_code.REBALANCE_IN_PROGRESS
        return None

    def _store(
        self,
        call: Request,
        request: OffsetCommitRequest,
        member: Member | None,
        *,
        from_member: bool = False,
    ) -> None:
        record = self._context.record()
        commit = record.offset_committed
        commit.group_id = request.group_id
        commit.generation = request.member_epoch if request.HasField("member_epoch") else request.generation
        # Ids that come from outside were not checked (OC-04) and say nothing.
        known = member is not None or from_member
        commit.member_id = request.member_id if known else ""
        commit.member_seq = request.member_seq if known else 0
        if request.retention_ms > 0:
            commit.expire_at_ms = self._context.now.wall_ms + request.retention_ms
        # Decided now: the catalog may be another one when the commit is stored.
        response = self._answer(request, commit)
        if not commit.offsets:
            self._context.reply(call.call_id, response)
            return
        if (excess := self._bounds.excess(commit, at_work=known)) is not None:
            self._context.refuse(call.call_id, *excess)
            return
        records = _in_parts(record)
        if len(records) > 1 and len(list(in_appends(records))) > 1:
            text = f"the commit takes more than the {APPEND_MAX_BYTES} bytes that the log takes at a time"
            self._context.refuse(call.call_id, error_code.INVALID_REQUEST, text)
            return
        retry_key = _retry_key(request)
        if known and request.member_seq:
            if member is not None:
                member.accepted_commit_seq = request.member_seq
            self._in_flight[retry_key] = [call.call_id]
        size = self._bounds.opened(commit)
        answer = partial(self._stored, call, request, retry_key, response, size)
        self._deletions.note_before(topic_of(topic.name) for topic in request.topics)
        self._context.append(records, answer, calls=[call.call_id], overdue=partial(self._overdue, retry_key))

    def _stored(
        self,
        call: Request,
        request: OffsetCommitRequest,
        retry_key: _RetryKey,
        answer: OffsetCommitResponse,
        size: tuple[int, int],
    ) -> None:
        self._bounds.closed(request.group_id, size)
        for call_id in self._in_flight.pop(retry_key, [call.call_id]):
            self._context.reply(call_id, answer)

    def _overdue(self, retry_key: _RetryKey) -> None:
        waiting = self._in_flight.get(retry_key, [])
        for call_id in waiting:
            self._context.refuse(
                call_id, error_code.COORDINATOR_NOT_AVAILABLE, "the log is slow; the commit may land"
            )
        waiting.clear()

    def _answer(
        self, request: OffsetCommitRequest, commit: records_pb2.OffsetCommitted | None = None
    ) -> OffsetCommitResponse:
        """What becomes of each partition; those that are well are written to the commit."""
        response = OffsetCommitResponse(shard_epoch=self._context.epoch)
        group = self._context.groups.get(request.group_id)
        renewed = group.renewed_topics if group is not None and request.generation >= 0 else frozenset()
        stored = None if commit is None else commit.offsets
        knows_all = request.HasField("member_epoch")
        removed = self._context.catalog.removed_places
        limit_bytes = self._context.config.offset_metadata_max_bytes
        for topic in request.topics:
            name = topic.name
            outcomes = response.topics.add(name=name).partitions
            count = self._context.catalog.partitions.get(name)
            gone = topic_of(name) in renewed  # what its members work at is of the topic that was deleted
            for entry in topic.partitions:
                code = error_code.NONE
                partition, metadata = entry.partition, entry.metadata
                if utf8_bytes(metadata) > limit_bytes:
                    code = error_code.OFFSET_METADATA_TOO_LARGE
                elif (name, partition) in removed:
                    code = error_code.UNKNOWN_TOPIC_OR_PARTITION
                elif gone or (partition >= count if count is not None else knows_all):
                    code = error_code.UNKNOWN_TOPIC_OR_PARTITION
                    # Whoever was given a partition may know of it before this coordinator does.
                    if not gone and group is not None and group.owner_of((name, partition)):
                        code = error_code.NONE
                outcomes.add(partition=partition, error_code=code)
                if stored is not None and not code:
                    stored.add(
                        topic=name,
                        partition=partition,
                        offset=entry.offset,
                        leader_epoch=entry.leader_epoch,
                        metadata=metadata,
                    )
        return response

    def _answer_to_retry(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """What became of a commit whose number is stored: no partition is well that was refused then."""
        response = self._answer(request)
        offsets = self._context.groups[request.group_id].offsets
        for topic, outcomes in zip(request.topics, response.topics, strict=True):
            for entry, outcome in zip(topic.partitions, outcomes.partitions, strict=True):
                found = offsets.get((topic.name, entry.partition))
                if found is not None and found[:3] == (entry.offset, entry.leader_epoch, entry.metadata):
                    outcome.error_code = error_code.NONE
                elif not outcome.error_code:
                    outcome.error_code = error_code.UNKNOWN_TOPIC_OR_PARTITION
                    response.error_message = _OTHER_COMMIT
        return response

    # --- OffsetFetch

    def fetch(self, call: Request, request: OffsetFetchRequest) -> None:
        """Answers from what is acknowledged; the driver has passed the barrier."""
        response = OffsetFetchResponse()
        gone = frozenset[str]().union(*self._context.deletions)  # nobody sees half of a deletion
        removed = self._context.catalog.removed_places
        for asked in request.groups:
            answer = response.groups.add(group_id=asked.group_id, shard_epoch=self._context.epoch)
            group = self._context.groups.get(asked.group_id) or self._context.held.get(asked.group_id)
            self._context.working_on = group
            if asked.group_id in self._context.quarantine.unreadable:
                answer.error_code, answer.error_message = error_code.GROUP_QUARANTINED, IN_QUARANTINE
                continue
            if group is not None and (fault := _fault_of_fetch(group, asked)) is not None:
                answer.error_code = fault
                continue
            if asked.topics:
                offsets = NOTHING if group is None else group.offsets
                named = ((entry.topic, number) for entry in asked.topics for number in entry.partitions)
                for partition in named:
                    hidden = partition[0] in gone or partition in removed
                    end = None if group is None or hidden else group.ends.get(partition)
                    _add_offset(answer, partition, None if hidden else offsets.get(partition), end)
            elif group is not None:
                self._fetch_all(group, asked, answer, gone, removed)
        self._context.reply(call.call_id, response)

    @staticmethod
    def _fetch_all(
        group: Group,
        asked: OffsetFetchRequest.Group,
        answer: OffsetFetchResponse.Group,
        gone: frozenset[str],
        removed: frozenset[TopicPartition],
    ) -> None:
        """Everything in order but what is of topics or partitions that are gone, or as much as a page has.

        That may be nothing yet: then it is asked for again, with the order made further.
        """
        offsets = group.offsets
        while not offsets.put_in_order():
            if asked.limit:
                answer.more = True
                return
        left = asked.limit or len(offsets)
        room_bytes = PAGE_BYTES
        begin = (asked.after_topic, asked.after_partition) if asked.limit and asked.after_topic else None
        for partition in offsets.after(begin):
            if not left or room_bytes <= 0:
                answer.more = True
                return
            if partition[0] in gone or partition in removed:
                continue
            found = offsets.get(partition)
            _add_offset(answer, partition, found, group.ends.get(partition))
            left -= 1
            if asked.limit and found is not None:
                room_bytes -= len(found.metadata)

    # --- OffsetDelete (KIP-496)

    def delete(self, call: Request, request: OffsetDeleteRequest) -> None:
        """Removes offsets of topics that nobody subscribes to."""
        if not request.group_id:
            self._context.refuse(call.call_id, error_code.INVALID_GROUP_ID, "group_id is empty")
            return
        group = self._context.groups.get(request.group_id)
        if group is None:
            self._context.refuse(call.call_id, error_code.GROUP_ID_NOT_FOUND, _NO_GROUP)
            return
        if self._context.call_in_line(group, call):
            return
        if group.members and group.protocol_type != CONSUMER:
            self._context.refuse(call.call_id, error_code.NON_EMPTY_GROUP, "the group has members")
            return
        response = OffsetDeleteResponse(shard_epoch=self._context.epoch)
        removed: list[TopicPartition] = []
        for entry in request.topics:
            is_mark = entry.topic.startswith(PARKED_PREFIX)
            subscribed = group.has_members and not is_mark and group.is_subscribed_to(entry.topic)
            code = error_code.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else error_code.NONE
            outcome = response.topics.add(name=entry.topic)
            for number in entry.partitions:
                outcome.partitions.add(partition=number, error_code=code)
                if not subscribed and group.offsets.get((entry.topic, number)) is not None:
                    removed.append((entry.topic, number))
        answer = partial(self._context.reply, call.call_id, response)
        if removed:
            records = offset_tombstones(self._context, group.group_id, removed, "deleted")
            self._context.append(records, answer, holds=group, calls=[call.call_id])
        else:
            answer()

    # --- expiry (KIP-211)

    def expire(self) -> Iterator[None]:
        """Removes what is older than the retention, then groups that have nothing left (EX-01 to EX-15).

        Yields when others should have their turn (docs/safety.md, LIM-27).
        """
        looked_at = 0
        for group in tuple(self._context.groups.values()):
            partitions = tuple(group.offsets.table)
            for first in range(0, len(partitions) or 1, PORTION):
                some = partitions[first : first + PORTION]
                self._context.working_on = group
                self._context.in_line(group, partial(self._expire_group, group, some))
                looked_at += 1 + len(some)
                if looked_at >= PORTION:
                    yield
                    looked_at = 0

    def on_their_way(self, group: Group) -> bool:
        """Whether the log is about to know commits of the group."""
        return self._bounds.on_their_way(group.group_id)

    def _expire_group(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        if self._context.groups.get(group.group_id) is not group or self.on_their_way(group):
            return  # a tombstone would land after a commit that is on its way, and take it too (EX-10)
        if self._context.forget_unstored(group):
            return
        expired = self._expired(group, partitions)
        records = offset_tombstones(self._context, group.group_id, expired, "expired")
        if group.is_vacant and not group.pending_members and len(expired) == len(group.offsets):
            records.append(self.group_tombstone(group, "expired" if expired else "empty"))
        if records:
            self._context.append(records, lambda: None, holds=group)

    def _expired(self, group: Group, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of the partitions whose offset is older than it may become."""
        now_ms = self._context.now.wall_ms
        oldest_ms = now_ms - self._context.config.offsets_retention_ms
        table = group.offsets.table
        offsets = [(partition, table[partition]) for partition in partitions if partition in table]
        if group.is_vacant and not group.is_simple:
            all_old = group.state_since_ms <= oldest_ms
            return [p for p, at in offsets if (at.expire_at_ms <= now_ms if at.expire_at_ms else all_old)]
        wanted: frozenset[str] | None = frozenset()
        if group.incremental is not None:
            wanted = subscribed_topics(group.incremental)
        elif group.state is GroupState.STABLE and group.protocol_type == CONSUMER:
            wanted = group.subscribed_topics
        elif group.state is not GroupState.EMPTY:
            wanted = None
        if wanted is None:
            return []
        return [
            p
            for p, at in offsets
            if (at.expire_at_ms <= now_ms if at.expire_at_ms else at.committed_at_ms <= oldest_ms)
            and topic_of(p[0]) not in wanted
        ]

    def group_tombstone(self, group: Group, reason: str) -> records_pb2.Record:
        """The record that removes a group, and whatever offsets it has."""
        record = self._context.record()
        record.group_tombstone.CopyFrom(
            records_pb2.GroupTombstone(
                group_id=group.group_id, last_generation=group.generation, reason=reason
            )
        )
        return record


def _in_parts(record: records_pb2.Record) -> list[records_pb2.Record]:
    """A commit as the records that hold it; its number is in the last one, so that it is there once."""
    if len(record.offset_committed.offsets) <= _SURELY_SMALL or record.ByteSize() <= RECORD_MAX_BYTES:
        return [record]
    empty, parts = records_pb2.Record(), list[records_pb2.Record]()
    empty.CopyFrom(record)
    empty.offset_committed.ClearField("offsets")
    empty.offset_committed.member_seq = 0
    size_bytes = RECORD_PART_BYTES
    for entry in record.offset_committed.offsets:
        if size_bytes >= RECORD_PART_BYTES:
            part, size_bytes = records_pb2.Record(), 0
            part.CopyFrom(empty)
            parts.append(part)
        parts[-1].offset_committed.offsets.append(entry)
        size_bytes += entry.ByteSize()
    parts[-1].offset_committed.member_seq = record.offset_committed.member_seq
    return parts


def _retry_key(request: OffsetCommitRequest) -> _RetryKey:
    return (request.group_id, request.member_id, request.member_seq)


def _fault_of_fetch(group: Group, asked: OffsetFetchRequest.Group) -> ErrorCode | None:
    """Why a fetch is refused; only a member of an incremental group says who it is."""
    epoch = asked.member_epoch if asked.HasField("member_epoch") else -1
    return fault_of_fetch(group, asked.member_id if asked.HasField("member_id") else None, epoch)


def _add_offset(
    answer: OffsetFetchResponse.Group,
    partition: TopicPartition,
    found: CommittedOffset | None,
    end: int | None,
) -> None:
    name, number = partition
    if not answer.topics or answer.topics[-1].name != name:
        answer.topics.add(name=name)
    answer.topics[-1].partitions.add(
        partition=number,
        offset=found.offset if found else -1,
        leader_epoch=found.leader_epoch if found else -1,
        metadata=found.metadata if found else "",
        committed_at_ms=found.committed_at_ms if found else 0,
        end=end,
    )
