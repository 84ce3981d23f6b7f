"""Looking up the coordinators of many groups at once."""

import asyncio

import grpc
import pytest
from muster._cluster.discovery import MOST_LOOKUPS, DiscoveryClient
from muster._session.channels import ChannelPool
from muster._session.transport import ConnectionLost


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 2 * MOST_LOOKUPS + 1])
async def test_an_unforeseen_error_ends_every_lookup(count: int) -> None:
    def connect(_: str) -> grpc.aio.Channel:
        raise LookupError("no such address")

    discovery = DiscoveryClient(("localhost:1",), ChannelPool(connect=connect))
    unforeseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unforeseen.append(said["message"]))
    async with asyncio.timeout(30):
        found = await asyncio.gather(
            *(discovery.find(f"g{number}", 0) for number in range(count)), return_exceptions=True
        )
    assert {type(each) for each in found} == {ConnectionLost}
