"""Examines a whole cluster. Reads only."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.rpc.trust.trust import Trust

from muster_server.doctor import cluster as judge
from muster_server.doctor import nodes as log_nodes
from muster_server.doctor.clients import judge_clients
from muster_server.doctor.findings import CheckResult, Finding
from muster_server.doctor.holds import judge_holds
from muster_server.doctor.processes import Asker, Process
from muster_server.nodes.survey import Survey
from muster_server.roles import COORDINATOR, DISCOVERY, METADATA


@dataclass(frozen=True, slots=True)
class Patient:
    """What to examine.

    Attributes:
        servers: addresses of discovery, `host:port`.
        metadata: addresses of metadata; none: it is skipped.
        redis: nodes of the log, `redis://…`; empty: they are examined through metadata.
        trust: certificates and tokens for discovery, metadata and coordinators.
    """

    servers: Sequence[str]
    metadata: Sequence[str]
    redis: str
    trust: Trust


async def examine(patient: Patient) -> list[Finding]:
    """Examines everything that can be reached, and returns all findings.

    Raises:
        BadUrlsError: the address of the log is invalid.
    """
    asker = Asker(patient.trust)
    (discovery, views), metadata, surveys = await asyncio.gather(
        discovery_of(asker, patient.servers),
        asker.processes(METADATA, patient.metadata),
        _surveys(patient.redis),
    )
    view = next(iter(views.values()), None)
    coordinators = [] if view is None else await coordinators_of(asker, view, metadata)
    processes = [*discovery, *metadata, *coordinators]

    findings = list(judge.judge_processes(discovery))
    if view is None:
        findings.append(
            Finding(
                "cluster",
                "coordinators, shards",
                CheckResult.SKIPPED,
                "no discovery instance describes the cluster",
                "make one serve, or name one with --servers or MUSTER_SERVERS",
            )
        )
    else:
        findings += judge.judge_views(views)
    findings += _metadata(metadata)
    findings += judge.judge_processes(coordinators)
    if view is not None:
        findings += judge.judge_coordinators(view)
        faults = await _faults(asker, coordinators)
        findings += judge.judge_faults(faults)
        findings += judge_holds(faults, time.time_ns() // 1_000_000)
        findings += judge_clients(faults, [process.version for process in processes if process.version])
    findings += judge.judge_rights([*discovery, *coordinators])
    findings += await _log(asker, patient, surveys, metadata, view)
    findings += judge.judge_versions(
        {
            "this command": version("muster-server"),
            **{_named(process): process.version for process in processes if not process.problem},
        }
    )
    findings += judge.judge_clocks(_clocks(processes, surveys))
    return findings


async def discovery_of(
    asker: Asker, servers: Sequence[str]
) -> tuple[list[Process], dict[str, discovery_pb2.Cluster]]:
    """Asks discovery; the processes, and the cluster as each that serves describes it, by address."""
    processes = await asker.processes(DISCOVERY, servers)
    serving = [process.address for process in processes if process.serving]
    views = await asyncio.gather(*(asker.cluster(address) for address in serving))
    reached = {address: view for address, view in zip(serving, views, strict=True) if view is not None}
    return processes, reached


async def coordinators_of(
    asker: Asker, view: discovery_pb2.Cluster, metadata: Sequence[Process]
) -> list[Process]:
    """Asks the live coordinators; of the others there is only the state in the view.

    Only metadata knows where they answer internal calls. Who cannot make these gets the versions of the view.
    """
    live = [node for node in view.coordinators if node.state == discovery_pb2.COORDINATOR_STATE_LIVE]
    serving = next((process.address for process in metadata if process.serving), "")
    internal = await asker.internal_addresses(serving) if serving else {}
    processes = await asyncio.gather(
        *(
            asker.process(
                COORDINATOR,
                f"{node.node_id} ({node.host}:{node.port})",
                f"{node.host}:{node.port}",
                internal.get(node.node_id, ""),
            )
            for node in live
        )
    )
    return [
        replace(process, version=process.version or node.version)
        for process, node in zip(processes, live, strict=True)
    ]


async def _faults(
    asker: Asker, coordinators: Sequence[Process]
) -> dict[str, peer_pb2.DescribeFaultsResponse]:
    serving = [process for process in coordinators if process.serving]
    answers = await asyncio.gather(*(asker.faults(process.internal) for process in serving))
    return {
        process.name: faults for process, faults in zip(serving, answers, strict=True) if faults is not None
    }


def _metadata(metadata: Sequence[Process]) -> list[Finding]:
    if metadata:
        return list(judge.judge_processes(metadata))
    return [
        Finding(
            METADATA,
            "all",
            CheckResult.SKIPPED,
            "no address of metadata is known",
            "name them with --metadata, or run this where MUSTER_DISCOVERY_METADATA is set",
        )
    ]


async def _surveys(redis: str) -> tuple[Survey, Survey] | None:
    return await log_nodes.look_twice(redis) if redis else None


async def _log(
    asker: Asker,
    patient: Patient,
    surveys: tuple[Survey, Survey] | None,
    metadata: Sequence[Process],
    view: discovery_pb2.Cluster | None,
) -> list[Finding]:
    if surveys is not None:
        return list(log_nodes.judge_nodes(*surveys, "" if view is None else view.cluster_id))
    findings = [] if view is None else list(judge.judge_log_nodes(view))
    serving = next((process.address for process in metadata if process.serving), "")
    if serving and (first := await asker.replicas(serving)) is not None:
        second = first
        away = {node.index for node in (() if view is None else view.log_nodes) if not node.available}
        if log_nodes.lags(log_nodes.ends_of(first)) or log_nodes.unsure(first, away):
            await asyncio.sleep(log_nodes.CATCH_UP_S)
            second = await asker.replicas(serving) or first
        findings += log_nodes.judge_replicas(first, second, away)
    findings.append(
        Finding(
            "durability",
            "all nodes",
            CheckResult.SKIPPED,
            "the servers of the log were not asked directly",
            f"name them with --redis, or run this where {_REDIS_URL} is set, such as in a metadata container",
        )
    )
    return findings


_REDIS_URL = "MUSTER_METADATA_REDIS_URL"


def _named(process: Process) -> str:
    return process.name if process.role == COORDINATOR else f"{process.role} {process.name}"


def _clocks(processes: Sequence[Process], surveys: tuple[Survey, Survey] | None) -> dict[str, int | None]:
    ahead = {_named(process): process.clock_ahead_ms for process in processes if not process.problem}
    if surveys is not None:
        ahead |= {
            f"node {node.index} ({node.address})": node.clock_ahead_ms
            for node in surveys[1].nodes
            if node.server
        }
    return ahead
