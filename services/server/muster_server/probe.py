"""Asks a running process by gRPC's health protocol whether it serves; what probes of containers run."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from muster_runtime.channels import open_channel, parse_address
from muster_runtime.errors import StartupError
from muster_runtime.settings import load
from muster_runtime.tls import TlsSettings


class NotServingError(StartupError):
    """The process answered that it does not serve, or did not answer."""

    exit_code = 1


async def probe(address: str, limit_ms: int, *, alive: bool = False) -> str:
    """Asks once; the certificates are those of `MUSTER_TLS_…`.

    Args:
        address: `host:port` of the process.
        limit_ms: how long it may take to answer.
        alive: any answer will do; else only that it serves.

    Returns:
        The state in lower case, e.g. `serving`.

    Raises:
        NotServingError: it says what was answered, or why nothing was.
        StartupError: the address or a certificate is not usable.
    """
    try:
        target = parse_address(address)
    except ValueError as error:
        raise StartupError(f"--address: {error}") from None
    async with open_channel(target, load(TlsSettings)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await asyncio.wait_for(stub.Check(health_pb2.HealthCheckRequest()), limit_ms / 1_000)
        except TimeoutError:
            raise NotServingError(f"{target} did not answer within {limit_ms} ms") from None
        except grpc.aio.AioRpcError as error:
            raise NotServingError(f"{target}: {error.details()}") from None
    state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status).lower()
    if not alive and answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise NotServingError(f"{target} is {state.replace('_', ' ')}")
    return state
