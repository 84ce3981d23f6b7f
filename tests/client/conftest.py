"""A scripted cluster of two coordinators."""

from collections.abc import AsyncIterator

import pytest_asyncio
from client.client_scripted import Coordinator, ScriptedCluster


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    scripted = ScriptedCluster([Coordinator("a"), Coordinator("b")])
    await scripted.start()
    try:
        yield scripted
    finally:
        await scripted.stop()
