"""States that differ in nothing that can still matter are walked once.

Each reduction keeps every behaviour that can break something, and says why.
"""

from model.forgetting import FORGETS
from model.state import Bounds, Coordinator, Node, Rules, State

CLAIMS = 1


def reduced(state: State, rules: Rules, bounds: Bounds) -> State:
    """The state without what nobody can come to know any more."""
    if not bounds.forgets:
        return state
    if not state.left[FORGETS]:
        state = _nobody_restarts(state, rules, bounds)
    if bounds.late or bounds.crashes or bounds.wipes:
        return state
    # Who is A and who is B makes no difference: nonces tell claims apart.
    coordinators = tuple(sorted(_without_powers(state, rules, bounds, one) for one in state.coordinators))
    return state if coordinators == state.coordinators else state._replace(coordinators=coordinators)


def _nobody_restarts(state: State, rules: Rules, bounds: Bounds) -> State:
    """What a node would forget at a restart matters to nobody when none comes any more.

    Nor does a floor that was raised for a node, once all nodes are sure.
    """
    nodes = tuple(
        node if not node.past and node.noted else node._replace(past=(), noted=True) for node in state.nodes
    )
    coordinators = state.coordinators
    if rules.below and not bounds.patient and all(node.sure for node in nodes):
        coordinators = tuple(
            coordinator._replace(raising=(), raised_to=0, raising_for=-1, lowering=())
            if coordinator.raising or coordinator.lowering
            else coordinator
            for coordinator in coordinators
        )
    return state._replace(nodes=nodes, coordinators=coordinators)


def _without_powers(state: State, rules: Rules, bounds: Bounds, coordinator: Coordinator) -> Coordinator:
    """One that no node listens to any more, nor will, is as good as one that has claimed nothing.

    Only the epoch that it knows counts, for its next claim.
    """
    mine = (coordinator.epoch, coordinator.nonce)
    if (
        coordinator.mode == "idle"
        or coordinator.lowering
        or any(node.promise == mine for node in state.nodes)
    ):
        return coordinator
    if not _is_powerless(state, rules, bounds, coordinator):
        return coordinator
    epoch = coordinator.epoch if state.left[CLAIMS] else 0
    known = (0,) * len(coordinator.known)
    return Coordinator(view=coordinator.view, epoch=epoch, known=known, empties=coordinator.empties)


def _is_powerless(state: State, rules: Rules, bounds: Bounds, coordinator: Coordinator) -> bool:
    if not rules.guard or not rules.nonce or not rules.prepared:
        return False
    mine = (coordinator.epoch, coordinator.nonce)
    may_be_lowered = bounds.patient or state.left[FORGETS] or not all(node.sure for node in state.nodes)
    owners = [other.epoch for other in state.coordinators if other.mode == "own" or other.lowering]
    for node in state.nodes:
        promises, floor = _promises(state, node)
        if mine in promises:
            return False
        lowest = min([*(epoch for epoch, _ in promises), *(owners if may_be_lowered else ())])
        if coordinator.mode == "prepare" and lowest < coordinator.epoch and floor < coordinator.epoch:
            return False
    # Two that promised, and forgot it or lost it since, are a majority all the same.
    return coordinator.mode == "own" or len(coordinator.seen) < 2


def _promises(state: State, node: Node) -> tuple[set[tuple[int, int]], int]:
    """What a node has promised, or may have again after a restart; and the lowest floor that it may have."""
    promises, floor = {node.promise}, node.floor
    if state.left[FORGETS]:
        promises |= {before[0] for before in node.past}
        floor = min([floor, *(before[2] for before in node.past)])
    return promises, floor
