"""Somebody who changes a topic while groups work on it."""

import asyncio
from typing import cast

import grpc
from muster import Cluster as Connection
from muster import MusterError
from muster._session.channels import OPTIONS
from simulation.cluster import Cluster
from simulation.grpc_channel import Channel
from simulation.servers import DISCOVERY
from simulation.worker import SIDE_TOPIC, Change

_MOST_PARTITIONS = 6


class Operator:
    """Makes one change after the other, from a process of its own.

    Args:
        cluster: where the topic is.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._random = cluster.world.random
        self._process = cluster.process("operator", "10.0.9.2")
        self._partitions: int | None = 0
        self._change: asyncio.Task[None] | None = None

    def change(self) -> bool:
        """Begins a change; False: the one before is not over."""
        if self._change is not None and not self._change.done():
            return False
        self._change = self._process.run(self._make())
        return True

    async def _make(self) -> None:
        """What is to be done follows from what there is, which is read again after an unknown outcome."""
        world, history = self._cluster.world, self._cluster.history
        async with Connection([str(address) for address in DISCOVERY], connect=self._connect) as connection:
            try:
                if self._partitions is None:
                    there = await connection.topics([SIDE_TOPIC])
                    self._partitions = there[0].partitions if there else 0
            except MusterError:
                return
            had = self._partitions
            kind, partitions = "delete", 0
            if not had:
                kind, partitions = "create", self._random.randint(1, 3)
            elif had < _MOST_PARTITIONS and self._random.random() < 0.4:
                kind, partitions = "alter", had + 1
            change = Change(kind, SIDE_TOPIC, world.now_s)
            history.changes.append(change)
            world.note("topic", kind, partitions)
            self._partitions = None
            try:
                if kind == "delete":
                    await connection.delete_topic(SIDE_TOPIC)
                elif kind == "create":
                    await connection.create_topic(SIDE_TOPIC, partitions)
                else:
                    await connection.alter_topic(SIDE_TOPIC, partitions)
            except MusterError as error:
                world.note("topic", kind, type(error).__name__)
            else:
                change.done = True
                self._partitions = partitions
            finally:
                change.ended_s = world.now_s

    def _connect(self, address: str) -> grpc.aio.Channel:
        return cast(grpc.aio.Channel, Channel(self._process, self._process.loop, address, OPTIONS))
