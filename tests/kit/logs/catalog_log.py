"""The catalog's log as the nodes hold it, and changes that make it longer."""

from collections.abc import Iterable
from typing import Any

from kit.metadata.metadata_instances import Instance, MetadataCluster
from muster_core.log.topics.topics import Topics
from muster_core.position import Position
from muster_metadata.nodes.entries import NodeEntry
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2

LOG = "muster:{catalog}:log"
SNAPSHOTS = "muster:{catalog}:snapshots"
OFTEN = "often"


def creation(name: str, partitions: int = 3, change_id: bytes = b"") -> metadata_pb2.ChangeTopicRequest:
    """Creates a topic."""
    topic = discovery_pb2.Topic(name=name, partitions=partitions)
    return metadata_pb2.ChangeTopicRequest(create=topic, change_id=change_id)


def removal(name: str, change_id: bytes = b"") -> metadata_pb2.ChangeTopicRequest:
    """Removes a topic."""
    return metadata_pb2.ChangeTopicRequest(delete=name, change_id=change_id)


def growth(counts: Iterable[int]) -> list[metadata_pb2.ChangeTopicRequest]:
    """Changes of one topic, which exists, to these numbers of partitions."""
    return [
        metadata_pb2.ChangeTopicRequest(alter=discovery_pb2.Topic(name=OFTEN, partitions=count))
        for count in counts
    ]


async def change(
    instance: Instance, request: metadata_pb2.ChangeTopicRequest
) -> metadata_pb2.ChangeTopicResponse:
    """Carries out a change, which must succeed."""
    response: metadata_pb2.ChangeTopicResponse = await instance.stub.ChangeTopic(request)
    assert response.error_code == common_pb2.ERROR_CODE_NONE, response
    return response


async def change_many(instance: Instance, count: int) -> None:
    """So many changes that leave one topic."""
    shown = catalog_of(instance).by_name.get(OFTEN)
    if shown is None:
        await change(instance, creation(OFTEN, 1))
        count -= 1
    partitions = 1 if shown is None else shown.partitions
    for request in growth(range(partitions + 1, partitions + count + 1)):
        await change(instance, request)


async def log_of(cluster: MetadataCluster, index: int) -> list[NodeEntry]:
    """What a node has of the catalog's log."""
    async with cluster.client(index) as client:
        rows: Any = await client.xrange(LOG)
    return [
        NodeEntry(Position.parse(id_.decode()), fields[b"r"], fields[b"n"], fields[b"h"])
        for id_, fields in rows
    ]


async def snapshots_on(cluster: MetadataCluster, index: int) -> dict[Position, Position | None]:
    """Which snapshots a node has: what each covers, and its marker."""
    async with cluster.client(index) as client:
        rows: Any = await client.hgetall(SNAPSHOTS)
    return {
        Position.parse(upto.decode()): Position.parse(marker.decode()) if marker else None
        for upto, marker in rows.items()
    }


async def begins(cluster: MetadataCluster) -> list[Position]:
    """Where the catalog's log begins on each node."""
    return [(await log_of(cluster, index))[0].position for index in range(len(cluster.nodes))]


def catalog_of(instance: Instance) -> Topics:
    """What an instance knows of the catalog."""
    return instance.server.metadata.catalog._seen


def picture(instance: Instance) -> tuple[Any, ...]:
    """All of it, as something that can be compared."""
    topics = catalog_of(instance)
    return topics.to_proto(), list(topics.to_states()), topics.version, topics.end_hash
