"""Who owns a partition, asked by its name or number."""

import asyncio
import os
from collections.abc import Sequence

import grpc

from muster._cluster.cluster import Cluster
from muster._errors import MusterError
from muster._session.tls import TlsFiles
from muster._session.token import TokenFile
from muster._values import Owner


def owner_of(
    topic: str,
    key: str | int,
    *,
    group: str,
    servers: str | Sequence[str] | None = None,
    credentials: grpc.ChannelCredentials | TlsFiles | None = None,
    token_file: str | os.PathLike[str] | TokenFile | None = None,
) -> Owner | None:
    """Who owns a partition in a group; `Cluster.owner_of` for programs without an event loop.

    Args:
        topic: name of the topic.
        key: name of the partition, or its number: `Partition.key`.
        group: the group whose members are asked for.
        servers: see `Cluster`.
        credentials: see `Cluster`.
        token_file: see `Cluster`.

    Raises:
        MusterError: an event loop runs in this thread.
        TopicError: there is no such topic or partition.
        ClusterUnavailable: nobody answered.
    """
    if asyncio._get_running_loop() is not None:
        raise MusterError(
            "owner_of was called on an event loop, which it would block: await Cluster.owner_of"
        )

    async def ask() -> Owner | None:
        async with Cluster(servers, credentials=credentials, token_file=token_file) as cluster:
            return await cluster.owner_of(group, topic, key)

    return asyncio.run(ask())
