"""A call to a shard of this process: waits for what has to end first, and for the answer."""

import asyncio
from collections.abc import Callable
from functools import partial

from muster_core import error_code
from muster_core.events import GroupRequest, GroupResponse, MemberRange
from muster_protos.muster.v1 import coordinator_pb2

from muster_coordinator.shard.owned_shard import OwnedShard
from muster_coordinator.shard.phase import Phase

_NO_BARRIER = "the log does not answer, so it is not certain what was committed last; try again"


async def ask(shard: OwnedShard, message: GroupRequest, host: str) -> GroupResponse:
    """Answers a call, now or when the group protocol says so. Cancel it when its caller goes away."""
    if shard.phase is not Phase.SERVING:
        await shard.settled()
    if isinstance(message, coordinator_pb2.ReleaseGroupRequest):
        return shard.refused(message) or shard.release(message.group_id)
    if isinstance(message, coordinator_pb2.OffsetFetchRequest):
        refused = shard.refused(message)
        if refused is None and not await shard.verify():
            refused = shard.refused(message) or _not_confirmed(shard, message)
        if refused is not None:
            return refused
    return await _answer(shard, message, host)


async def reach(shard: OwnedShard, *, barrier: bool) -> Callable[..., GroupResponse]:
    """Waits until a shard can answer what is only read, or is known not to.

    Args:
        shard: the shard.
        barrier: whether a majority must have confirmed that it is owned here.

    Returns:
        What answers such calls from now on, at once.
    """
    await shard.settled()
    confirmed = not barrier or (shard.may_answer and await shard.verify())
    return partial(_read, shard, confirmed=confirmed)


def _read(
    shard: OwnedShard,
    message: GroupRequest,
    host: str,
    shown: MemberRange | None = None,
    *,
    confirmed: bool,
) -> GroupResponse:
    refused = shard.refused(message)
    if refused is None and not confirmed:
        refused = _not_confirmed(shard, message)
    if refused is not None:
        return refused
    answers: list[GroupResponse] = []
    shard.start(message, host, answers.append, shown=shown)
    return answers[0]


def _not_confirmed(shard: OwnedShard, message: GroupRequest) -> GroupResponse:
    return shard.refuse(message, error_code.COORDINATOR_NOT_AVAILABLE, _NO_BARRIER)


async def _answer(shard: OwnedShard, message: GroupRequest, host: str) -> GroupResponse:
    future: asyncio.Future[GroupResponse] = asyncio.get_running_loop().create_future()
    call_id = shard.start(message, host, partial(_settle, future))
    if call_id is None:
        return future.result()
    try:
        return await future
    except asyncio.CancelledError:
        shard.abandon(call_id)
        raise


def _settle(future: asyncio.Future[GroupResponse], response: GroupResponse) -> None:
    if not future.done():
        future.set_result(response)
