"""The requests of a member of an incremental group, and the lists in the answers."""

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

from muster._values import TopicPartition
from muster._version import client_version

JOIN, LEAVE, AWAY = 0, -1, -2
"""Epochs of a request that joins, that leaves, and that leaves for a while."""

PROCESS_ID_BYTES = 16
FIRST_SEQ = 1
"""Number of a member's first join."""


class Place(NamedTuple):
    """Place of a record in a shard's log; places only grow."""

    epoch: int
    offset: int

    @property
    def token(self) -> str:
        """The place as a fencing token, which sorts as text."""
        return f"{self.epoch:010d}-{self.offset:016d}"

    def to_proto(self) -> common_pb2.Position:
        """The place as a message."""
        return common_pb2.Position(epoch=self.epoch, offset=self.offset)

    @classmethod
    def of(cls, message: common_pb2.Position) -> "Place":
        """The place that a message names."""
        return cls(message.epoch, message.offset)


NOWHERE = Place(0, 0)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a member is and what it wants, the same in all its joins.

    Attributes:
        group_id: the group.
        member_id: drawn by the member when it is made.
        topics: what it works on.
        rebalance_timeout_ms: how long it may take to give partitions back.
        group_instance_id: its static id; empty: dynamic.
        rack_id: where it runs; empty: unknown.
        weight: how much it can do beside the others.
        rollout_hold_ms: for how long its first join holds moves back.
        client_id: its name for people.
        server_assignor: which assignor it prefers; empty: whichever the group has.
        session_timeout_ms: how long it may be silent; 0: as the coordinator says.
        disconnect_grace_ms: how long it may stay away when its stream broke; 0: as the coordinator says.
        classic_protocols: assignors that it has for a classic group; none: it cannot go on in one.
        secret: known to the member alone.
    """

    group_id: str
    member_id: str
    topics: tuple[str, ...]
    rebalance_timeout_ms: int
    group_instance_id: str = ""
    rack_id: str = ""
    client_id: str = ""
    server_assignor: str = ""
    session_timeout_ms: int = 0
    disconnect_grace_ms: int = 0
    weight: int = 1
    classic_protocols: tuple[str, ...] = ()
    rollout_hold_ms: int = 0
    secret: bytes = field(default=b"", repr=False)

    def request(self, epoch: int, member_seq: int, process_id: bytes) -> ConsumerGroupHeartbeatRequest:
        """A request with what every request has."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            group_instance_id=self.group_instance_id or None,
            client_id=self.client_id,
            member_seq=member_seq,
            process_id=process_id,
            member_secret=self.secret,
        )

    def describe(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """Adds to a join what it has to say."""
        request.rebalance_timeout_ms = self.rebalance_timeout_ms
        request.topics.names.extend(self.topics)
        request.owned.SetInParent()
        request.can_be_classic = bool(self.classic_protocols)
        request.classic_protocols.extend(self.classic_protocols)
        request.session_timeout_ms = self.session_timeout_ms
        request.disconnect_grace_ms = self.disconnect_grace_ms
        request.weight, request.client_version = self.weight, client_version()
        if request.member_seq == FIRST_SEQ:  # one that comes back is no deployment
            request.rollout_hold_ms = self.rollout_hold_ms
        if self.rack_id:
            request.rack_id = self.rack_id
        if self.server_assignor:
            request.server_assignor = self.server_assignor


def add_list(request: ConsumerGroupHeartbeatRequest, owned: Iterable[TopicPartition]) -> None:
    """Adds what the member works on."""
    numbers = defaultdict[str, list[int]](list)
    for topic, number in sorted(owned):
        numbers[topic].append(number)
    request.owned.SetInParent()
    for topic, some in numbers.items():
        request.owned.topics.add(topic=topic, partitions=some)


def list_of(answer: ConsumerGroupHeartbeatResponse) -> dict[TopicPartition, str] | None:
    """The complete list of an answer with its tokens, in order; None: it is as it was."""
    if not answer.HasField("assignment"):
        return None
    found: dict[TopicPartition, str] = {}
    for given in answer.assignment.given:
        some = map(TopicPartition, repeat(given.topic), given.partitions)
        found.update(dict.fromkeys(some, Place.of(given.token).token))
    return dict(sorted(found.items()))


_process_id = b""


def process_id() -> bytes:
    """What tells this process from every other one; a forked child has another."""
    global _process_id
    if not _process_id:
        _process_id = os.urandom(PROCESS_ID_BYTES)
    return _process_id


def _forked() -> None:
    global _process_id
    _process_id = b""


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
