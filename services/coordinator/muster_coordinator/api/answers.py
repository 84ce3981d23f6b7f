"""Answers that may be large: built in steps, bounded while they grow, dropped when their caller is gone.

First it waits until the shards can answer, or are known not to; then the answer is built without waiting for
any of them. One such answer is built at a time in a process, and after each step the loop is left to others
for as long as the step took: whoever asks for much waits for others who do, and nobody else waits for them.
Of those who wait, hosts take turns.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.events import GroupRequest, GroupResponse, MemberRange
from muster_core.incremental.group import IncrementalGroup
from muster_core.position import Position
from muster_core.protocol.queries import DEFAULT_GENERATIONS, HISTORY_MAX_BYTES, LOOKED_AT_MAX
from muster_core.sharding import shard_of
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.quotas import current_connection
from muster_runtime.turns import Turns

from muster_coordinator.api.fetches import Fetch, is_small
from muster_coordinator.api.rights import Rights
from muster_coordinator.api.steps import CUT_S, Ask, Budget
from muster_coordinator.shard.owned_shard import OwnedShard

STEP_GROUPS = 1_000
_STEP_MEMBERS = 500
_BEGUN_MOST = 3

_DESCRIBED: Mapping[
    type[Any], type[coordinator_pb2.DescribeGroupsResponse | ConsumerGroupDescribeResponse]
] = {
    coordinator_pb2.DescribeGroupsRequest: coordinator_pb2.DescribeGroupsResponse,
    ConsumerGroupDescribeRequest: ConsumerGroupDescribeResponse,
}


class Shards(Protocol):
    """Where the parts of an answer come from."""

    async def call(self, number: int, request: GroupRequest, host: str) -> GroupResponse:
        """Answers a call that concerns one shard."""
        ...

    async def reach(self, number: int, *, barrier: bool) -> Ask:
        """Waits until a shard can answer, or is known not to.

        Args:
            number: the shard.
            barrier: whether a majority must have confirmed that it is owned here, as offsets need it.
        """
        ...


class Answers:
    """Builds the answers to OffsetFetch, to both calls that describe groups, GroupHistory and ListGroups.

    Args:
        shards: answer the parts.
        owned: the shards of this process by number.
        max_bytes: how large an answer may become.
        rights: what callers may see.
    """

    def __init__(
        self, shards: Shards, owned: Mapping[int, OwnedShard], max_bytes: int, rights: Rights
    ) -> None:
        self._rights = rights
        self._shards = shards
        self._owned = owned
        self._max_bytes = max_bytes
        self._one_at_a_time = Turns()

    def turn(self, host: str) -> AbstractAsyncContextManager[None]:
        """Held while another answer is built that takes long: no two are built beside each other."""
        return self._one_at_a_time.turn(host)

    async def fetch(
        self, request: coordinator_pb2.OffsetFetchRequest, shard_count: int, host: str
    ) -> coordinator_pb2.OffsetFetchResponse:
        """The committed offsets of groups.

        Raises:
            InvalidArgument: the answer would be too large.
        """
        numbers = {shard_of(group.group_id, shard_count) for group in request.groups}
        if len(numbers) == 1 and is_small(request):
            answer = await self._shards.call(numbers.pop(), request, host)
            assert isinstance(answer, coordinator_pb2.OffsetFetchResponse)
            return answer
        asks = await self._reach(numbers, barrier=True)
        async with self._one_at_a_time.turn(host):
            fetch = Fetch(request, shard_count, self._budget("groups"), self._rights.sees_topic())
            return await fetch.run(asks, host)

    async def describe(
        self,
        request: coordinator_pb2.DescribeGroupsRequest | ConsumerGroupDescribeRequest,
        shard_count: int,
        host: str,
    ) -> coordinator_pb2.DescribeGroupsResponse | ConsumerGroupDescribeResponse:
        """Describes groups, one after the other: each may have megabytes of metadata and assignments.

        Raises:
            InvalidArgument: the answer would be too large.
        """
        numbers = [shard_of(group_id, shard_count) for group_id in request.group_ids]
        asks = await self._reach(set(numbers), barrier=False)
        budget = self._budget("group_ids")
        answer = _DESCRIBED[type(request)]()
        groups: Any = answer.groups
        is_incremental = isinstance(request, ConsumerGroupDescribeRequest)
        sees = self._rights.sees_member(host) if is_incremental else None
        async with self._one_at_a_time.turn(host):
            share = LoopShare()
            for number, group_id in zip(numbers, request.group_ids, strict=True):
                ask = partial(asks[number], type(request)(group_ids=[group_id]), host)
                group = groups.add()  # it is filled in place: to put it there later copies all of it
                if sees is not None:
                    ask = partial(_looked_at, ask, sees)
                try:
                    await _describe(ask, partial(self._seen, number, group_id), group, share)
                except _Hidden as hidden:
                    group.CopyFrom(hidden.refusal)
                budget.pay(len(group.members))
                if len(numbers) > 1:  # one alone cannot be asked for in parts
                    await _take(group, budget, share)
        return answer

    def _seen(self, number: int, group_id: str) -> "_Seen":
        shard = self._owned.get(number)
        core = None if shard is None else shard.core
        group = None if core is None else core.groups.get(group_id)
        if shard is None or group is None:
            return _Seen(None, None, None)
        incremental = None if group.members else group.incremental
        if incremental is not None:
            return _Seen((shard.epoch, group, incremental), len(incremental.members), incremental)
        # a static member that takes another one's place does so in a new table of members
        phase = shard.epoch, group, group.state, group.generation, group.members, group.incremental
        return _Seen(phase, len(group.members), None)

    async def history(
        self, request: coordinator_pb2.GroupHistoryRequest, shard_count: int, host: str
    ) -> coordinator_pb2.GroupHistoryResponse:
        """The last generations of a group, which may be megabytes: the newest are asked for first."""
        number = shard_of(request.group_id, shard_count)
        asks = await self._reach([number], barrier=False)
        async with self._one_at_a_time.turn(host):
            share = LoopShare()
            parts: list[coordinator_pb2.GroupHistoryResponse] = []
            step = coordinator_pb2.GroupHistoryRequest(
                group_id=request.group_id, limit=request.limit or DEFAULT_GENERATIONS
            )
            left_bytes, before = HISTORY_MAX_BYTES, ""
            budget = self._budget("limit")
            while step.limit:
                part = asks[number](step, host, MemberRange(before, _STEP_MEMBERS))
                if part.error_code:
                    return part  # type: ignore[no-any-return]
                if not part.generations:
                    break
                parts.append(part)
                budget.pay(sum([len(one.members) + len(one.moves) for one in part.generations]))
                left_bytes -= sum(generation.ByteSize() for generation in part.generations)
                step.limit -= len(part.generations)
                before = Position.from_proto(part.generations[0].position).token
                await share.rest()
                if left_bytes < 0:
                    break
            answer = coordinator_pb2.GroupHistoryResponse(shard_epoch=part.shard_epoch)
            for part in reversed(parts):
                answer.generations.extend(part.generations)
                await share.rest()
            while left_bytes < 0 and len(answer.generations) > 1:
                left_bytes += answer.generations[0].ByteSize()
                del answer.generations[0]
            await share.rest()
        return answer

    async def list(
        self, request: coordinator_pb2.ListGroupsRequest, host: str
    ) -> coordinator_pb2.ListGroupsResponse:
        """The groups of all shards here, or a page of them; an error says that a shard is missing.

        Raises:
            InvalidArgument: the list would be too large.
        """
        first, after = _place_of(request.page_token)
        here = [number for number, shard in self._owned.items() if number >= first and not shard.elsewhere]
        asks = await self._reach(here, barrier=False)
        async with self._one_at_a_time.turn(host):
            if request.limit:
                return await self._page(request, first, after, asks, host)
            return await self._whole_list(request, asks, host)

    async def _page(
        self,
        request: coordinator_pb2.ListGroupsRequest,
        first: int,
        after: str,
        asks: Mapping[int, Ask],
        host: str,
    ) -> coordinator_pb2.ListGroupsResponse:
        """Groups in the order of their shards."""
        budget = self._budget("limit")
        answer = coordinator_pb2.ListGroupsResponse()
        step = coordinator_pb2.ListGroupsRequest(states=request.states, types=request.types)
        share = LoopShare()
        sees = self._rights.sees_group()
        for number in sorted(asks):
            shown = step.page_token = after if number == first else ""
            while True:
                left = request.limit - len(answer.groups)
                if not left:
                    answer.next_page_token = f"{number}/{shown}"  # it names no group that is not shown
                    return answer
                step.limit = min(left, STEP_GROUPS) if sees is None else STEP_GROUPS
                await self._put_in_order(number, share)
                part = asks[number](step, host)
                answer.error_code = max(answer.error_code, _missing(part))
                budget.pay(_looked_at_of(part, step.limit))
                groups = _seen(part, sees)
                budget.take(part)
                answer.groups.extend(groups[:left])
                if groups:
                    shown = answer.groups[-1].group_id
                await share.rest()
                if not part.next_page_token and len(groups) <= left:
                    break
                step.page_token = part.next_page_token
        return answer

    async def _whole_list(
        self, request: coordinator_pb2.ListGroupsRequest, asks: Mapping[int, Ask], host: str
    ) -> coordinator_pb2.ListGroupsResponse:
        """All groups in the order of their ids."""
        budget = self._budget("limit")
        answer = coordinator_pb2.ListGroupsResponse()
        step = coordinator_pb2.ListGroupsRequest(
            states=request.states, types=request.types, limit=STEP_GROUPS
        )
        share = LoopShare()
        sees = self._rights.sees_group()
        of_shards: list[list[coordinator_pb2.ListGroupsResponse.Group]] = []
        for number, ask in asks.items():
            groups: list[coordinator_pb2.ListGroupsResponse.Group] = []
            step.page_token = ""
            while True:
                await self._put_in_order(number, share)
                part = ask(step, host)
                answer.error_code = max(answer.error_code, _missing(part))
                budget.pay(_looked_at_of(part, step.limit))
                seen = _seen(part, sees)
                budget.take(part)
                groups += seen
                await share.rest()
                if not part.next_page_token:
                    break
                step.page_token = part.next_page_token
            of_shards.append(groups)
        in_order = heapq.merge(*of_shards, key=attrgetter("group_id"))
        while some := list(islice(in_order, STEP_GROUPS)):
            answer.groups.extend(some)
            await share.rest()
        return answer

    async def _put_in_order(self, number: int, share: LoopShare) -> None:
        """Puts the groups of a shard in order before some are asked for."""
        while (shard := self._owned.get(number)) is not None and shard.core is not None:
            if shard.core.put_groups_in_order():
                return
            await share.rest()

    async def _reach(self, numbers: Iterable[int], *, barrier: bool) -> dict[int, Ask]:
        wanted = list(numbers)
        asks = await asyncio.gather(*(self._shards.reach(number, barrier=barrier) for number in wanted))
        return dict(zip(wanted, asks, strict=True))

    def _budget(self, field: str) -> Budget:
        connection = current_connection()
        return Budget(self._max_bytes, field, _nothing if connection is None else connection.pay_partitions)


async def _take(group: Any, budget: Budget, share: LoopShare) -> None:
    """Counts a group of an answer, member by member: what it is besides is small.

    To ask for the size of all at once takes as long as to encode them.
    """
    if not group.members:
        budget.take(group)
    for member in group.members:
        budget.take(member)
        if share.taken_s > CUT_S:
            await share.rest()


class _Seen(NamedTuple):
    """A group as it is seen between two steps of its description.

    Attributes:
        phase: what it has in no other phase of its life: its owners are the same in all of it. An incremental
            one has one as long as it is one; then it is shown as it was.
        members: how many it has; None: nobody knows.
        incremental: what it is as an incremental group; None: it is classic.
    """

    phase: object
    members: int | None
    incremental: IncrementalGroup | None


class _Hidden(Exception):
    """The caller must not see a topic of a group.

    Args:
        refusal: what is answered in place of the group.
    """

    def __init__(self, refusal: ConsumerGroupDescribeResponse.Group) -> None:
        self.refusal = refusal


def _looked_at(ask: Callable[..., Any], sees: Callable[[Any], bool], shown: MemberRange | None) -> Any:
    """Answers as `ask` does.

    Raises:
        _Hidden: it names what the caller must not see.
    """
    answer = ask(shown)
    (group,) = answer.groups
    if not all(map(sees, group.members)):
        refusal = ConsumerGroupDescribeResponse.Group(
            group_id=group.group_id,
            shard_epoch=group.shard_epoch,
            error_code=error_code.TOPIC_AUTHORIZATION_FAILED,
            error_message="no rule allows the caller to describe all topics of this group",
        )
        raise _Hidden(refusal)
    return answer


async def _describe(
    ask: Callable[[MemberRange | None], Any], seen: Callable[[], _Seen], answer: Any, share: LoopShare
) -> None:
    """Fills a group of an answer some members at a time, all of them as of one phase of the group.

    Where another one has begun meanwhile, all is asked for again; in the end at a stretch.
    """
    for _ in range(_BEGUN_MOST):
        if await _describe_in_steps(ask, seen, answer, share):
            return
    answer.CopyFrom(ask(None).groups[0])
    await share.rest()


async def _describe_in_steps(
    ask: Callable[[MemberRange | None], Any], seen: Callable[[], _Seen], answer: Any, share: LoopShare
) -> bool:
    """Returns whether all of it is as of one phase."""
    part = ask(MemberRange("", _STEP_MEMBERS)).groups[0]
    phase, members, incremental = seen()  # after what came due while it was asked for
    is_whole = len(part.members) == members
    then = None if is_whole or incremental is None else incremental.as_of_now()
    answer.CopyFrom(part)
    await share.rest()
    while part.members and not is_whole:
        part = ask(MemberRange(part.members[-1].member_id, _STEP_MEMBERS, then)).groups[0]
        if part.error_code or seen().phase != phase:
            return False
        answer.members.extend(part.members)
        await share.rest()
    return True


def _seen(
    part: coordinator_pb2.ListGroupsResponse, sees: Callable[[str], bool] | None
) -> Sequence[coordinator_pb2.ListGroupsResponse.Group]:
    """The groups that the caller may see; the others are taken out of the part."""
    if sees is not None:
        groups = [group for group in part.groups if sees(group.group_id)]
        del part.groups[:]
        part.groups.extend(groups)
    return part.groups


def _missing(part: coordinator_pb2.ListGroupsResponse) -> ErrorCode:
    """Why the groups of a shard that should be here are missing in a list; NONE: they are not."""
    return error_code.NONE if part.error_code == error_code.NOT_COORDINATOR else part.error_code


def _looked_at_of(part: coordinator_pb2.ListGroupsResponse, limit: int) -> int:
    """How many groups were looked at for a part of a list: one that is short and goes on left some out."""
    is_short = part.next_page_token and len(part.groups) < limit
    return LOOKED_AT_MAX if is_short else len(part.groups)


def _nothing(_number: int) -> None:
    """For a call that has no quotas."""


def _place_of(token: str) -> tuple[int, str]:
    """Where a page of groups begins: the shard, and after which group of it."""
    number, _, after = token.partition("/")
    return int(number or 0), after
