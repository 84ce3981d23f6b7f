"""The alarms of an event loop share one timer: none of them may stop it."""

import asyncio

import pytest
from muster._alarms import Alarms
from muster._clock import boot_ms


async def test_a_deadline_that_somebody_has_ended_as_it_comes_keeps_no_alarm_from_ringing() -> None:
    """SES-06: the end of a life is such an alarm, and whoever ends a wait for a commit does it then."""
    alarms, rang = Alarms(), asyncio.Event()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        async with alarms.deadline(boot_ms()) as limit:
            with alarms.at(boot_ms(), rang.set):
                assert alarms._timer is not None
                alarms._timer.cancel()
                limit.reschedule(loop.time())
                loop.call_soon(alarms._look)  # the timer comes in that turn, after the end of the deadline
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait()
    assert rang.is_set()
