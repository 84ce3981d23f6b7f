"""Surveys the servers of the log and judges them. Reads only."""

import asyncio
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TypeAlias

from muster_core.position import NOWHERE, Position
from muster_metadata.nodes.problem import ProblemKind
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_server.doctor.findings import CheckResult, Finding
from muster_server.nodes.survey import NodeState, Survey, survey

Ends: TypeAlias = Mapping[int, Mapping[int, Position]]
"""Where each log ends on each node: number of the log → index of the node."""

CATCH_UP_S = 2.0
"""How long a node may take to catch up with another one."""

_MEMORY_SHARE = 0.8

_REMEDIES = {
    ProblemKind.UNREACHABLE: "start it; it is repaired by itself. Gone for good: `muster nodes replace`",
    ProblemKind.SILENT: "it is stopped, or overloaded: look at its machine; the others go on without it",
    ProblemKind.BAD_CREDENTIALS: "correct user and password in MUSTER_METADATA_REDIS_URL",
    ProblemKind.BAD_CERTIFICATE: "correct the certificates named in MUSTER_METADATA_REDIS_URL",
    ProblemKind.TLS_REFUSED: "correct scheme and certificates in MUSTER_METADATA_REDIS_URL",
    ProblemKind.COMMAND_REFUSED: 'give the user its rights: docs/failures.md, "TLS, passwords, rights"',
    ProblemKind.EMPTY: "wait: a running metadata service rebuilds it from the others",
    ProblemKind.LOADING: "wait until it has read its append-only file",
    ProblemKind.BUSY: "another program's script runs there: `SCRIPT KILL` ends it, unless it has written",
    ProblemKind.DISK: "make room on its disk; it catches up by itself",
    ProblemKind.OUT_OF_MEMORY: (
        "raise its maxmemory, or delete groups and topics and keep less (MUSTER_SHARD_LOG_RETENTION_MS)"
    ),
    ProblemKind.REPLICA: "`REPLICAOF NO ONE`: Muster replicates by itself, every node is a server of its own",
    ProblemKind.OLD_CONFIGURATION: "wait: a running metadata service brings it up to date",
    ProblemKind.OTHER_NODE: "name the nodes in the order in which they were made: `muster doctor --nodes`",
    ProblemKind.NOT_A_NODE: "`muster nodes replace OLD NEW` if it is to take that one's place",
    ProblemKind.UNSURE: "wait: a majority of the others repairs it; `log_waits_for_a_node` says who is away",
    ProblemKind.LACKS_LOGS: "wait: it is rebuilt from the others while a metadata service runs",
}
_REMEDY = 'see docs/failures.md, "What the operator does"'


async def look_twice(urls: str) -> tuple[Survey, Survey]:
    """Makes two surveys, `CATCH_UP_S` apart; if no node lags in the first, it is returned twice.

    Raises:
        BadUrlsError: the address is invalid.
    """
    first = await survey(urls)
    if not lags(first.ends):
        return first, first
    await asyncio.sleep(CATCH_UP_S)
    return first, await survey(urls)


def judge_nodes(first: Survey, second: Survey, cluster_id: str) -> Iterator[Finding]:
    """Judges each node, and all of them together.

    Args:
        first: a survey.
        second: a later survey; a node that lacks by then what another one had in the first is behind.
        cluster_id: the cluster that discovery serves; empty: unknown.
    """
    yield from _together(second, cluster_id)
    behind = _behind(first.ends, second.ends)
    for node in second.nodes:
        subject = f"node {node.index} ({node.address})"
        for problem in node.problems:
            yield Finding("log node", subject, CheckResult.FAILED, str(problem), _remedy(problem.kind))
        if not node.server:
            continue
        if not node.problems:
            yield Finding("log node", subject, CheckResult.OK, f"{node.server}, {_memory(node)}")
        yield from _configuration(node, subject)
        yield from _room(node, subject)
        yield _lag(behind.get(node.index, (0, 0)), subject)


def _together(found: Survey, cluster_id: str) -> Iterator[Finding]:
    count = len(found.nodes)
    if found.problem:
        yield Finding(
            "log",
            "all nodes",
            CheckResult.FAILED,
            found.problem,
            "MUSTER_METADATA_REDIS_URL must name every node of the log once, in the order in which they "
            "were made, each a server of its own",
        )
        return
    configuration = found.configuration
    if configuration is None:
        return
    if cluster_id and configuration.cluster_id != cluster_id:
        yield Finding(
            "log",
            "all nodes",
            CheckResult.FAILED,
            f"they hold the cluster {configuration.cluster_id}, and discovery serves {cluster_id}",
            "name the nodes of the same cluster with --redis, or its discovery with --servers",
        )
    elif count == 1:
        yield Finding(
            "log",
            configuration.cluster_id,
            CheckResult.WARNING,
            "it has one node: nothing can be written while that is away, and its data is the only copy",
            "three nodes need a new cluster; until then back it up: docs/backup.md",
        )
    else:
        yield Finding(
            "log",
            configuration.cluster_id,
            CheckResult.OK,
            f"{count} different servers, configuration {configuration.number}",
        )


def _remedy(kind: ProblemKind) -> str:
    return _REMEDIES.get(kind, _REMEDY)


def _memory(node: NodeState) -> str:
    used = f"{node.memory_bytes / (1 << 20):.0f} MiB"
    return f"{used} of {node.memory_limit_bytes / (1 << 20):.0f}" if node.memory_limit_bytes else used


def _configuration(node: NodeState, subject: str) -> Iterator[Finding]:
    for weakness in node.weaknesses:
        yield Finding(
            "durability",
            subject,
            CheckResult.FAILED if weakness.forgets else CheckResult.WARNING,
            weakness.sentence,
            weakness.remedy,
        )
    if not node.weaknesses:
        detail = f"append-only file, appendfsync {node.persistence}, {node.eviction}"
        yield Finding("durability", subject, CheckResult.OK, detail)


def _room(node: NodeState, subject: str) -> Iterator[Finding]:
    limit_bytes = node.memory_limit_bytes
    if limit_bytes and _MEMORY_SHARE * limit_bytes < node.memory_bytes < limit_bytes:
        yield Finding(
            "memory",
            subject,
            CheckResult.WARNING,
            f"it uses {_memory(node)}",
            "raise its maxmemory, or keep less: MUSTER_SHARD_LOG_RETENTION_MS",
        )


def _behind(first: Ends, second: Ends) -> dict[int, tuple[int, int]]:
    """For each node by its index: in how many logs it is behind, and by how many entries at most."""
    found: dict[int, tuple[int, int]] = {}
    for shard, ends in second.items():
        wanted = max(first.get(shard, {}).values(), default=NOWHERE)
        for index, end in ends.items():
            if end < wanted:
                logs, entries = found.get(index, (0, 0))
                found[index] = logs + 1, max(entries, wanted.offset - end.offset)
    return found


def _lag(behind: tuple[int, int], subject: str) -> Finding:
    logs, entries = behind
    if not logs:
        return Finding("lag", subject, CheckResult.OK, "it has what the others have")
    return Finding(
        "lag",
        subject,
        CheckResult.FAILED,
        f"it is behind in {logs} logs, by {entries} entries at most, and does not catch up within "
        f"{CATCH_UP_S:g} s",
        "a metadata service that runs repairs it: `log_node_lost` in its log says why it cannot",
    )


def ends_of(replicas: Sequence[metadata_pb2.DescribeLogResponse.Replica]) -> Ends:
    """Where each log ends on each node that has it, from metadata's answer."""
    ends: dict[int, dict[int, Position]] = {}
    for replica in replicas:
        if replica.outcome == metadata_pb2.LOG_OUTCOME_OK:
            ends.setdefault(replica.shard, {})[replica.node] = Position.from_proto(replica.end)
    return ends


def lags(ends: Ends) -> bool:
    """Whether some log ends earlier on one node than on another, which is normal for a moment."""
    return any(len(set(held.values())) > 1 for held in ends.values())


def unsure(
    replicas: Sequence[metadata_pb2.DescribeLogResponse.Replica], away: Container[int]
) -> Counter[int]:
    """For each node by its index: of how many logs metadata gets no answer; without the nodes in `away`."""
    return Counter(
        replica.node
        for replica in replicas
        if replica.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN and replica.node not in away
    )


def judge_replicas(
    first: Sequence[metadata_pb2.DescribeLogResponse.Replica],
    second: Sequence[metadata_pb2.DescribeLogResponse.Replica],
    away: Container[int] = (),
) -> Iterator[Finding]:
    """Judges the logs on the nodes as metadata sees them, for users who cannot reach the nodes.

    Args:
        first: every log on every node.
        second: a later answer, as with `judge_nodes`.
        away: nodes that metadata does not reach, which are reported elsewhere.
    """
    missing = Counter(
        replica.node for replica in second if replica.outcome == metadata_pb2.LOG_OUTCOME_NO_LOG
    )
    ends = ends_of(second)
    behind = _behind(ends_of(first), ends)
    doubtful = unsure(second, away)
    answering = {index for held in ends.values() for index in held}
    for index in sorted({*answering, *missing, *doubtful}):
        subject = f"node {index}"
        if missing[index]:
            problem = f"it lacks {missing[index]} of its logs"
            yield Finding("log node", subject, CheckResult.FAILED, problem, _remedy(ProblemKind.LACKS_LOGS))
        elif doubtful[index]:
            problem = (
                f"it restarted, may have forgotten something, and does not vote on {doubtful[index]} logs"
            )
            yield Finding("log node", subject, CheckResult.FAILED, problem, _remedy(ProblemKind.UNSURE))
        else:
            yield _lag(behind.get(index, (0, 0)), subject)
