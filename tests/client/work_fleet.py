"""`arun` as a context: it runs inside, and has ended in order at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import muster
from client.client_scripted import ScriptedCluster

FAST: dict[str, Any] = {"heartbeat_interval_ms": 30, "session_timeout_ms": 10_000, "session": False}


@asynccontextmanager
async def fleet(scripted: ScriptedCluster, work: Any, **settings: Any) -> AsyncIterator[None]:
    """Works on the three partitions of `t`. What `arun` raises interrupts the body and is raised."""
    stop = asyncio.Event()
    body = asyncio.current_task()
    assert body is not None

    async def run() -> None:
        try:
            await muster.arun(
                work,
                group="g",
                topic="t",
                partitions=3,
                servers=scripted.address,
                stop=stop,
                **{**FAST, **settings},
            )
        except Exception:
            body.cancel()
            raise

    task = asyncio.create_task(run())
    try:
        yield
    except asyncio.CancelledError:
        body.uncancel()
        if not task.done():
            raise
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)
