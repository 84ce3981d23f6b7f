"""OffsetCommit: what a member, or somebody from outside, wants to be stored of its progress."""

from functools import partial

from muster_protos.limits import topic_of
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import OffsetCommitRequest, OffsetCommitResponse

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.incremental.commits import (
    fault_of_commit,
    is_classic,
    judge_of,
    judge_of_reverted,
    names_tokens,
)
from muster_core.protocol.offsets.commit_bounds import CommitBounds
from muster_core.protocol.offsets.commit_records import CommitRecords, CommitTooLarge
from muster_core.protocol.topics.topic_deletions import TopicDeletions
from muster_core.record_bounds import utf8_bytes
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.holdings import END_BYTES
from muster_core.state.members.member import Member

_NO_GROUP = "there is no such group"
_OTHER_COMMIT = (
    "a commit with this member_seq was stored without some partitions: commit these under a new one"
)
_SUPERSEDED = "the member has committed again since: member_seq is lower than that of its last commit"

_RetryKey = tuple[str, str, int]
"""Group, member and number of a commit."""


class OffsetCommits:
    """Handles OffsetCommit.

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

    def on_their_way(self, group: Group) -> bool:
        """Whether the log is about to know commits of the group."""
        return self._bounds.on_their_way(group.group_id)

    def handle(self, call: Request, request: OffsetCommitRequest) -> None:
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
            full = self._context.bounds.too_many_groups()
            if full:
                self._context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, full)
                return
            self._store(call, request, None)
            return
        lines = self._context.lines
        in_line = lines.commit_in_line if _is_of_a_member(group, request) else lines.call_in_line
        if in_line(group, call):
            return
        if group.incremental is not None or request.HasField("member_epoch"):
            self._commit_incremental(call, request, group)
            return
        member_id = self._context.proven_id(group, request, call)
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
        """A commit in an incremental group; it prolongs no session there (conformance TM-03)."""
        epoch = request.member_epoch if request.HasField("member_epoch") else request.generation
        member_id = self._context.proven_id(group, request, call)
        classic = is_classic(group.incremental, request)
        fault = fault_of_commit(group, member_id, epoch, by_token=names_tokens(request), classic=classic)
        if fault is not None:
            self._refuse_known(call, request, fault)
            return
        known = group.members if group.incremental is None else group.incremental.members
        member = known.get(request.member_id)
        if member is None:
            self._store(call, request, None)
            return
        if isinstance(member, Member):  # of a group that is classic again
            self._rebalancer.touch(group, member)
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
        if grows_bytes and (full := self._context.bounds.too_much(grows_bytes, at_work=True)):
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
        if group.state is GroupState.COMPLETING_REBALANCE or group.reverted:
            return error_code.REBALANCE_IN_PROGRESS  # where it was incremental, tokens say what counts
        return None

    def _store(
        self,
        call: Request,
        request: OffsetCommitRequest,
        member: Member | None,
        *,
        from_member: bool = False,
    ) -> None:
        # Ids that come from outside were not checked (OC-04) and say nothing.
        known = member is not None or from_member
        new = partial(self._record, request, known, from_member and names_tokens(request))
        commit = CommitRecords(new, self._context.config.commit_max_bytes)
        try:
            # Decided now: the catalog may be another one when the commit is stored.
            response = self._answer(request, commit)
        except CommitTooLarge:
            text = self._bounds.too_large()
            self._context.refuse(call.call_id, error_code.INVALID_COMMIT_OFFSET_SIZE, text)
            return
        if not commit.count:
            self._context.reply(call.call_id, response)
            return
        if (excess := self._bounds.excess(commit, at_work=known)) is not None:
            self._context.refuse(call.call_id, *excess)
            return
        retry_key = _retry_key(request)
        if known and request.member_seq:
            if member is not None:
                member.accepted_commit_seq = request.member_seq
            self._in_flight[retry_key] = [call.call_id]
        size = self._bounds.opened(commit)
        answer = partial(self._stored, call, request, retry_key, response, size)
        self._deletions.note_before(topic_of(topic.name) for topic in request.topics)
        self._context.append(
            commit.records, answer, calls=[call.call_id], overdue=partial(self._overdue, retry_key)
        )

    def _record(self, request: OffsetCommitRequest, known: bool, by_token: bool) -> records_pb2.Record:
        """A record of a commit, without offsets."""
        record = self._context.record()
        commit = record.offset_committed
        commit.group_id = request.group_id
        commit.generation = request.member_epoch if request.HasField("member_epoch") else request.generation
        commit.by_token = by_token
        commit.member_id = request.member_id if known else ""
        commit.member_seq = request.member_seq if known else 0
        if request.retention_ms > 0:
            commit.expire_at_ms = self._context.now.wall_ms + request.retention_ms
        return record

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
        self, request: OffsetCommitRequest, commit: CommitRecords | None = None
    ) -> OffsetCommitResponse:
        """What becomes of each partition; those that are well are written to the commit."""
        response = OffsetCommitResponse(shard_epoch=self._context.epoch)
        group = self._context.groups.get(request.group_id)
        from_member = request.generation >= 0 or request.HasField("member_epoch")
        renewed = group.renewed_topics if group is not None and from_member else frozenset()
        judge = None
        if group is not None and group.reverted and names_tokens(request):
            judge = judge_of_reverted(group, request.member_id)
        elif group is not None and group.incremental is not None:
            by_token = names_tokens(request)
            deleted = frozenset[str]().union(*self._context.deletions)
            classic = is_classic(group.incremental, request)
            judge = judge_of(
                group.incremental, request.member_id, deleted, by_token=by_token, classic=classic
            )
        knows_all = request.HasField("member_epoch") or judge is not None
        limit_bytes = self._context.config.offset_metadata_max_bytes
        for topic in request.topics:
            name, name_bytes = topic.name, utf8_bytes(topic.name)
            answered = response.topics.add()
            answered.name = name
            add_outcome = answered.partitions.add
            about = topic_of(name) if judge is not None else name
            count = self._context.catalog.partitions.get(about)
            removed = self._context.catalog.removed_of(name)
            gone = topic_of(name) in renewed  # what its members work at is of the topic that was deleted
            for entry in topic.partitions:
                code = error_code.NONE
                partition, metadata = entry.partition, entry.metadata
                metadata_bytes = utf8_bytes(metadata) if metadata else 0
                if metadata_bytes > limit_bytes:
                    code = error_code.OFFSET_METADATA_TOO_LARGE
                elif partition in removed:
                    code = error_code.UNKNOWN_TOPIC_OR_PARTITION
                elif gone or (partition >= count if count is not None else knows_all):
                    code = error_code.UNKNOWN_TOPIC_OR_PARTITION
                    # Whoever was given a partition may know of it before this coordinator does.
                    if not gone and group is not None and group.owner_of((about, partition)):
                        code = error_code.NONE
                if judge is not None and not code:
                    code = judge((about, partition), entry)
                # To set fields takes less time than to give them to `add`: there may be ten thousand.
                outcome = add_outcome()
                outcome.partition, outcome.error_code = partition, code
                if commit is not None and not code:
                    stored = commit.place_of(name_bytes + metadata_bytes).add()
                    stored.topic, stored.partition, stored.offset = name, partition, entry.offset
                    stored.leader_epoch, stored.metadata = entry.leader_epoch, metadata
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


def _is_of_a_member(group: Group, request: OffsetCommitRequest) -> bool:
    """Whether a commit names a member: then it is judged by what that was given, which is in the log."""
    member_id, incremental = request.member_id, group.incremental
    return member_id in group.members or (incremental is not None and member_id in incremental.members)


def _retry_key(request: OffsetCommitRequest) -> _RetryKey:
    return (request.group_id, request.member_id, request.member_seq)
