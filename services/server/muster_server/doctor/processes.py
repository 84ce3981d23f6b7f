"""Asks processes of a cluster for their health, version and clock. Reads only."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from muster import TokenFile
from muster_protos.muster.internal.v1 import (
    coordinator_pb2 as peer_pb2,
)
from muster_protos.muster.internal.v1 import (
    coordinator_pb2_grpc as peer_pb2_grpc,
)
from muster_protos.muster.internal.v1 import (
    metadata_pb2,
    metadata_pb2_grpc,
    process_pb2,
    process_pb2_grpc,
)
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.addresses import Address
from muster_runtime.rpc.channels import open_channel
from muster_runtime.rpc.trust.trust import Trust

from muster_server._unreached import why_unreached

_NOT_ADMITTED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

ANSWER_S = 3.0
"""Time for each answer."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as it answered.

    Attributes:
        role: `discovery`, `metadata` or `coordinator`.
        name: its address, or the name of a coordinator.
        address: where it was asked.
        internal: where it answers internal calls.
        problem: why it did not answer; empty: it did.
        admitted: whether it lets this machine make internal calls.
        serving: whether its health is SERVING.
        version: of its software; empty: unknown.
        clock_ahead_ms: how far its wall clock is ahead of this machine's; None: unknown.
        rights: whether it asks what its callers may do.
        internal_callers: who may make internal calls of it.
    """

    role: str
    name: str
    address: str
    internal: str
    problem: str = ""
    admitted: bool = True
    serving: bool = False
    version: str = ""
    clock_ahead_ms: int | None = None
    rights: process_pb2.RightsState.ValueType = process_pb2.RIGHTS_STATE_UNSPECIFIED
    internal_callers: process_pb2.InternalCallers.ValueType = process_pb2.INTERNAL_CALLERS_UNSPECIFIED


class Asker:
    """Asks processes; opens a channel for each question.

    Args:
        trust: certificates and tokens.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    async def processes(self, role: str, addresses: Sequence[str]) -> list[Process]:
        """Asks the processes of a role at these addresses."""
        return await asyncio.gather(*(self.process(role, address, address) for address in addresses))

    async def process(self, role: str, name: str, address: str, internal: str = "") -> Process:
        """Asks one process for its health, version and clock.

        Args:
            role: of the process.
            name: of the process, for people.
            address: where its callers connect.
            internal: where it answers internal calls; empty: at `address`.
        """
        about_it = Process(role, name, address, internal or address)
        async with open_channel(address, self._trust) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            try:
                answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S)
            except grpc.aio.AioRpcError as error:
                unreached = await why_unreached(address, error, self._trust.tls)
                return replace(about_it, problem=unreached or _words(error))
        serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        async with open_channel(about_it.internal, self._trust) as channel:
            stub: Any = process_pb2_grpc.ProcessServiceStub(channel)
            asked_ns = time.time_ns()
            try:
                about = await stub.DescribeProcess(process_pb2.DescribeProcessRequest(), timeout=ANSWER_S)
            except grpc.aio.AioRpcError as error:
                if error.code() in _NOT_ADMITTED:
                    return replace(about_it, problem=_words(error), admitted=False)
                return replace(
                    about_it, serving=serving
                )  # it does not have the call there, or is not reached
            middle_ms = (asked_ns + time.time_ns()) // 2_000_000
            return replace(
                about_it,
                serving=serving,
                version=about.version,
                clock_ahead_ms=int(about.wall_clock_ms) - middle_ms,
                rights=about.rights,
                internal_callers=about.internal_callers,
            )

    async def internal_addresses(self, metadata: str) -> dict[str, str]:
        """Asks a metadata instance where coordinators answer internal calls, by their names.

        Those that do where clients connect are not in it; nor is any if it does not answer.
        """
        async with open_channel(metadata, self._trust) as channel:
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
            try:
                answer = await stub.ListFeatures(metadata_pb2.ListFeaturesRequest(), timeout=ANSWER_S)
            except grpc.aio.AioRpcError:
                return {}
        return {
            server.name: str(Address(server.internal_host, server.internal_port))
            for server in answer.servers
            if server.internal_port
        }

    async def faults(self, coordinator: str) -> peer_pb2.DescribeFaultsResponse | None:
        """Asks a coordinator what failed in it; None: it does not answer."""
        async with open_channel(coordinator, self._trust) as channel:
            stub: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(channel)
            try:
                faults: peer_pb2.DescribeFaultsResponse = await stub.DescribeFaults(
                    peer_pb2.DescribeFaultsRequest(), timeout=ANSWER_S
                )
            except grpc.aio.AioRpcError:  # it is gone, or of a version that does not know the call
                return None
            return faults

    async def cluster(self, discovery: str) -> discovery_pb2.Cluster | None:
        """Asks a discovery instance for the cluster; None: it does not answer."""
        async with open_channel(discovery, self._trust) as channel:
            stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
            try:
                answer = await stub.DescribeCluster(
                    discovery_pb2.DescribeClusterRequest(), timeout=ANSWER_S, metadata=self._proof()
                )
            except grpc.aio.AioRpcError:
                return None
            cluster: discovery_pb2.Cluster = answer.cluster
            return cluster

    def _proof(self) -> tuple[tuple[str, str], ...]:
        """What a public call shows about who asks: the token of MUSTER_TOKEN_FILE, as a client does."""
        file = TokenFile.from_environment()
        if file is None or not (file.plain_text or self._trust.tls.channel_credentials()):
            return ()
        return (("authorization", f"Bearer {file.read()}"),)

    async def replicas(self, metadata: str) -> list[metadata_pb2.DescribeLogResponse.Replica] | None:
        """Asks a metadata instance for every log on every node; None: it does not answer."""
        async with open_channel(metadata, self._trust) as channel:
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
            try:
                answer = await stub.DescribeLog(metadata_pb2.DescribeLogRequest(), timeout=ANSWER_S)
            except grpc.aio.AioRpcError:
                return None
            return list(answer.replicas)


def _words(error: grpc.aio.AioRpcError) -> str:
    """Why a call failed, short enough for a line."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"it does not answer within {ANSWER_S:g} s"
    details = (error.details() or error.code().name).splitlines()[0]
    return details if len(details) <= 200 else f"{details[:199]}…"
