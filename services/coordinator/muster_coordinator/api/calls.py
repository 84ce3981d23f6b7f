"""From a call of the public API to its answer: limits, and the shard that gives it.

Unary calls and the frames of sessions share it.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from muster_core import error_code
from muster_core.events import GroupRequest, GroupResponse, MemberRange, group_of
from muster_core.protocol.responses import refusal
from muster_core.shard import Shard
from muster_core.sharding import shard_of
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2, incremental_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest
from muster_runtime.loop_share import LoopShare, LoopTurn
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.carried import to_its_end
from muster_runtime.rpc.refusals import InvalidArgument, Unimplemented
from muster_runtime.rpc.sizes import size_of
from muster_runtime.turns import Turns

from muster_coordinator.api.answers import Answers
from muster_coordinator.api.encoding import in_pieces, is_large
from muster_coordinator.api.fetches import STEP_PARTITIONS
from muster_coordinator.api.named import looked_at
from muster_coordinator.api.rights import Rights, Verdict
from muster_coordinator.api.steps import Ask
from muster_coordinator.shard.asking import ask, reach
from muster_coordinator.shard.owned_shard import OwnedShard
from muster_coordinator.shard.phase import Phase
from muster_coordinator.validation import violations

LARGE_BYTES = 64 << 10
"""What is larger takes milliseconds: a request to look through, the metadata of a group to answer with."""

LARGE_PARTITIONS = 1_000
"""So does a request that names more, however small it is."""

_LARGE_MEMBERS = 100
"""A leader that joins again is told of all members, however small its call: of more in a turn of its host."""

_JOINED_ASIDE_BYTES = 1 << 20
"""From here on Python joins bytes without holding up other threads."""

_TURN_S = 0.002
"""So long messages of sessions of one host are played in one turn of the loop; then others have theirs."""

_KNOWN_GROUPS = 16_384
_NOT_YET = "this coordinator does not know the cluster yet; try again"
_NO_OWNER = "nobody serves the group's shard now; try again"
_ELSEWHERE = "another coordinator owns the group"
_NO_GROUP_ID = "the group id must not be empty"


class Owners(Protocol):
    """Who owns which shard, as far as this process knows."""

    @property
    def shards(self) -> Mapping[int, OwnedShard]:
        """Those that it serves, loads or takes over."""

    def owner_elsewhere(self, shard: int) -> common_pb2.Coordinator | None:
        """See `Outlook.owner_elsewhere`."""


class View(Protocol):
    """What is known of the cluster."""

    @property
    def cluster(self) -> discovery_pb2.Cluster | None:
        """The cluster; None: nothing is known yet."""


class Calls:
    """Answers the calls of the group protocol.

    Args:
        ownership: the shards of this process.
        view: the cluster.
        max_answer_bytes: how large the answer to one call may become.
        rights: what callers may do; everything if absent.
        joined_aside_bytes: larger answers are put together in a thread.

    Attributes:
        rights: of callers, looked at before anything of a call is answered.
        large_requests: one is worked on at a time, and hosts take turns; nobody else waits for them.
        loop_turn: how long messages of sessions have taken of this turn of the loop, by host.
        admit_late: counts a call that has waited for its shard to be loaded; see `Admission.admit_late`.
    """

    def __init__(
        self,
        ownership: Owners,
        view: View,
        max_answer_bytes: int,
        rights: Rights | None = None,
        joined_aside_bytes: int = _JOINED_ASIDE_BYTES,
    ) -> None:
        self._ownership = ownership
        self._view = view
        self.rights = Rights(Access()) if rights is None else rights
        self._answers = Answers(self, ownership.shards, max_answer_bytes, self.rights)
        self.large_requests = Turns()
        self.loop_turn = LoopTurn(_TURN_S)
        self.admit_late: Callable[[GroupRequest], Callable[[], None] | None] = lambda _: None
        self._encoding = Turns()
        self._joined_aside_bytes = joined_aside_bytes

    async def answer(self, request: GroupRequest, host: str) -> GroupResponse:
        """Answers a call; if it is cancelled, the group protocol knows that the caller has left.

        Args:
            request: the call.
            host: address of the caller.

        Raises:
            InvalidArgument: it breaks a limit of the public API.
            Unimplemented: it asks for what this version does not have.
        """
        if size_of(request) > LARGE_BYTES or looked_at(request) > LARGE_PARTITIONS:
            return await self._answer_large(request, host)
        check(request)
        return await self._answer_allowed(request, host)

    async def encoded(
        self, answer: GroupResponse, host: str, framed: Callable[[list[bytes]], Sequence[bytes]] = list
    ) -> bytes | None:
        """Encodes a large answer, one at a time, and hosts take turns; returns None if it is not large.

        Args:
            answer: the answer.
            host: address of the caller.
            framed: puts what has to be around it to its pieces.
        """
        if not is_large(answer):
            return None
        async with self._encoding.turn(host):
            share = LoopShare()
            pieces = framed(await in_pieces(answer, share))
            if sum(map(len, pieces)) < self._joined_aside_bytes:
                return b"".join(pieces)
            whole = await asyncio.to_thread(b"".join, pieces)
            await share.rest()  # gRPC copies as much once more
            return whole

    async def _answer_allowed(self, request: GroupRequest, host: str) -> GroupResponse:
        """Answers what the caller may ask for, and refuses the rest."""
        verdict = self.rights.judge(request, host)
        return await self.answer_judged(request, host, verdict)

    async def answer_judged(self, request: GroupRequest, host: str, verdict: Verdict | None) -> GroupResponse:
        """Answers a call that was judged; one that the trail records goes on though its caller leaves."""
        if verdict is None:
            return await self.answer_checked(request, host)
        work = self._answer_part(verdict, host)
        return await (to_its_end(work) if verdict.is_told else work)

    async def _answer_part(self, verdict: Verdict, host: str) -> GroupResponse:
        part = verdict.request
        return verdict.complete(None if part is None else await self.answer_checked(part, host))

    async def _answer_large(self, request: GroupRequest, host: str) -> GroupResponse:
        """Looks through a request and begins to answer it while nobody else does that."""
        async with self.large_requests.turn(host):
            share = LoopShare()
            check(request)
            await share.rest()
            verdict = await self.rights.judge_large(request, host, share)
            if verdict is not None:  # to tell thousands of topics apart takes as long as to answer
                await share.rest()
            answering = await _begun(self.answer_judged(request, host, verdict), share)
        return await answering

    def takes_turn(self, request: GroupRequest) -> bool:
        """Whether a call of a session that has passed `check` is judged and begun in its turn.

        Those that must not come after others which were made later never are.
        """
        is_fetch = isinstance(request, coordinator_pb2.OffsetFetchRequest)
        return is_fetch and looked_at(request) > LARGE_PARTITIONS

    async def answer_in_turn(self, request: GroupRequest, host: str) -> GroupResponse:
        """As `answer`, of a call that `takes_turn`."""
        async with self.large_requests.turn(host):
            share = LoopShare()
            verdict = await self.rights.judge_large(request, host, share)
            answering = await _begun(self.answer_judged(request, host, verdict), share)
        return await answering

    def at_once(self, request: GroupRequest) -> OwnedShard | None:
        """The shard that may start a checked call without waiting for anything; None: `answer_checked`."""
        cluster = self._view.cluster
        if cluster is None or type(request) not in _AT_ONCE:
            return None
        group_id = group_of(request)
        shard = self._ownership.shards.get(_shard_of(group_id, cluster.shard_count)) if group_id else None
        if shard is None or shard.phase is not Phase.SERVING or _has_large_answer(shard, request):
            return None
        return shard

    def is_new(self, group_id: str) -> bool:
        """Whether a group of a shard that is served here does not exist, where the caller may know that."""
        core = self.core_of(group_id)
        if core is None or group_id in core.groups:
            return False
        sees = self.rights.sees_group()
        return sees is None or sees(group_id)

    def group_of(self, group_id: str) -> Group | None:
        """A group that is here; None: it is not, or nobody knows of it."""
        core = self.core_of(group_id)
        return None if core is None else core.groups.get(group_id)

    def topics_of(self, who: str, group_id: str, member_id: str) -> frozenset[str]:
        """The topics that an identity's member of an incremental group here has named; of others none."""
        group = self.group_of(group_id)
        incremental = None if group is None else group.incremental
        member = None if incremental is None else incremental.members.get(member_id)
        if member is None or member.told.identity not in ("", who):
            return frozenset()
        return member.told.topics

    def core_of(self, group_id: str) -> Shard | None:
        """The loaded shard of a group; None: it is not here."""
        cluster = self._view.cluster
        if cluster is None or not group_id:
            return None
        shard = self._ownership.shards.get(_shard_of(group_id, cluster.shard_count))
        return None if shard is None else shard.core

    def locate(self, group_id: str) -> OwnedShard | common_pb2.Coordinator | None:
        """The shard of a group if it is here or is being loaded here, else its owner; None: not known."""
        cluster = self._view.cluster
        if cluster is None:
            return None
        number = _shard_of(group_id, cluster.shard_count)
        shard = self._ownership.shards.get(number)
        if shard is not None and not shard.elsewhere:
            return shard
        owner = self._ownership.owner_elsewhere(number)
        return owner if owner is not None and owner.node_id else None

    async def answer_checked(self, request: GroupRequest, host: str) -> GroupResponse:
        """Answers a call that has passed `check`, and that its caller may make; see `answer`."""
        cluster = self._view.cluster
        if cluster is None:
            return refusal(request, error_code.COORDINATOR_NOT_AVAILABLE, 0, _NOT_YET)
        match request:
            case coordinator_pb2.OffsetFetchRequest():
                return await self._answers.fetch(request, cluster.shard_count, host)
            case coordinator_pb2.DescribeGroupsRequest() | incremental_pb2.ConsumerGroupDescribeRequest():
                return await self._answers.describe(request, cluster.shard_count, host)
            case coordinator_pb2.ListGroupsRequest():
                return await self._answers.list(request, host)
            case coordinator_pb2.GroupHistoryRequest() if request.group_id:
                return await self._answers.history(request, cluster.shard_count, host)
            case coordinator_pb2.DeleteGroupsRequest():
                return await self._delete(request, cluster.shard_count, host)
            case _:
                return await self._single(request, cluster.shard_count, host)

    async def _single(self, request: Any, shard_count: int, host: str) -> GroupResponse:
        if not request.group_id and not isinstance(request, coordinator_pb2.OffsetCommitRequest):
            # No shard owns the empty id, so no owner needs to be asked (conformance GV-02, HQ-08).
            incremental = isinstance(request, ConsumerGroupHeartbeatRequest)
            code = error_code.INVALID_REQUEST if incremental else error_code.INVALID_GROUP_ID
            return refusal(request, code, 0, _NO_GROUP_ID)
        return await self.call(shard_of(request.group_id, shard_count), request, host)

    async def call(self, number: int, request: GroupRequest, host: str) -> GroupResponse:
        """Answers a call of one shard's groups; a shard that is not served here answers with its owner."""
        shard = self._ownership.shards.get(number)
        if shard is None or shard.elsewhere:
            return self._not_here(number, request, host)
        if shard.phase is Phase.SERVING:
            return await self._ask(shard, request, host)
        await shard.settled()
        ended = self.admit_late(request)
        try:
            return await self._ask(shard, request, host)
        finally:
            if ended is not None:
                ended()

    async def _ask(self, shard: OwnedShard, request: GroupRequest, host: str) -> GroupResponse:
        if _has_large_answer(shard, request):
            async with self._answers.turn(host):
                answering = await _begun(ask(shard, request, host), LoopShare())
            return await answering
        return await ask(shard, request, host)

    async def reach(self, number: int, *, barrier: bool) -> Ask:
        """Waits until a shard can answer, or is known not to; see `Shards.reach`."""
        shard = self._ownership.shards.get(number)
        if shard is not None and not shard.elsewhere:
            return await reach(shard, barrier=barrier)
        return partial(self._not_here, number)

    def not_here(self, request: ConsumerGroupHeartbeatRequest) -> GroupResponse:
        """The answer to a call that no shard of this process may take: who owns its group, if known."""
        cluster = self._view.cluster
        if cluster is None:
            return refusal(request, error_code.COORDINATOR_NOT_AVAILABLE, 0, _NOT_YET)
        return self._not_here(shard_of(request.group_id, cluster.shard_count), request, "")

    def _not_here(
        self, number: int, request: GroupRequest, _host: str, _shown: MemberRange | None = None
    ) -> GroupResponse:
        owner = self._ownership.owner_elsewhere(number)
        if owner is None or not owner.node_id:
            epoch = 0 if owner is None else owner.shard_epoch
            return refusal(request, error_code.COORDINATOR_NOT_AVAILABLE, epoch, _NO_OWNER)
        return refusal(request, error_code.NOT_COORDINATOR, owner.shard_epoch, _ELSEWHERE, owner)

    async def _delete(
        self, request: coordinator_pb2.DeleteGroupsRequest, shard_count: int, host: str
    ) -> coordinator_pb2.DeleteGroupsResponse:
        """Splits the call by shard and puts the results back in its order; a repeated id has one."""
        by_shard: dict[int, list[str]] = {}
        for group_id in dict.fromkeys(request.group_ids):
            by_shard.setdefault(shard_of(group_id, shard_count), []).append(group_id)
        answers: Sequence[Any] = await asyncio.gather(
            *(
                self.call(number, coordinator_pb2.DeleteGroupsRequest(group_ids=group_ids), host)
                for number, group_ids in by_shard.items()
            )
        )
        results = {result.group_id: result for answer in answers for result in answer.results}
        return coordinator_pb2.DeleteGroupsResponse(
            results=[results[group_id] for group_id in dict.fromkeys(request.group_ids)]
        )


def check(request: GroupRequest) -> None:
    """Refuses a call that breaks a limit of the public API.

    Raises:
        InvalidArgument: it names the fields.
        Unimplemented: it asks for what this version does not have.
    """
    problems = violations(request)
    if problems:
        raise InvalidArgument(problems)
    if isinstance(request, coordinator_pb2.JoinGroupRequest) and request.server_assignor:
        raise Unimplemented(
            "server_assignor: this version has no assignors in the coordinator; the leader assigns"
        )


async def _begun(
    answering: Coroutine[Any, Any, GroupResponse], share: LoopShare
) -> "asyncio.Task[GroupResponse]":
    """Begins to answer a call, and leaves the loop to others for as long as that took."""
    task = asyncio.get_running_loop().create_task(answering)
    try:
        await asyncio.sleep(0)  # here it begins
        await share.rest()
    except asyncio.CancelledError:
        task.cancel()
        raise
    return task


def _has_large_answer(shard: OwnedShard, request: GroupRequest) -> bool:
    """Whether a JoinGroup or SyncGroup may be answered at once, and with much: it takes its turn then."""
    if not isinstance(request, _MAY_HAVE_LARGE_ANSWERS) or shard.phase is not Phase.SERVING:
        return False
    group = shard.core.groups.get(request.group_id) if shard.core is not None else None
    if group is None or group.line.in_flight:
        return False
    member = group.member_of(request.member_id, request.group_instance_id)
    if member is None:
        return False
    if isinstance(request, coordinator_pb2.SyncGroupRequest):
        is_large = len(member.kept_tokens) > STEP_PARTITIONS or len(member.assignment) > LARGE_BYTES
        return is_large and group.state is GroupState.STABLE
    is_large = len(group.members) > _LARGE_MEMBERS or group.size_bytes > LARGE_BYTES
    return is_large and group.leader == member.member_id


_MAY_HAVE_LARGE_ANSWERS = (coordinator_pb2.JoinGroupRequest, coordinator_pb2.SyncGroupRequest)

_shard_of = functools.lru_cache(_KNOWN_GROUPS)(shard_of)
"""The hash takes longer than the rest of the way of a heartbeat to its shard."""

_AT_ONCE = frozenset(
    {
        coordinator_pb2.JoinGroupRequest,
        coordinator_pb2.SyncGroupRequest,
        coordinator_pb2.HeartbeatRequest,
        coordinator_pb2.LeaveGroupRequest,
        coordinator_pb2.OffsetCommitRequest,
    }
)
