"""A coordinator that owns the one shard, until it is killed."""

import sys
from collections.abc import Callable, Mapping

from muster_coordinator.api.callers import Callers
from muster_coordinator.api.calls import Calls
from muster_coordinator.api.servicer import GroupCoordinatorServicer, GroupSessionServicer
from muster_coordinator.assignment.assignors import SERVER_ASSIGNORS
from muster_coordinator.log.log_client import Nonces
from muster_coordinator.session.sessions import Sessions
from muster_coordinator.settings import SessionSettings
from muster_coordinator.shard.dependencies import Claimant, Dependencies
from muster_coordinator.shard.owned_shard import OwnedShard
from muster_coordinator.shard.phase import Phase
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.events import TopicsChanged
from muster_core.features import ALL_FEATURES
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import common_pb2, coordinator_pb2_grpc, discovery_pb2, session_pb2_grpc

from muster_testing.directory import Directory
from muster_testing.handlers import Handlers
from muster_testing.memory_log import MemoryLoader, MemoryLog

PORT = 7410
NUMBER = 0
"""Of the one shard."""
MAX_ANSWER_BYTES = 64 << 20


class Node:
    """One coordinator.

    Args:
        number: distinguishes it from those before it.
        log: of the shard.
        directory: the cluster.
        now: the clocks.
        config: limits of the group protocol.
    """

    def __init__(
        self, number: int, log: MemoryLog, directory: Directory, now: Callable[[], Now], config: GroupConfig
    ) -> None:
        self.node_id = f"coordinator-{number}"
        self.host = f"{self.node_id}.muster.test"
        self.handlers = Handlers()
        self._directory = directory
        self._shards: dict[int, OwnedShard] = {}
        self._loader = MemoryLoader(log, config)
        self._shared = Dependencies(
            claimant=Claimant(self.node_id, self.node_id, ""),
            log=log,
            nonces=Nonces(),
            loader=self._loader,
            now=now,
            may_answer=lambda _now_ms: True,
            features=lambda: ALL_FEATURES,
            catalog=lambda: directory.known,
            room=Room(assignors=SERVER_ASSIGNORS),
        )
        calls = Calls(self, directory, MAX_ANSWER_BYTES, joined_aside_bytes=sys.maxsize)
        self._sessions = Sessions(
            SessionSettings(), calls, lambda _now_ms: True, lambda: now().boot_ms, says_unsure=lambda: True
        )
        callers = Callers()
        answering = GroupCoordinatorServicer(calls.answer, calls.encoded, callers)
        streaming = GroupSessionServicer(self._sessions.serve, callers)
        coordinator_pb2_grpc.add_GroupCoordinatorServiceServicer_to_server(answering, self.handlers)
        session_pb2_grpc.add_GroupSessionServiceServicer_to_server(streaming, self.handlers)

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"{self.host}:{PORT}"

    @property
    def shards(self) -> Mapping[int, OwnedShard]:
        """The one shard, once it is claimed."""
        return self._shards

    def owner_elsewhere(self, shard: int) -> common_pb2.Coordinator | None:
        """Nobody: a node that lives owns the shard."""
        return None

    @property
    def hosts(self) -> frozenset[tuple[str, str]]:
        """Group and host of each member."""
        core = self._shards[NUMBER].core if NUMBER in self._shards else None
        groups = () if core is None else core.groups.values()
        classic = ((group.group_id, m.host) for group in groups for m in group.members.values())
        incremental = (
            (group.group_id, m.told.host)
            for group in groups
            if group.incremental is not None
            for m in group.incremental.members.values()
        )
        return frozenset((*classic, *incremental))

    def notify(self, news: TopicsChanged) -> None:
        """Topics have changed."""
        for shard in self._shards.values():
            shard.notify(news)

    async def start(self) -> None:
        """Claims the shard, loads its log, and is known from then on."""
        shard = self._shards[NUMBER] = OwnedShard(NUMBER, self._shared, self._sessions, Phase.CLAIMING)
        await shard.claim(0, self._loader.image(NUMBER))
        live = discovery_pb2.COORDINATOR_STATE_LIVE
        node = discovery_pb2.CoordinatorNode(node_id=self.node_id, host=self.host, port=PORT, state=live)
        owner = discovery_pb2.ShardOwner(
            shard=NUMBER, shard_epoch=shard.epoch, node_id=self.node_id, serving=True
        )
        self._directory.show([node], owner)

    def kill(self) -> None:
        """Ends without a word to anybody; whoever calls this has cut its connections before."""
        self._sessions.abandon()
        for shard in self._shards.values():
            shard.unload(None)
        self._shards.clear()
