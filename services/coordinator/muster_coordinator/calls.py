"""From a call of the public API to its answer: limits, the shard, and the merging of batches.

Unary calls and the frames of sessions go through the same table.
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from muster_core import error_code
from muster_core.events import GroupRequest, GroupResponse
from muster_core.responses import refusal
from muster_core.sharding import shard_of
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1 import coordinator_pb2 as pb
from muster_runtime.refusals import InvalidArgument, Unimplemented
from muster_runtime.view import ClusterView

from muster_coordinator.owned_shard import OwnedShard
from muster_coordinator.ownership import Ownership
from muster_coordinator.phase import Phase
from muster_coordinator.validation import violations

_KNOWN_GROUPS = 16_384
_NOT_YET = "this coordinator does not know the cluster yet; try again"
_NO_OWNER = "nobody serves the group's shard now; try again"
_ELSEWHERE = "another coordinator owns the group"
_NO_GROUP_ID = "the group id must not be empty"


class Calls:
    """Answers the calls of the group protocol.

    Args:
        ownership: the shards of this process.
        view: the cluster.
    """

    def __init__(self, ownership: Ownership, view: ClusterView) -> None:
        self._ownership = ownership
        self._view = view

    async def answer(self, request: GroupRequest, host: str) -> GroupResponse:
        """Answers a call; cancelling it tells the group protocol that its caller went away.

        Args:
            request: the call.
            host: address of the caller.

        Raises:
            InvalidArgument: it breaks a limit of the public API.
            Unimplemented: it asks for what this version does not have.
        """
        check(request)
        return await self.answer_checked(request, host)

    def at_once(self, request: GroupRequest) -> OwnedShard | None:
        """The shard that may start a checked call without waiting for anything; None: `answer_checked`."""
        cluster = self._view.cluster
        if cluster is None or type(request) not in _AT_ONCE:
            return None
        group_id = request.group_id  # type: ignore[union-attr]
        shard = self._ownership.shards.get(_shard_of(group_id, cluster.shard_count)) if group_id else None
        return shard if shard is not None and shard.phase is Phase.SERVING else None

    def locate(self, group_id: str) -> OwnedShard | common_pb2.Coordinator | None:
        """The shard of a group if it is here or is being loaded here, else its owner; None: not known."""
        cluster = self._view.cluster
        if cluster is None:
            return None
        number = shard_of(group_id, cluster.shard_count)
        shard = self._ownership.shards.get(number)
        if shard is not None and not shard.elsewhere:
            return shard
        owner = self._ownership.owner_elsewhere(number)
        return owner if owner is not None and owner.node_id else None

    async def answer_checked(self, request: GroupRequest, host: str) -> GroupResponse:
        """The same for a call that has passed `check`."""
        cluster = self._view.cluster
        if cluster is None:
            return refusal(request, error_code.COORDINATOR_NOT_AVAILABLE, 0, _NOT_YET)
        if isinstance(request, pb.ListGroupsRequest):
            return await self._list(request, host)
        batch = _BATCHES.get(type(request))
        if batch is not None:
            return await self._batch(request, batch, cluster.shard_count, host)
        return await self._single(request, cluster.shard_count, host)

    async def _single(self, request: Any, shard_count: int, host: str) -> GroupResponse:
        if not request.group_id and not isinstance(request, pb.OffsetCommitRequest):
            # No shard owns the empty id, so no owner needs to be asked (conformance GV-02).
            return refusal(request, error_code.INVALID_GROUP_ID, 0, _NO_GROUP_ID)
        return await self._at_shard(shard_of(request.group_id, shard_count), request, host)

    async def _at_shard(self, number: int, request: GroupRequest, host: str) -> GroupResponse:
        shard = self._ownership.shards.get(number)
        if shard is not None and not shard.elsewhere:
            return await shard.call(request, host)
        owner = self._ownership.owner_elsewhere(number)
        if owner is None or not owner.node_id:
            epoch = 0 if owner is None else owner.shard_epoch
            return refusal(request, error_code.COORDINATOR_NOT_AVAILABLE, epoch, _NO_OWNER)
        return refusal(request, error_code.NOT_COORDINATOR, owner.shard_epoch, _ELSEWHERE, owner)

    async def _batch(self, request: Any, batch: "_Batch", shard_count: int, host: str) -> GroupResponse:
        """Splits a call about several groups by shard and puts the results back in its order."""
        items = list(getattr(request, batch.items))
        if batch.distinct:
            items = list(dict.fromkeys(items))
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(shard_of(batch.group_id(item), shard_count), []).append(place)
        parts = [
            self._at_shard(number, type(request)(**{batch.items: [items[place] for place in chosen]}), host)
            for number, chosen in places.items()
        ]
        if len(parts) == 1:
            return await parts[0]
        answers: Sequence[Any] = await asyncio.gather(*parts)
        results: list[Any] = [None] * len(items)
        for chosen, answer in zip(places.values(), answers, strict=True):
            for place, result in zip(chosen, getattr(answer, batch.results), strict=True):
                results[place] = result
        merged: GroupResponse = type(answers[0])(**{batch.results: results})
        return merged

    async def _list(self, request: pb.ListGroupsRequest, host: str) -> pb.ListGroupsResponse:
        """The groups of all shards here; an error says that a shard is missing from the list."""
        shards = [shard for shard in self._ownership.shards.values() if not shard.elsewhere]
        answers: Sequence[Any] = await asyncio.gather(*(shard.call(request, host) for shard in shards))
        groups = [group for answer in answers for group in answer.groups]
        codes = {answer.error_code for answer in answers} - {error_code.NONE, error_code.NOT_COORDINATOR}
        return pb.ListGroupsResponse(
            error_code=max(codes, default=error_code.NONE),
            groups=sorted(groups, key=lambda group: group.group_id),
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """How a call about several groups is taken apart and put together.

    Attributes:
        items: field of the request with one item per group.
        results: field of the answer with one result per item, in the same order.
        group_id: the group of an item.
        distinct: a repeated item has one result.
    """

    items: str
    results: str
    group_id: Callable[[Any], str]
    distinct: bool = False


def check(request: GroupRequest) -> None:
    """Refuses a call that breaks a limit of the public API.

    Raises:
        InvalidArgument: it names the fields.
        Unimplemented: it asks for what this version does not have.
    """
    problems = violations(request)
    if problems:
        raise InvalidArgument(problems)
    if isinstance(request, pb.JoinGroupRequest) and request.server_assignor:
        raise Unimplemented(
            "server_assignor: this version has no assignors in the coordinator; the leader assigns"
        )


_shard_of = functools.lru_cache(_KNOWN_GROUPS)(shard_of)
"""The hash takes longer than the rest of the way of a heartbeat to its shard."""

_AT_ONCE = frozenset(
    {
        pb.JoinGroupRequest,
        pb.SyncGroupRequest,
        pb.HeartbeatRequest,
        pb.LeaveGroupRequest,
        pb.OffsetCommitRequest,
    }
)

_BATCHES: dict[type[Any], _Batch] = {
    pb.OffsetFetchRequest: _Batch("groups", "groups", lambda group: str(group.group_id)),
    pb.DescribeGroupsRequest: _Batch("group_ids", "groups", str),
    pb.DeleteGroupsRequest: _Batch("group_ids", "results", str, distinct=True),
}
