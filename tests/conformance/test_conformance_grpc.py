"""Recorded scripts again, over real gRPC: a coordinator in this process, on metadata in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conformance import traces
from conformance.traces import Answers, Circumstances, Player, Script
from coordinator.coordinator_cluster import SHARDS, Caller, MemoryCluster, owns
from muster_coordinator import Coordinator, CoordinatorSettings, GroupSettings
from muster_protos.muster.v1 import coordinator_pb2 as pb
from muster_runtime.channels import Address, parse_addresses
from support.metadata_stand_in import until

BROKER = GroupSettings(
    min_session_timeout_ms=traces.BROKER.min_session_timeout_ms,
    max_session_timeout_ms=traces.BROKER.max_session_timeout_ms,
    initial_rebalance_delay_ms=traces.BROKER.initial_rebalance_delay_ms,
    max_size=traces.BROKER.max_size,
)
KINDS = ("plain", "guided", "votes", "static", "offsets")
PER_KIND = 5


def _can_be_asked(script: Script) -> bool:
    """Time passes by itself here, and a commit with a generation below -1 is refused at the edge."""
    return not any(
        step.operation == "wait"
        or (step.operation == "commit" and step.argument.get("gen", 0) < 0)
        or (isinstance(step.argument, dict) and step.argument.get("session", 60_000) == 700)
        for step in script.steps
    )


def _sample() -> list[Script]:
    chosen = []
    for kind in KINDS:
        scripts = [script for script in traces.load() if script.name.startswith(f"{kind}-")]
        fitting = [s for s in scripts if _can_be_asked(s) and traces.judge(s).matches]
        plain = [s for s in fitting if not {"used group", "other leader"} & set(traces.judge(s).needed)]
        chosen += plain[:: max(1, len(plain) // PER_KIND)][:PER_KIND]
    return chosen


SAMPLE = _sample()


class GrpcPlayer(Player):
    """Plays a script against a coordinator: before each step every call is answered, or parked there."""

    def __init__(self, script: Script, group_id: str, coordinator: Coordinator, caller: Caller) -> None:
        super().__init__(script, Circumstances())
        self._group_id = group_id
        self._coordinator = coordinator
        self._stub = caller.stub
        self._open: dict[int, asyncio.Task[Any]] = {}

    @property
    def _parked(self) -> int:
        return sum(shard.open_calls for shard in self._coordinator.shards.values())

    def _settled(self) -> bool:
        """Whether nothing is on the way, neither to the coordinator nor to its log."""
        cores = [shard.core for shard in self._coordinator.shards.values() if shard.core is not None]
        on_the_way = any(core._context._appends for core in cores)
        return not on_the_way and sum(not task.done() for task in self._open.values()) == self._parked

    async def ask(self) -> list[Answers]:
        """Plays all steps; returns the answers after each."""
        played = []
        for number, step in enumerate(self.script.steps):
            message = traces.request_of(
                step, self.seats.setdefault(step.label, traces.Seat()), self._group_id
            )
            method = getattr(self._stub, type(message).__name__.removesuffix("Request"))
            self._open[number] = asyncio.ensure_future(method(message, timeout=30))
            self.calls[number] = number
            await until(self._settled)
            for call, task in list(self._open.items()):
                if task.done():
                    self.cluster.answers[call] = self._open.pop(call).result()
            played.append(self._collect())
        for task in self._open.values():
            task.cancel()
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        await until(lambda: self._parked == 0)
        return [self._renamed(answers) for answers in played]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster()
    await cluster.start()
    yield cluster
    await cluster.stop()


async def test_a_sample_is_answered_as_kafka_does(cluster: MemoryCluster) -> None:
    settings = CoordinatorSettings(
        listen=Address("127.0.0.1", 0), node_id="a", metadata=parse_addresses(",".join(cluster.metadata))
    )
    coordinator = Coordinator(settings, group=BROKER)
    await coordinator.start()
    cluster.running.append(coordinator)
    await owns(coordinator, SHARDS)
    caller = cluster.caller(coordinator)
    assert len(SAMPLE) == len(KINDS) * PER_KIND
    for script in SAMPLE:
        player = GrpcPlayer(script, f"recorded {script.name}", coordinator, caller)
        played = await player.ask()
        verdict = traces.compare(script, played)
        where = f"{script.name}, step {verdict.step}"
        assert verdict.matches, f"{where}: Kafka {verdict.expected}, Muster {verdict.got}"
    listed = await caller.stub.ListGroups(pb.ListGroupsRequest())
    assert listed.error_code == 0
