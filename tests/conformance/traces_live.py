"""Plays scripts against something that runs: real calls, real time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from conformance.traces import Answers, Script
from conformance.traces_calls import Cast
from muster_core.events import GroupRequest, GroupResponse

Call = Callable[[GroupRequest], Awaitable[GroupResponse]]
OpenCalls = Mapping[int, "asyncio.Future[GroupResponse]"]
Settle = Callable[[int, OpenCalls], Awaitable[None]]


async def play(script: Script, group_id: str, call: Call, settle: Settle) -> list[Answers]:
    """Plays all steps; returns the answers after each.

    Args:
        script: what to play.
        group_id: a group that nobody has used.
        call: makes a call.
        settle: waits, after each step, until whatever follows from it has happened: it is given the
            number of the step and the calls that are open, by number.
    """
    cast = Cast(script, group_id)
    calls: dict[int, asyncio.Future[GroupResponse]] = {}
    played = []
    try:
        for number, step in enumerate(script.steps):
            if step.operation != "wait":
                calls[number] = asyncio.ensure_future(call(cast.request(number)))
            await settle(number, calls)
            done = [number for number, answer in calls.items() if answer.done()]
            played.append(cast.hear({number: calls.pop(number).result() for number in done}))
    finally:
        for answer in calls.values():
            answer.cancel()
        await asyncio.gather(*calls.values(), return_exceptions=True)
    return [cast.renamed(answers) for answers in played]
