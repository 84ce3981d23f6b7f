"""A scripted cluster of two coordinators, and one whose groups change their kind."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from client.changing_kind import CONVERT_AFTER_S
from client.client_scripted import Coordinator, ScriptedCluster
from muster.testing import LocalCluster


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    scripted = ScriptedCluster([Coordinator("a"), Coordinator("b")])
    await scripted.start()
    try:
        yield scripted
    finally:
        await scripted.stop()


@pytest.fixture
def changing_kind(muster_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster that makes groups classic for members that can be nothing else, and incremental later."""
    monkeypatch.setenv("MUSTER_GROUP_CONVERT", "auto")
    monkeypatch.setenv("MUSTER_GROUP_CONVERT_AFTER_MS", str(round(CONVERT_AFTER_S * 1_000)))
    return LocalCluster()
