"""Surveys every node of a log: its identity, its durability, how far its copies are. Reads only."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from muster_core.position import Position
from muster_metadata.log.states import Inspected
from muster_metadata.nodes.addresses import place_of, split_urls
from muster_metadata.nodes.configuration import (
    Configuration,
    Introduction,
    Unusable,
    agreed_configuration,
    newest_of,
)
from muster_metadata.nodes.connection import fields
from muster_metadata.nodes.durability import Weakness, configuration_of, default_user, weaknesses_in
from muster_metadata.nodes.introductions import introductions
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.problem import (
    LOADING,
    NOT_REACHED_YET,
    REPLICA,
    SILENT,
    Problem,
    ProblemKind,
)
from muster_metadata.nodes.reply import NodeReply, Status

STEP_TIMEOUT_MS = 2_000

_PATIENCE_S = 10.0
_NOT_KNOWN_YET = (None, NOT_REACHED_YET, SILENT)
_INSPECTED_AT_ONCE = 500
_EMPTY = Problem(ProblemKind.EMPTY, "it has no data of a cluster")
_DISK = Problem(ProblemKind.DISK, "it cannot write to its disk: it answers reads and refuses writes")
_OUT_OF_MEMORY = Problem(
    ProblemKind.OUT_OF_MEMORY, "it is out of memory: it answers reads and refuses writes"
)
_OLD_CONFIGURATION = Problem(
    ProblemKind.OLD_CONFIGURATION,
    "it does not have the newest configuration yet; a running metadata service brings it up to date",
)
_UNREADABLE = Weakness(
    "configuration",
    "its configuration cannot be read",
    "give the user the right `+config|get`: without it, it is unknown what a crash may lose",
    forgets=False,
)


@dataclass(slots=True)
class NodeState:
    """One node.

    Attributes:
        index: its place, from 1.
        address: `host:port`.
        identity: which node it says that it is; empty: it has no data of a cluster.
        server: program and version.
        persistence: `appendfsync` of its append-only file; `off` without one; or `unknown`.
        eviction: `maxmemory-policy`, or `unknown`.
        clock_ahead_ms: how far its wall clock is ahead of this machine's; None: the user may not ask for it.
        memory_bytes: memory used.
        memory_limit_bytes: limit of its memory; 0: none.
        missing_logs: logs that it does not have.
        unsure_logs: logs that it does not vote on: it restarted and may have forgotten its last answers.
        damaged_logs: logs that lack entries in the middle.
        lagging_logs: logs that end before the best copy.
        lag_entries: largest number of entries that it lacks in one log.
        apart_promises: logs for which it promised another epoch than the majority.
        problems: what is wrong; none: it is well.
        weaknesses: what its configuration gives up.
    """

    index: int
    address: str
    identity: str = ""
    server: str = ""
    persistence: str = "unknown"
    eviction: str = "unknown"
    clock_ahead_ms: int | None = None
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    missing_logs: int = 0
    unsure_logs: int = 0
    damaged_logs: int = 0
    lagging_logs: int = 0
    lag_entries: int = 0
    apart_promises: int = 0
    problems: list[Problem] = field(default_factory=list)
    weaknesses: list[Weakness] = field(default_factory=list)


@dataclass(slots=True)
class Survey:
    """All nodes.

    Attributes:
        configuration: of the log; None: no node has one.
        nodes: in order.
        problem: why the addresses are no log; empty if they are one.
        ends: where each log ends on each node that counts and has it: number of the log → index of the node.
    """

    configuration: Configuration | None
    nodes: list[NodeState]
    problem: str = ""
    ends: Mapping[int, Mapping[int, Position]] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong anywhere."""
        return not self.problem and not any(node.problems for node in self.nodes)


async def survey(urls: str) -> Survey:
    """Asks every node.

    Args:
        urls: `redis://a,b,c`.

    Raises:
        BadUrlsError: the address is invalid.
    """
    addresses = split_urls(urls)
    nodes = [Node(index, url, STEP_TIMEOUT_MS) for index, url in enumerate(addresses, 1)]
    for node in nodes:
        node.start()
    try:
        said = await _introductions(nodes)
        found = agreed_configuration([place_of(url) for url in addresses], said)
        configuration = newest_of(said)
        states = [NodeState(node.index, node.place) for node in nodes]
        await asyncio.gather(
            *(_describe(node, one, state) for node, one, state in zip(nodes, said, states, strict=True))
        )
        ends: Mapping[int, Mapping[int, Position]] = {}
        if configuration is not None and len(configuration.addresses) == len(nodes):
            ends = await _compare(nodes, said, states, configuration)
        return Survey(configuration, states, found.reason if isinstance(found, Unusable) else "", ends)
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def _introductions(nodes: Sequence[Node]) -> list[Introduction | None]:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _PATIENCE_S
    while True:
        said = await introductions(nodes, STEP_TIMEOUT_MS)
        settled = all(
            one is not None or node.tables.problem not in _NOT_KNOWN_YET
            for one, node in zip(said, nodes, strict=True)
        )
        if settled or loop.time() > deadline_s:
            return said
        await asyncio.sleep(0.02)


async def _describe(node: Node, said: Introduction | None, state: NodeState) -> None:
    """Fills in what the server says about itself and its configuration."""
    if said is None:
        state.problems.append(node.tables.problem or SILENT)
        return
    state.identity = said.identity
    info: dict[str, str] = {}
    for section in ("server", "persistence", "memory", "replication"):
        reply = await node.ask("INFO", section)
        if reply.status is Status.OK:
            info |= fields(reply.values[0])
    program = "valkey" if "valkey_version" in info else "redis"
    state.server = f"{program} {info.get(f'{program}_version', '?')}"
    state.memory_bytes = int(info.get("used_memory", 0))
    state.memory_limit_bytes = int(info.get("maxmemory", 0))
    if not said.identity:
        state.problems.append(_EMPTY)
    if info.get("loading") == "1":
        state.problems.append(LOADING)
    if info.get("aof_last_write_status", "ok") != "ok":
        state.problems.append(_DISK)
    if 0 < state.memory_limit_bytes <= state.memory_bytes:
        state.problems.append(_OUT_OF_MEMORY)
    if info.get("role", "master") != "master":
        state.problems.append(REPLICA)
    state.clock_ahead_ms = await _clock_ahead_ms(node)
    await _configured(node, state)


async def _clock_ahead_ms(node: Node) -> int | None:
    asked_ns = time.time_ns()
    reply = await node.ask("TIME")
    if reply.status is not Status.OK:
        return None
    seconds, microseconds = map(int, reply.values[0])
    middle_ns = (asked_ns + time.time_ns()) // 2
    return (seconds * 1_000_000_000 + microseconds * 1_000 - middle_ns) // 1_000_000


async def _configured(node: Node, state: NodeState) -> None:
    found = await configuration_of(node)
    if found:
        state.persistence = found["appendfsync"] if found["appendonly"] == "yes" else "off"
        state.eviction = found["maxmemory-policy"]
        state.weaknesses += weaknesses_in(found)
    else:
        state.weaknesses.append(_UNREADABLE)
    state.weaknesses += await default_user(node)


async def _compare(
    nodes: Sequence[Node],
    said: Sequence[Introduction | None],
    states: Sequence[NodeState],
    configuration: Configuration,
) -> dict[int, dict[int, Position]]:
    """Compares the ends and promises of every log on the nodes; returns where each log ends on each node."""
    counted: list[tuple[Node, NodeState]] = []
    for node, one, state in zip(nodes, said, states, strict=True):
        node.belongs_to(
            configuration.cluster_id,
            configuration.shard_count,
            len(nodes),
            configuration.number,
            configuration.addresses,
        )
        if one is None:
            continue
        if one.identity and one.identity != node.identity:
            state.problems.append(_stranger(one, node, configuration))
        elif not one.identity and not node.member:
            sentence = (
                f"the log's configuration names {configuration.addresses[node.index - 1]} as this node: run "
                "`muster nodes replace` if it is to take its place"
            )
            state.problems.append(Problem(ProblemKind.NOT_A_NODE, sentence))
        else:
            counted.append((node, state))
    logs = range(configuration.shard_count + 1)
    ends: dict[int, dict[int, Position]] = {}
    for first in range(0, len(logs), _INSPECTED_AT_ONCE):
        part = logs[first : first + _INSPECTED_AT_ONCE]
        for shard in part:
            replies = await asyncio.gather(*(node.inspect(shard) for node, _ in counted))
            ends[shard] = _compare_log([state for _, state in counted], replies, len(nodes) // 2 + 1)
    for _, state in counted:
        state.problems += _of_its_logs(state, len(logs))
    return ends


def _of_its_logs(state: NodeState, count: int) -> Iterator[Problem]:
    if state.identity and state.missing_logs:
        yield Problem(ProblemKind.LACKS_LOGS, f"it lacks {state.missing_logs} of {count} logs")
    if state.unsure_logs:
        yield Problem(
            ProblemKind.UNSURE,
            f"it restarted and may have forgotten its last answers: it does not vote on "
            f"{state.unsure_logs} of {count} logs until a majority of the others has repaired them",
        )
    if state.damaged_logs:
        yield Problem(
            ProblemKind.DAMAGED,
            f"{state.damaged_logs} of its logs lack entries in the middle: `muster verify` names them",
        )


def _stranger(said: Introduction, node: Node, configuration: Configuration) -> Problem:
    if configuration.keeps(node.index, said):
        return _OLD_CONFIGURATION
    return Problem(
        ProblemKind.OTHER_NODE,
        f"it says that it is {said.identity!r} and should be {node.identity!r}: it does not count",
    )


def _compare_log(
    states: Sequence[NodeState], replies: Sequence[NodeReply], majority: int
) -> dict[int, Position]:
    ends: list[tuple[NodeState, Position]] = []
    promises: list[tuple[NodeState, tuple[int, bytes]]] = []
    for state, reply in zip(states, replies, strict=True):
        if reply.status is Status.RESTARTED:
            state.unsure_logs += 1
            continue
        if reply.status is not Status.OK:
            state.missing_logs += 1
            continue
        found = Inspected.read(reply)
        state.damaged_logs += found.missing > 0
        ends.append((state, found.end.position))
        promises.append((state, (found.epoch, found.nonce)))
    best = max((end for _, end in ends), default=None)
    for state, end in ends:
        if best is not None and end < best:
            state.lagging_logs += 1
            state.lag_entries = max(state.lag_entries, best.offset - end.offset)
    held = [promise for _, promise in promises]
    common = max(set(held), key=held.count, default=None)
    for state, promise in promises:
        if common is not None and held.count(common) >= majority and promise != common:
            state.apart_promises += 1
    return {state.index: end for state, end in ends}
