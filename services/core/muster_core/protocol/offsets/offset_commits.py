"""OffsetCommit: what a member, or somebody from outside, wants to be stored of its progress."""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from muster_protos.limits import topic_of
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import OffsetCommitRequest, OffsetCommitResponse

from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.incremental.commits import fault_of_commit, is_classic
from muster_core.protocol.offsets.commit_bounds import NOTHING, CommitBounds, CommitSize
from muster_core.protocol.offsets.commit_outcomes import CommitOutcomes, is_large, names_tokens, portions
from muster_core.protocol.offsets.commit_records import CommitRecords, CommitTooLarge
from muster_core.protocol.responses import text_of
from muster_core.protocol.topics.topic_deletions import TopicDeletions
from muster_core.record_bounds import utf8_bytes
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.holdings import END_BYTES
from muster_core.state.members.member import Member
from muster_core.state.published import TopicPartition

_NO_GROUP = "there is no such group"
_OTHER_COMMIT = (
    "a commit with this member_seq was stored without some partitions: commit these under a new one"
)
_SUPERSEDED = "the member has committed again since: member_seq is lower than that of its last commit"

_TRIES: Final = 3
"""So often a commit is decided on in several turns when topics change between them; then at a stretch."""

_RetryKey = tuple[str, str, int]
"""Group, member and number of a commit."""


class _Topics(NamedTuple):
    """What a commit is judged by that may change while its group waits.

    Attributes:
        catalog: the topics.
        deleted: those whose deletion the log is about to know.
        renewed: those of the group that were deleted since its assignment.
    """

    catalog: Catalog
    deleted: Sequence[frozenset[str]]
    renewed: frozenset[str]

    def are(self, before: "_Topics") -> bool:
        """Whether they are as they were before."""
        return self.catalog is before.catalog and self[1:] == before[1:]


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
        self._outcomes = CommitOutcomes(context)

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
            self._commit_first(call, request)
            return
        lines = self._context.lines
        in_line = lines.commit_in_line if _is_of_a_member(group, request) else lines.call_in_line
        if in_line(group, call):
            return
        if group.line.in_turns and is_large(request):  # what has its turns there changes the group
            lines.commit_later(group, call, partial(lines.route, call.call_id))
        else:
            self._decide(call, group, partial(self._looked_at, call, request, group))

    def _commit_first(self, call: Request, request: OffsetCommitRequest) -> None:
        """A commit to a group that does not exist."""
        context = self._context
        group = Group(request.group_id, context.now.wall_ms, context.config.history_length)
        look = partial(self._store, call, request, None)
        large = is_large(request)
        if request.HasField("member_epoch") and request.member_epoch >= 0:
            look = partial(self._refuse_known, call, request, error_code.GROUP_ID_NOT_FOUND)
        elif request.generation >= 0 and not request.HasField("member_epoch"):
            look = partial(self._refuse, call, request, error_code.ILLEGAL_GENERATION, _NO_GROUP)
        elif full := context.too_many_new_groups() if large else context.bounds.too_many_groups():
            look = partial(self._refuse, call, request, error_code.COORDINATOR_NOT_AVAILABLE, full)
        elif large:
            context.add_unstored(group)  # commits that come between the turns of this one wait there
            look = partial(self._store_first, call, request, group)
        self._decide(call, group, look)

    def _decide(
        self, call: Request, group: Group, look: Callable[[], Iterator[None]], tries: int = _TRIES
    ) -> None:
        """Decides on a commit, in several turns where it names much; its group waits meanwhile (LIM-71).

        Args:
            call: the call.
            group: its group, or one that there is not.
            look: looks at the commit and does what follows; yields when others should have their turn.
            tries: how often that is begun again where the topics have changed meanwhile.
        """
        looking = look()
        for _ in looking:
            if tries:
                self._decide_on(call, group, look, looking, tries)
                return

    def _decide_on(
        self,
        call: Request,
        group: Group,
        look: Callable[[], Iterator[None]],
        looking: Iterator[None],
        tries: int,
    ) -> None:
        """Goes on with a decision after pauses."""
        topics = self._topics(group)

        def go_on() -> None:
            if call.call_id not in self._context.calls:  # nobody waits for it any more
                self._forget_unstored(group)
            elif not self._topics(group).are(topics):
                self._decide(call, group, look, tries - 1)
            else:
                for _ in looking:
                    self._context.lines.commit_later(group, call, go_on)
                    return

        self._context.lines.commit_later(group, call, go_on)

    def _store_first(self, call: Request, request: OffsetCommitRequest, group: Group) -> Iterator[None]:
        """Stores a commit that its group was made for."""
        yield from self._store(call, request, None)
        self._forget_unstored(group)

    def _forget_unstored(self, group: Group) -> None:
        """Drops a group that was made for a commit which is not stored after all."""
        if self._context.groups.get(group.group_id) is group and not self.on_their_way(group):
            self._context.forget_unstored(group)

    def _topics(self, group: Group) -> _Topics:
        context = self._context
        return _Topics(context.catalog, tuple(context.deletions), group.renewed_topics)

    def _looked_at(self, call: Request, request: OffsetCommitRequest, group: Group) -> Iterator[None]:
        by_epoch = group.incremental is not None or request.HasField("member_epoch")
        by_token = (by_epoch or group.reverted) and (yield from names_tokens(request))
        if by_epoch:
            yield from self._commit_incremental(call, request, group, by_token)
            return
        member_id = self._context.proven_id(group, request, call)
        fault = self._fault(group, request, member_id)
        if fault is not None:
            yield from self._refuse(call, request, fault)
            return
        member = group.members.get(member_id)
        if member is None:
            yield from self._store(call, request, None, by_token=by_token)
            return
        self._rebalancer.touch(group, member)
        if request.ends and (full := (yield from self._note_ends(group, request))):
            yield from self._refuse(call, request, error_code.COORDINATOR_NOT_AVAILABLE, full)
            return
        seqs = member.commit_seq, member.accepted_commit_seq
        if not request.member_seq or not (yield from self._is_known(call, request, *seqs, by_token)):
            yield from self._store(call, request, member, by_token=by_token)

    def _commit_incremental(
        self, call: Request, request: OffsetCommitRequest, group: Group, by_token: bool
    ) -> Iterator[None]:
        """A commit in an incremental group; it prolongs no session there (conformance TM-03)."""
        epoch = request.member_epoch if request.HasField("member_epoch") else request.generation
        member_id = self._context.proven_id(group, request, call)
        classic = is_classic(group.incremental, request, by_token=by_token)
        fault = fault_of_commit(group, member_id, epoch, by_token=by_token, classic=classic)
        if fault is not None:
            yield from self._refuse_known(call, request, fault, by_token)
            return
        known = group.members if group.incremental is None else group.incremental.members
        member = known.get(request.member_id)
        if member is None:
            yield from self._store(call, request, None, by_token=by_token)
            return
        if isinstance(member, Member):  # of a group that is classic again
            self._rebalancer.touch(group, member)
        if request.ends and (full := (yield from self._note_ends(group, request))):
            yield from self._refuse(call, request, error_code.COORDINATOR_NOT_AVAILABLE, full)
            return
        of_member = (group.group_id, member.member_id)
        accepted = max((key[2] for key in self._in_flight if key[:2] == of_member), default=0)
        seqs = member.commit_seq, accepted
        if not request.member_seq or not (yield from self._is_known(call, request, *seqs, by_token)):
            yield from self._store(call, request, None, from_member=True, by_token=by_token)

    def _refuse(
        self, call: Request, request: OffsetCommitRequest, code: ErrorCode, text: str = ""
    ) -> Iterator[None]:
        """Refuses a commit for each of its partitions (conformance OC-15)."""
        response = self._response()
        response.error_code, response.error_message = code, text or text_of(code)
        yield from self._outcomes.refuse(request, response, code)
        self._context.reply(call.call_id, response)

    def _refuse_known(
        self, call: Request, request: OffsetCommitRequest, code: ErrorCode, by_token: bool = False
    ) -> Iterator[None]:
        """Refuses a commit of partitions that there are; the others are unknown, as in Kafka."""
        response = self._response()
        all_known = yield from self._outcomes.look(request, response, by_token, refused=code)
        if all_known:
            response.error_code = code
        self._context.reply(call.call_id, response)

    def _note_ends(self, group: Group, request: OffsetCommitRequest) -> Generator[None, None, str]:
        """Notes ends of what the member owns; returns why there is no room for them, or an empty text."""
        owned: dict[TopicPartition, int] = {}
        for topic, entries in portions(request.ends):
            if entries is None:
                yield
                continue
            name = topic.name
            if name in group.renewed_topics:
                continue  # what it works at is of the topic that was deleted
            for entry in entries:
                if group.owner_of((name, entry.partition)) == request.member_id:
                    owned[name, entry.partition] = entry.end
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
        self,
        call: Request,
        request: OffsetCommitRequest,
        stored_seq: int,
        accepted_seq: int,
        by_token: bool,
    ) -> Generator[None, None, bool]:
        """Answers a commit whose number is not above all that the member's commits had; False: it is."""
        in_flight = self._in_flight.get(_retry_key(request))
        if in_flight is not None:
            in_flight.append(call.call_id)  # a retry of a commit that is on its way: answered with it
        elif request.member_seq == stored_seq:
            yield from self._answer_to_retry(call, request, by_token)
        elif request.member_seq < max(stored_seq, accepted_seq):
            yield from self._refuse(call, request, error_code.INVALID_REQUEST, _SUPERSEDED)
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
        by_token: bool = False,
    ) -> Iterator[None]:
        # Ids that come from outside were not checked (OC-04) and say nothing.
        known = member is not None or from_member
        new = partial(self._record, request, known, from_member and by_token)
        commit = CommitRecords(new, self._context.config.commit_max_bytes)
        response = self._response()
        try:
            # Decided now: the catalog may be another one when the commit is stored.
            yield from self._outcomes.look(request, response, by_token, commit)
        except CommitTooLarge:
            text = self._bounds.too_large()
            yield from self._refuse(call, request, error_code.INVALID_COMMIT_OFFSET_SIZE, text)
            return
        if not commit.count:
            self._context.reply(call.call_id, response)
            return
        if (excess := self._bounds.excess(commit, at_work=known)) is not None:
            yield from self._refuse(call, request, *excess)
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
            commit.records,
            answer,
            calls=[call.call_id],
            overdue=partial(self._overdue, retry_key),
            step_bytes=0,  # each record is a part, however few bytes its numbers have
            before=partial(self._part_comes, request.group_id, size),
        )

    def _part_comes(self, group_id: str, size: CommitSize, records: Sequence[records_pb2.Record]) -> None:
        """Keeps what fetches see until all of a large commit is carried out, and counts a part no longer."""
        group = self._context.groups.get(group_id)
        table = NOTHING.table if group is None else group.offsets.table
        places = [
            (entry.topic, entry.partition) for record in records for entry in record.offset_committed.offsets
        ]
        seen = self._context.arriving.setdefault(group_id, {})
        for place in places:
            seen.setdefault(place, table.get(place))
        self._bounds.part_closed(group_id, size, len(places))

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
        size: CommitSize,
    ) -> None:
        self._bounds.closed(request.group_id, size)
        self._context.arriving.pop(request.group_id, None)
        for call_id in self._in_flight.pop(retry_key, [call.call_id]):
            self._context.reply(call_id, answer)

    def _overdue(self, retry_key: _RetryKey) -> None:
        waiting = self._in_flight.get(retry_key, [])
        for call_id in waiting:
            self._context.refuse(
                call_id, error_code.COORDINATOR_NOT_AVAILABLE, "the log is slow; the commit may land"
            )
        waiting.clear()

    def _response(self) -> OffsetCommitResponse:
        return OffsetCommitResponse(shard_epoch=self._context.epoch)

    def _answer_to_retry(self, call: Request, request: OffsetCommitRequest, by_token: bool) -> Iterator[None]:
        """Says what became of a commit whose number is stored: nothing is well that was refused then."""
        response = self._response()
        yield from self._outcomes.look(request, response, by_token)
        offsets = self._context.groups[request.group_id].offsets
        outcomes = (outcome for topic in response.topics for outcome in topic.partitions)
        for topic, entries in portions(request.topics):
            if entries is None:
                yield
                continue
            name = topic.name
            for entry, outcome in zip(entries, outcomes, strict=False):
                found = offsets.get((name, entry.partition))
                if found is not None and found[:3] == (entry.offset, entry.leader_epoch, entry.metadata):
                    outcome.error_code = error_code.NONE
                elif not outcome.error_code:
                    outcome.error_code = error_code.UNKNOWN_TOPIC_OR_PARTITION
                    response.error_message = _OTHER_COMMIT
        self._context.reply(call.call_id, response)


def _is_of_a_member(group: Group, request: OffsetCommitRequest) -> bool:
    """Whether a commit names a member: then it is judged by what that was given, which is in the log."""
    member_id, incremental = request.member_id, group.incremental
    return member_id in group.members or (incremental is not None and member_id in incremental.members)


def _retry_key(request: OffsetCommitRequest) -> _RetryKey:
    return (request.group_id, request.member_id, request.member_seq)
