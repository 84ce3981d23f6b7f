"""A quick test that is none is named."""

import asyncio
import sys
import time
from pathlib import Path

import pytest
from kit.quick import Quickness
from muster_runtime.rpc.server import RpcServer
from muster_server.child_process import ChildProcess

pytestmark = pytest.mark.cluster


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Quickness:
    monkeypatch.setattr("kit.quick.LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    quickness = Quickness()
    quickness.watch(monkeypatch)
    return quickness


def test_a_sleep(seen: Quickness) -> None:
    time.sleep(0.01)
    assert seen.faults == []
    time.sleep(0.02)
    assert seen.faults == ["waits for 0.02 s"]


async def test_a_wait_of_the_loop(seen: Quickness) -> None:
    await asyncio.sleep(0.05)
    assert seen.faults
    assert all(fault.startswith("waits for 0.0") for fault in seen.faults)


async def test_a_server(seen: Quickness) -> None:
    with pytest.raises(Exception, match="nowhere"):
        await RpcServer().start("nowhere")
    assert seen.faults == ["listens as a server"]


def test_a_process(seen: Quickness) -> None:
    with pytest.raises(OSError, match="null"):
        ChildProcess("p", [sys.executable], Path("/dev/null/log")).start()
    assert seen.faults == ["starts a process that serves"]


def test_computing(seen: Quickness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.quick.LONGEST_COMPUTING_S", 0.05)
    was_slow = [seen.is_slow]
    deadline_s = time.process_time() + 0.1
    while time.process_time() < deadline_s:
        pass
    assert [*was_slow, seen.is_slow] == [False, True]
    assert seen.computed_s > 0.1
