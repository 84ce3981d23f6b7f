"""Checks the hardening list against a running cluster. Reads only."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc, process_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.rpc.channels import open_channel

from muster_server.doctor.cluster import judge_rights
from muster_server.doctor.examination import Patient, coordinators_of, discovery_of
from muster_server.doctor.findings import CheckResult, Finding
from muster_server.doctor.processes import ANSWER_S, Asker, Process
from muster_server.doctor.security.ports import Port, judge_ports, look_at
from muster_server.doctor.security.users import judge_logins, logins
from muster_server.roles import COORDINATOR, DISCOVERY, METADATA


async def examine_security(patient: Patient) -> list[Finding]:
    """Looks at every port as a stranger, and at rights, users and features as an operator.

    Raises:
        BadUrlsError: the address of the log is invalid.
    """
    asker = Asker(patient.trust)
    (discovery, views), metadata = await asyncio.gather(
        discovery_of(asker, patient.servers), asker.processes(METADATA, patient.metadata)
    )
    view = next(iter(views.values()), None)
    coordinators = [] if view is None else await coordinators_of(asker, view, metadata)
    ports = [*_ports(discovery, metadata, coordinators)]
    shown = await asyncio.gather(*(look_at(port, patient.trust.tls) for port in ports))
    findings = [*judge_ports(shown), *judge_rights([*discovery, *coordinators])]
    findings += _not_looked_at(patient, view)
    if patient.redis:
        findings += judge_logins(await logins(patient.redis))
    findings += await _features(patient, metadata)
    return findings


def _ports(
    discovery: Sequence[Process], metadata: Sequence[Process], coordinators: Sequence[Process]
) -> Iterator[Port]:
    for process in discovery:
        yield Port(DISCOVERY, process.address, public=True, internal=False, lets_in=_lets_in(process))
    for process in metadata:
        yield Port(METADATA, process.address, public=False, internal=True, lets_in=_lets_in(process))
    for process in coordinators:
        apart = process.internal != process.address
        yield Port(
            COORDINATOR, process.address, public=True, internal=False, lets_in=_lets_in(process) and not apart
        )
        if apart:
            yield Port(COORDINATOR, process.internal, public=False, internal=True, lets_in=_lets_in(process))


def _lets_in(process: Process) -> bool:
    return process.internal_callers == process_pb2.INTERNAL_CALLERS_ANY


def _not_looked_at(patient: Patient, view: discovery_pb2.Cluster | None) -> Iterator[Finding]:
    """What could not be looked at, for want of an address."""
    if view is None:
        yield Finding(
            "cluster", "coordinators", CheckResult.SKIPPED, "no discovery instance describes the cluster",
            "name one with --servers or MUSTER_SERVERS; where it wants an identity, set MUSTER_TLS_… or "
            "MUSTER_TOKEN_FILE, and where it has rights, let that one `describe` the cluster",
        )  # fmt: skip
    if not patient.metadata:
        yield Finding(
            METADATA, "all", CheckResult.SKIPPED, "no address of metadata is known",
            "name them with --metadata, or run this where MUSTER_DISCOVERY_METADATA is set",
        )  # fmt: skip
    if not patient.redis:
        yield Finding(
            "log user", "all nodes", CheckResult.SKIPPED, "no address of the log's nodes is known",
            "name them with --redis, or run this where MUSTER_METADATA_REDIS_URL is set",
        )  # fmt: skip
    yield Finding(
        "networks", "all ports", CheckResult.SKIPPED, "from here it is not seen who reaches which port",
        "on a worker's machine, connections to metadata, to internal ports and to Redis must fail",
    )  # fmt: skip


async def _features(patient: Patient, metadata: Sequence[Process]) -> list[Finding]:
    serving = next((process.address for process in metadata if process.serving), "")
    if not serving:
        return []
    async with open_channel(serving, patient.trust) as channel:
        stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
        try:
            answer = await stub.ListFeatures(metadata_pb2.ListFeaturesRequest(), timeout=ANSWER_S)
        except grpc.aio.AioRpcError:
            return []
    missing = sorted(set(answer.known) - set(answer.enabled))
    if missing:
        return [
            Finding(
                "features", ", ".join(missing), CheckResult.WARNING,
                "they are known and not enabled; some protect members from each other",
                "`muster features list` says what each brings, `muster features enable` enables it",
            )
        ]  # fmt: skip
    return [Finding("features", "all", CheckResult.OK, "all that metadata knows are enabled")]
