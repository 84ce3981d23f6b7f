"""What callers may ask for at each process of a cluster, and who was refused."""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from muster_protos.muster.v1 import quotas_pb2, quotas_pb2_grpc

from muster._errors import RequestRefused
from muster._session.channels import ChannelPool
from muster._session.transport import ConnectionLost, Overloaded, prove_and_call

_TIMEOUT_MS = 5_000


class ProcessQuotas(NamedTuple):
    """The quotas of one process.

    Attributes:
        address: where it listens.
        quotas: what it says; None: it could not be asked.
        problem: why not; empty where it said something.
    """

    address: str
    quotas: quotas_pb2.DescribeQuotasResponse | None
    problem: str = ""


async def quotas_of(channels: ChannelPool, addresses: Iterable[str], limit: int) -> list[ProcessQuotas]:
    """Asks each process once."""
    return list(await asyncio.gather(*(_ask(channels, address, limit) for address in addresses)))


async def _ask(channels: ChannelPool, address: str, limit: int) -> ProcessQuotas:
    request = quotas_pb2.DescribeQuotasRequest(limit=limit)
    try:
        async with channels.use(address) as channel:
            stub: Any = quotas_pb2_grpc.QuotaServiceStub(channel)
            answer = await prove_and_call(
                channels, stub.DescribeQuotas, request, _TIMEOUT_MS, "DescribeQuotas"
            )
    except (ConnectionLost, Overloaded, RequestRefused) as error:
        return ProcessQuotas(address, None, str(error))
    assert isinstance(answer, quotas_pb2.DescribeQuotasResponse)
    return ProcessQuotas(address, answer)
