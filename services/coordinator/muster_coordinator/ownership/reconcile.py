"""What a coordinator does about the shards, given what it sees. Pure."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TypeAlias

from muster_protos.muster.v1 import discovery_pb2

from muster_coordinator.ownership.placement import place

_LIVE = discovery_pb2.COORDINATOR_STATE_LIVE
_DRAINING = discovery_pb2.COORDINATOR_STATE_DRAINING


@dataclass(frozen=True, slots=True)
class Owner:
    """An entry of the owner table in the view.

    Attributes:
        node_id: name of the owner; empty: nobody.
        epoch: epoch of the ownership; 0: never claimed.
    """

    node_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Picture:
    """All that a decision needs.

    Attributes:
        me: name of this coordinator.
        shard_count: number of shards of the cluster.
        nodes: the coordinators of the view with their states.
        owners: entries of the owner table by shard; a shard without one was never claimed.
        held: shards that this coordinator serves or is working on.
        lost: shards that this coordinator gave up a short while ago, with the epoch up to which an entry that
            still names it is out of date.
        settled: the set of live coordinators has not changed for some seconds.
    """

    me: str
    shard_count: int
    nodes: Mapping[str, discovery_pb2.CoordinatorState.ValueType]
    owners: Mapping[int, Owner]
    held: Set[int]
    lost: Mapping[int, int]
    settled: bool

    @property
    def live(self) -> list[str]:
        """Names of the coordinators that live and do not drain."""
        return [node_id for node_id, state in self.nodes.items() if state == _LIVE]


@dataclass(frozen=True, slots=True)
class Claim:
    """Nobody live owns the shard: claim it."""

    shard: int
    above_epoch: int


@dataclass(frozen=True, slots=True)
class Pull:
    """Somebody owns the shard: read its log, ask for it, then claim it."""

    shard: int
    owner: str
    above_epoch: int


Action: TypeAlias = Claim | Pull


def plan(picture: Picture) -> list[Action]:
    """What to begin now, most urgent first. Empty for one that does not live by the view.

    A shard without a live owner is claimed at once; one of a draining owner is pulled at once; one of
    a live owner only while the set of live coordinators is settled, so that two views of who is alive
    never make a shard go back and forth (docs/safety.md, "Ownership").
    """
    if picture.nodes.get(picture.me) != _LIVE:
        return []
    wanted = place(picture.live, picture.shard_count)
    claims: list[Action] = []
    urgent: list[Action] = []
    balance: list[Action] = []
    for shard in range(picture.shard_count):
        if shard in picture.held:
            continue
        owner = picture.owners.get(shard, Owner("", 0))
        state = picture.nodes.get(owner.node_id)
        if owner.node_id == picture.me:
            # By the log it is ours, but nobody serves it: a claim that landed late, or an earlier run.
            if owner.epoch > picture.lost.get(shard, 0):
                claims.append(Claim(shard, owner.epoch))
        elif wanted[shard] != picture.me:
            continue
        elif state == _DRAINING:
            urgent.append(Pull(shard, owner.node_id, owner.epoch))
        elif state == _LIVE:
            if picture.settled:
                balance.append(Pull(shard, owner.node_id, owner.epoch))
        else:
            claims.append(Claim(shard, owner.epoch))
    return claims + urgent + balance


def still_wanted(picture: Picture, shard: int) -> bool:
    """Whether a pull that has not asked yet should go on."""
    return (
        picture.nodes.get(picture.me) == _LIVE
        and place(picture.live, picture.shard_count).get(shard) == picture.me
    )


def may_give(picture: Picture, shard: int, asker: str, *, draining: bool) -> bool:
    """Whether the owner agrees that an asker gets a shard.

    A draining owner gives to anybody who lives; a live one only to whom its own view says, while both see
    the same.
    """
    if draining:
        return asker in picture.live
    return place(picture.live, picture.shard_count).get(shard) == asker
