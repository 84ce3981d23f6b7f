"""2,000 session streams that say nothing more, and 1,000 watchers of discovery, all of one client.

A connection may have a thousand calls open, so the client has several.

Must hold: an honest newcomer is served beside them, by the coordinator and by discovery, and health answers.
"""

from contextlib import AsyncExitStack
from typing import Any

import grpc
from abuse.caller import connection, groups_stub, joined
from abuse.calls_without_body import healthy
from abuse.lab import Target, begins, stage
from abuse.session import Session
from kit.programs import Broken
from kit.waiting import until
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc

STREAMS = 2_000
CONNECTIONS = 4
WATCHERS = 1_000
MOST_STREAMS = 1_500
MOST_WATCHERS = 500
SETTINGS = {
    "MUSTER_SESSION_MAX_STREAMS": str(MOST_STREAMS),
    "MUSTER_DISCOVERY_MAX_WATCHERS": str(MOST_WATCHERS),
}


async def attack(target: Target) -> str:
    [honest] = await target.groups(1, "honest")
    begins()
    async with AsyncExitStack() as open_, connection(target.servers) as watched:
        channels = [await open_.enter_async_context(connection(target.owner)) for _ in range(CONNECTIONS)]
        sessions = [await Session(one).__aenter__() for one in channels * (STREAMS // CONNECTIONS)]
        discovery: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(watched)
        watchers = [discovery.WatchCluster(discovery_pb2.WatchClusterRequest()) for _ in range(WATCHERS)]
        too_many = STREAMS - MOST_STREAMS
        try:
            await until(
                lambda: sum(bool(session.ended) for session in sessions) >= too_many,
                f"{too_many} streams to be refused",
            )
        except AssertionError as error:
            raise Broken(f"{STREAMS} streams of one client: {error}") from error
        refused = await refusals(watchers)
        await healthy(target)
        async with connection(target.owner) as newcomer:
            await joined(groups_stub(newcomer), honest)
        open_streams = sum(not session.ended for session in sessions)
        for session in sessions:
            await session.close()
        for watcher in watchers:
            watcher.cancel()
    if open_streams > MOST_STREAMS:
        raise Broken(f"{open_streams} streams are open, where {MOST_STREAMS} may be")
    if refused < WATCHERS - MOST_WATCHERS:
        raise Broken(f"only {refused} of {WATCHERS} watchers were refused, where {MOST_WATCHERS} may be")
    return f"{open_streams} of {STREAMS} streams and {WATCHERS - refused} of {WATCHERS} watchers were let in"


async def refusals(watchers: list[Any]) -> int:
    """How many watchers were turned away; each of them gets its first picture or a reason."""
    refused = 0
    for watcher in watchers:
        try:
            refused += await watcher.read() is grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise Broken(f"a watcher was answered {error.code().name}: {error.details()}") from error
            refused += 1
    return refused


if __name__ == "__main__":
    stage(attack, settings=SETTINGS, coordinator_mb=400)
