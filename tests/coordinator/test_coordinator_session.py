"""Session streams over gRPC."""

from coordinator.coordinator_cluster import SHARDS, MemoryCluster, group_of, owns
from coordinator.session_client import Session, stable


async def test_attach_and_beat(cluster: MemoryCluster) -> None:
    coordinator = await cluster.add("a")
    await owns(coordinator, SHARDS)
    caller, group = cluster.caller(coordinator), group_of(1)
    joined = await stable(caller, group)
    session = await Session(caller.channel).hello()
    result = await session.attach(group, joined)
    assert (result.error_code, result.shard_epoch) == (0, 1)
    ack = await session.beat()
    assert (ack.number, list(ack.unheard)) == (1, [])
    await session.close()
