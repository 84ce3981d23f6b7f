"""Plays scripts of incremental groups over real gRPC against a process, by unary calls.

As of classic groups (`traces_grpc`) such scripts are played whose answers do not depend on how long a step
takes. Members on session streams hear of changes at once and not with their next call: nothing to compare.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc
import muster
from conformance.traces_grpc import WAITS_MAX_MS, Unary
from conformance.traces_incremental import (
    MAX_SIZE,
    TOPICS,
    Answer,
    IncrementalPlayer,
    IncrementalScript,
    IncrementalVerdict,
    compare,
    render,
    request_of,
)
from kit import leases
from kit.clusters import server_cluster
from muster_core import error_code
from muster_core.config import GroupConfig

SAMPLE = 40
"""How many scripts are played unless somebody asks for another number."""

_STEP_LENGTHS_MS = (0, 1_000)
_TOGETHER = 8


def sample(scripts: Sequence[IncrementalScript], count: int) -> tuple[list[IncrementalScript], Counter[str]]:
    """Chooses scripts that can be played in real time, spread over all of them.

    Returns:
        The chosen ones, and why how many others were passed over.
    """
    passed_over: Counter[str] = Counter()
    chosen: list[IncrementalScript] = []
    stride = max(1, len(scripts) // count)
    for first in range(stride):
        for script in scripts[first::stride]:
            if len(chosen) == count:
                return chosen, passed_over
            if why := _why_not(script):
                passed_over[why] += 1
            else:
                chosen.append(script)
    return chosen, passed_over


def _why_not(script: IncrementalScript) -> str:
    """Why a script cannot be played in real time; empty: it can."""
    config = GroupConfig()
    of_process = (config.incremental_session_timeout_ms, config.incremental_heartbeat_interval_ms)
    if (script.session_ms, script.interval_ms) != of_process:
        return "has another session than members of a process get"
    if script.growing or any(step.operation == "topic" for step in script.steps):
        return "changes a topic, which all groups see"
    if any("regex" in step.argument for step in script.steps if step.operation == "heartbeat"):
        return "depends on when an expression is matched"
    if sum(step.argument for step in script.steps if step.operation == "wait") > WAITS_MAX_MS:
        return f"waits for more than {WAITS_MAX_MS / 1_000:g} s"
    plays = [IncrementalPlayer(script, step_ms).play() for step_ms in _STEP_LENGTHS_MS]
    return "" if plays[0] == plays[1] else "depends on how long a step takes"


async def play_on_processes(folder: Path, chosen: Sequence[IncrementalScript]) -> list[IncrementalVerdict]:
    """Starts a cluster of processes and plays scripts on it, several at a time; returns what each came to.

    Args:
        folder: for the cluster's data.
        chosen: the scripts.
    """
    settings = {"MUSTER_GROUP_MAX_SIZE": str(MAX_SIZE), **leases.LASTING}
    async with (
        server_cluster.running(folder, coordinators=1, settings=settings) as cluster,
        muster.Cluster(cluster.servers) as client,
    ):
        for topic, partitions in TOPICS.items():
            await client.create_topic(topic, partitions)
        await server_cluster.all_served(cluster.servers)
        address = await server_cluster.find(cluster.servers, "g")
        room = asyncio.Semaphore(_TOGETHER)

        async def one(script: IncrementalScript) -> IncrementalVerdict:
            async with room:
                return compare(script, await _play(script, Unary(channel)))

        async with grpc.aio.insecure_channel(address) as channel:
            return await asyncio.gather(*map(one, chosen))


async def _play(script: IncrementalScript, caller: Unary) -> list[Answer | None]:
    answers: list[Answer | None] = []
    for step in script.steps:
        if step.operation == "wait":
            await asyncio.sleep(step.argument / 1_000)
            answers.append(None)
            continue
        try:
            answers.append(render(await caller.call(request_of(step, f"recorded {script.name}"))))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            answers.append(
                {"error": int(error_code.INVALID_REQUEST)}
            )  # docs/protocol.md: errors, in two layers
    return answers
