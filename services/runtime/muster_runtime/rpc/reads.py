"""Reading from a stream with a limit of time."""

import asyncio
from typing import Any


async def read_within(stream: Any, limit_s: float | None) -> Any:
    """Reads the next message of a call.

    `asyncio.wait_for` would not do: in Python 3.11 it loses a cancellation that comes together with the
    message, and who reads in a loop goes on for ever.

    Args:
        stream: a call of grpc with a stream of answers.
        limit_s: how long it may take; None: for ever.

    Returns:
        The message, or grpc's EOF.

    Raises:
        TimeoutError: nothing came in time; the call is cancelled.
    """
    async with asyncio.timeout(limit_s):
        return await stream.read()
