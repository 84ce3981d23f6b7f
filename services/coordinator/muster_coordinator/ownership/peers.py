"""Coordinators among themselves: asking for a shard, and being asked."""

from collections.abc import Awaitable, Callable, Set

import structlog
from muster_protos.limits import ID_MAX_BYTES
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.v1 import common_pb2
from muster_runtime.addresses import Address
from muster_runtime.rpc.channels import ChannelCache
from muster_runtime.rpc.refusals import InvalidArgument, Violation

log = structlog.get_logger()

ASK_TIMEOUT_S = 3.0
"""A hand-over waits a second for open appends at most; an owner that takes longer is asked again."""


class Peers:
    """Asks other coordinators.

    Args:
        channels: connections to them.
    """

    def __init__(self, channels: ChannelCache) -> None:
        self._channels = channels

    async def request_handoff(
        self, address: Address, shard: int, shard_epoch: int, successor: common_pb2.Coordinator
    ) -> peer_pb2.RequestHandoffResponse:
        """Asks the owner at an address for a shard.

        Raises:
            grpc.aio.AioRpcError: it did not answer; whether it gave the shard up is not known.
        """
        stub: peer_pb2_grpc.CoordinatorPeerServiceAsyncStub = peer_pb2_grpc.CoordinatorPeerServiceStub(
            self._channels.channel(address)
        )
        request = peer_pb2.RequestHandoffRequest(shard=shard, shard_epoch=shard_epoch, successor=successor)
        return await stub.RequestHandoff(request, timeout=ASK_TIMEOUT_S)

    async def keep(self, addresses: Set[Address]) -> None:
        """Closes the channels to all other addresses."""
        await self._channels.keep(addresses)

    async def close(self) -> None:
        """Closes all channels."""
        await self._channels.close()


class CoordinatorPeerServicer(peer_pb2_grpc.CoordinatorPeerServiceServicer):
    """Answers other coordinators, and `muster doctor`.

    Args:
        give: hands a shard over to a successor, or says why not.
        failed: what failed in this process, and which clients its members use.
    """

    def __init__(
        self,
        give: Callable[[int, common_pb2.Coordinator], Awaitable[peer_pb2.RequestHandoffResponse]],
        failed: Callable[[], Awaitable[peer_pb2.DescribeFaultsResponse]],
    ) -> None:
        self._give = give
        self._failed = failed

    async def DescribeFaults(
        self, _request: peer_pb2.DescribeFaultsRequest, _context: object
    ) -> peer_pb2.DescribeFaultsResponse:
        """Says what failed here."""
        return await self._failed()

    async def RequestHandoff(
        self, request: peer_pb2.RequestHandoffRequest, _context: object
    ) -> peer_pb2.RequestHandoffResponse:
        """Hands a shard over to the coordinator that asks."""
        who = request.successor
        problems = [
            Violation(f"successor.{name}", text)
            for name, text, good in (
                (
                    "node_id",
                    f"must be 1 to {ID_MAX_BYTES} bytes long",
                    1 <= len(who.node_id.encode()) <= ID_MAX_BYTES,
                ),
                (
                    "host",
                    f"must be 1 to {ID_MAX_BYTES} bytes long",
                    1 <= len(who.host.encode()) <= ID_MAX_BYTES,
                ),
                ("port", "must be 1 to 65535", 1 <= who.port <= 65_535),
            )
            if not good
        ]
        if problems:
            raise InvalidArgument(problems)
        return await self._give(request.shard, who)
