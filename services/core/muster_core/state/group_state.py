"""The states of a group and the moves between them."""

from enum import Enum

from muster_protos.muster.v1 import coordinator_pb2


class GroupState(Enum):
    """The state of a group. The value is Kafka's name of it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    __hash__ = object.__hash__  # what Enum has is Python, and every move looks states up

    @property
    def proto(self) -> coordinator_pb2.GroupState.ValueType:
        """The state as it is sent."""
        return _PROTO[self]


_PROTO = {
    GroupState.EMPTY: coordinator_pb2.GROUP_STATE_EMPTY,
    GroupState.PREPARING_REBALANCE: coordinator_pb2.GROUP_STATE_PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE: coordinator_pb2.GROUP_STATE_COMPLETING_REBALANCE,
    GroupState.STABLE: coordinator_pb2.GROUP_STATE_STABLE,
    GroupState.DEAD: coordinator_pb2.GROUP_STATE_DEAD,
}

PREDECESSORS = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}
"""From which states a group may come to one."""


class IllegalTransition(Exception):
    """A move that the table does not have: an error in this program."""


def can_become(state: GroupState, target: GroupState) -> bool:
    """Whether the move is legal (conformance ST-01 to ST-10)."""
    return state in PREDECESSORS[target]


def check_transition(group_id: str, state: GroupState, target: GroupState) -> None:
    """Insists that the move is legal.

    Raises:
        IllegalTransition: it is not.
    """
    if not can_become(state, target):
        raise IllegalTransition(f"group {group_id!r} cannot go from {state.value} to {target.value}")
