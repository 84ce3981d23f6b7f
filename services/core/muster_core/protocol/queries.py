"""DescribeGroups, ListGroups, GroupHistory and DeleteGroups: what operators ask and do."""

import heapq
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice

from muster_protos.muster.v1.coordinator_pb2 import (
    GROUP_STATE_DEAD,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupHistoryRequest,
    GroupHistoryResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    PartitionToken,
)

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import MemberRange, Request
from muster_core.incremental.group import IncrementalGroup
from muster_core.position import NOWHERE, Position
from muster_core.protocol.context import ShardContext
from muster_core.protocol.holdups import Holdups
from muster_core.protocol.incremental.descriptions import (
    STATES,
    TOLD_AS_MEMBER,
    Descriptions,
    shown_of,
)
from muster_core.protocol.offsets.offset_commits import OffsetCommits
from muster_core.protocol.offsets.offsets import Offsets
from muster_core.protocol.responses import IN_QUARANTINE
from muster_core.state.group import CONSUMER, Group
from muster_core.state.group_settings import is_any_set
from muster_core.state.group_state import GroupState
from muster_core.state.members.member import Member
from muster_core.state.published import read_assignment

DEFAULT_GENERATIONS = 20
_CLASSIC = "classic"
_QUARANTINED = "quarantined"

KEPT_TOKENS_MAX = 1_000
"""So many tokens that a member kept are described."""

_READ_MAX = 100
"""A leader writes the assignments of all members in one language: so many of them are read to know it."""

_BYTES_AS_MEMBER = 4 << 10
"""So many bytes of a member take about as long to show as all else of it."""

_MOVES_AS_MEMBER = 4
"""So many moves of a generation take about as long to show as one of its members."""

LOOKED_AT_MAX = 1_000
"""So many groups are looked at for a page of them: more take milliseconds."""

HISTORY_MAX_BYTES = 4 << 20
"""Generations that would make a history larger are left out; its newest one never is."""


class Queries:
    """Handles what concerns whole groups.

    Args:
        context: the shard.
        offsets: makes tombstones.
        commits: knows which commits are on their way to the log.
        descriptions: shows incremental groups.
        holdups: shows whom classic groups wait for.
    """

    def __init__(
        self,
        context: ShardContext,
        offsets: Offsets,
        commits: OffsetCommits,
        descriptions: Descriptions,
        holdups: Holdups,
    ) -> None:
        self._context = context
        self._offsets = offsets
        self._commits = commits
        self._descriptions = descriptions
        self._holdups = holdups

    # --- DescribeGroups

    def describe(self, call: Request, request: DescribeGroupsRequest) -> None:
        """Answers from what is acknowledged; an unknown group is Dead (conformance DG-03)."""
        response = DescribeGroupsResponse()
        for group_id in request.group_ids:
            group = self._context.working_on = self._context.groups.get(group_id)
            answer = response.groups.add(group_id=group_id, shard_epoch=self._context.epoch)
            if group_id in self._context.quarantine.groups:
                answer.error_code = error_code.GROUP_QUARANTINED
                answer.error_message = IN_QUARANTINE
            elif group is None:
                answer.state = GROUP_STATE_DEAD
            else:
                self._describe_any(group, answer, call.shown)
        self._context.reply(call.call_id, response)

    def _describe_any(
        self, group: Group, answer: DescribeGroupsResponse.Group, shown: MemberRange | None
    ) -> None:
        if is_any_set(group.settings):
            answer.settings.CopyFrom(group.settings)
        if (incremental := _incremental(group)) is not None:
            as_shown = shown.of if shown is not None and shown.of is not None else incremental
            self._descriptions.describe_as_any(group, as_shown, answer, shown)
        else:
            self._describe(group, answer, shown)

    def _describe(
        self, group: Group, answer: DescribeGroupsResponse.Group, shown: MemberRange | None
    ) -> None:
        is_stable = group.state is GroupState.STABLE
        answer.type = _CLASSIC
        answer.state = group.state.proto
        answer.protocol_type = group.protocol_type
        answer.protocol_name = group.protocol_name if is_stable else ""
        answer.generation = group.generation
        answer.leader = group.leader
        answer.state_since_ms = group.state_since_ms
        if group.cause is not None:
            answer.cause.CopyFrom(group.cause)
        for member_id in shown_of(sorted(group.members), shown, lambda one: _weight_of(group.members[one])):
            member = group.members[member_id]
            kept = member.kept_tokens[:KEPT_TOKENS_MAX]
            answer.members.add(
                member_id=member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.host,
                metadata=member.metadata_for(group.protocol_name) if is_stable else b"",
                assignment=member.assignment,
                token="" if member.token == NOWHERE else member.token.token,
                session_remaining_ms=self._remaining_ms(member),
                confirmed=member.confirmed,
                client_version=member.terms.client_version,
                kept_tokens=[
                    PartitionToken(
                        topic=one.topic,
                        partition=one.partition,
                        token=Position(one.position.epoch, one.position.offset).token,
                    )
                    for one in kept
                ],
                kept_tokens_truncated=len(kept) < len(member.kept_tokens),
            )
        self._holdups.show(group, answer)

    def _remaining_ms(self, member: Member) -> int:
        if member.is_waiting or member.heartbeat is None or not member.heartbeat.armed:
            return -1
        return max(member.heartbeat.deadline_ms - self._context.now.boot_ms, 0)

    # --- ListGroups

    def list(self, call: Request, request: ListGroupsRequest) -> None:
        """Lists the groups that pass the filters (KIP-518), in the order of their ids.

        A page's token is an id: its last one, or that of the last group that was looked at. With a limit some
        hundred are looked at, so a page may be short, or empty, and others follow.
        """
        states = {name.lower() for name in request.states}
        types = {name.lower() for name in request.types}
        response = ListGroupsResponse()
        if not types or not types.isdisjoint((_CLASSIC, CONSUMER)):
            looked_at = request.page_token
            for number, group_id in enumerate(self._ids_after(request.page_token)):
                if request.limit and number == LOOKED_AT_MAX:
                    response.next_page_token = looked_at
                    break
                looked_at = group_id
                if states and self._state_of(group_id) not in states:
                    continue
                if types and self._type_of(group_id) not in types:
                    continue
                if request.limit and len(response.groups) == request.limit:
                    response.next_page_token = response.groups[-1].group_id
                    break
                group = self._context.working_on = self._context.groups.get(group_id)
                if group is None or group_id in self._context.quarantine.groups:
                    response.groups.add(group_id=group_id, type=_CLASSIC, quarantined=True)
                else:
                    self._list(group, response)
        self._context.reply(call.call_id, response)

    def _ids_after(self, group_id: str) -> Iterator[str]:
        ids, held = self._context.groups.after(group_id), self._context.quarantine.groups
        if not held:
            return ids
        in_order = heapq.merge(ids, sorted([one for one in held if one > group_id]))
        return (one for one, _ in groupby(in_order))

    def _list(self, group: Group, response: ListGroupsResponse) -> None:
        incremental = _incremental(group)
        response.groups.add(
            group_id=group.group_id,
            protocol_type=group.protocol_type if incremental is None else CONSUMER,
            state=group.state.proto if incremental is None else STATES[incremental.state],
            type=_CLASSIC if incremental is None else CONSUMER,
        )

    def _type_of(self, group_id: str) -> str:
        """The type of a group; of one in quarantine it is not known, and it is listed as a classic one."""
        group = self._context.groups.get(group_id)
        return _CLASSIC if group is None or _incremental(group) is None else CONSUMER

    def _state_of(self, group_id: str) -> str:
        """The state of a group as filters name it."""
        group = self._context.working_on = self._context.groups.get(group_id)
        if group is None or group_id in self._context.quarantine.groups:
            return _QUARANTINED
        incremental = _incremental(group)
        return (group.state if incremental is None else incremental.state).value.lower()

    # --- GroupHistory

    def history(self, call: Request, request: GroupHistoryRequest) -> None:
        """The last generations, oldest first, as many as fit; some of those, if the call says which."""
        group = self._context.groups.get(request.group_id)
        if group is None:
            code = error_code.GROUP_ID_NOT_FOUND if request.group_id else error_code.INVALID_GROUP_ID
            self._context.refuse(call.call_id, code, "there is no such group")
            return
        count = request.limit or DEFAULT_GENERATIONS
        generations: list[GroupHistoryResponse.Generation] = []
        # of generations gone by the bytes are not kept; a group's members do not change their language
        given = {member.assignment for member in group.members.values() if member.assignment}
        foreign = any(read_assignment(one) is None for one in heapq.nsmallest(_READ_MAX, given, key=len))
        room_bytes, members = HISTORY_MAX_BYTES, 0
        entries = reversed(group.history)
        if (shown := call.shown) is not None and shown.after:
            before = Position.parse(shown.after)
            entries = (entry for entry in entries if entry.position < before)
        for entry in islice(entries, count):
            members += len(entry.members) + len(entry.moves) // _MOVES_AS_MEMBER
            if shown is not None and generations and members > shown.limit:
                break
            generation = entry.to_proto()
            generation.moves_unknown = foreign and not entry.moves and entry.assigned_at_ms > 0
            room_bytes -= generation.ByteSize()
            if generations and room_bytes < 0:
                break
            generations.append(generation)
        generations.reverse()
        self._context.reply(
            call.call_id, GroupHistoryResponse(generations=generations, shard_epoch=self._context.epoch)
        )

    # --- DeleteGroups (KIP-229)

    def delete(self, call: Request, request: DeleteGroupsRequest) -> None:
        """Removes empty groups; each id is handled once and has its own result (DL-08, DL-09)."""
        deletion = _Deletion(self._context, call, list(dict.fromkeys(request.group_ids)))
        for group_id in deletion.open_ids():
            group = self._context.working_on = self._context.groups.get(group_id)
            if group_id in self._context.quarantine.groups:
                deletion.settle(group_id, error_code.GROUP_QUARANTINED, IN_QUARANTINE)
            elif group is None:
                deletion.settle(group_id, error_code.GROUP_ID_NOT_FOUND, "there is no such group")
            else:
                delete = partial(self._delete, group, deletion)
                self._context.lines.in_line(group, delete, call_id=call.call_id)

    def _delete(self, group: Group, deletion: "_Deletion") -> None:
        if deletion.call_id not in self._context.calls:
            return  # it was refused while it waited in line, or its caller is gone
        if self._context.groups.get(group.group_id) is not group:
            deletion.settle(group.group_id, error_code.GROUP_ID_NOT_FOUND, "there is no such group")
        elif not group.is_vacant:
            deletion.settle(group.group_id, error_code.NON_EMPTY_GROUP, "the group has members")
        elif not group.stored and not self._commits.on_their_way(group):
            self._context.forget(group)
            deletion.settle(group.group_id, error_code.NONE)
        else:
            record = self._offsets.group_tombstone(group, "deleted")
            done = partial(deletion.settle, group.group_id, error_code.NONE)
            self._context.append([record], done, holds=group, calls=[deletion.call_id])


def _weight_of(member: Member) -> int:
    """How long it takes to show a member, as of one that keeps no tokens and has few bytes."""
    tokens = min(len(member.kept_tokens), KEPT_TOKENS_MAX) // TOLD_AS_MEMBER
    return 1 + tokens + (member.terms.protocols.size_bytes + len(member.assignment)) // _BYTES_AS_MEMBER


def _incremental(group: Group) -> IncrementalGroup | None:
    """What a group is as an incremental one; None: it is classic, or becomes so with a first member."""
    return None if group.members else group.incremental


class _Deletion:
    """Results of one DeleteGroups call, gathered until all are known."""

    def __init__(self, context: ShardContext, call: Request, group_ids: list[str]) -> None:
        self._context = context
        self.call_id = call.call_id
        self._results: dict[str, DeleteGroupsResponse.Result | None] = dict.fromkeys(group_ids)
        self._open = len(self._results)

    def open_ids(self) -> list[str]:
        return [group_id for group_id, result in self._results.items() if result is None]

    def settle(self, group_id: str, code: ErrorCode, message: str = "") -> None:
        self._results[group_id] = DeleteGroupsResponse.Result(
            group_id=group_id, error_code=code, shard_epoch=self._context.epoch, error_message=message
        )
        self._open -= 1
        if not self._open:
            response = DeleteGroupsResponse(results=[result for result in self._results.values() if result])
            self._context.reply(self.call_id, response)
