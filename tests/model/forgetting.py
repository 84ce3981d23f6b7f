"""Nodes that restart without the last that they were told, and how they come to vote again.

With `appendfsync everysec` a node that crashes may forget a promise that somebody counts, a Claim that it
took, an entry that was acknowledged. It comes back with data and does not know.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from model.state import Bounds, Coordinator, Node, Rules, State, View, name_of, spend

FORGETS = 6
ABOVE = 4
"""The floor is so far above what is known: more promises than a node can forget."""

Step = tuple[str, State]


class Forgetting(ABC):
    """The part of the model that is about restarts."""

    rules: Rules
    bounds: Bounds
    views: list[View]

    @abstractmethod
    def end(self, log: tuple[int, ...]) -> tuple[int, int]:
        """Place of the last entry."""

    @abstractmethod
    def votes(self, state: State, view: View, node: int) -> bool:
        """Whether a node answers a writer with this view."""

    @abstractmethod
    def _set(self, state: State, index: int, coordinator: Coordinator) -> State:
        """The state with another coordinator in a place."""

    @abstractmethod
    def _node(self, state: State, node: int, there: Node) -> State:
        """The state with another node in a place."""

    def _restarts(self, state: State) -> Iterator[Step]:
        """A node is back with what was on its disk; all others are sure of what they said."""
        if any(not there.sure for there in state.nodes):
            return
        for node, there in enumerate(state.nodes):
            if not there.configuration:
                continue
            now = (there.promise, there.log, there.floor, there.noted)
            for age, (promise, log, floor, noted) in enumerate((now, *reversed(there.past))):
                back = there._replace(
                    promise=promise, log=log, floor=floor, noted=noted, past=(),
                    sure=not (self.rules.doubted and noted),
                )  # fmt: skip
                nodes = (*state.nodes[:node], back, *state.nodes[node + 1 :])
                # What was begun for the node names the run before.
                coordinators = tuple(
                    coordinator._replace(raising=(), raised_to=0, raising_for=-1)
                    if coordinator.raising_for == node
                    else coordinator
                    for coordinator in state.coordinators
                )
                yield (
                    f"node {node} restarts and has forgotten its last {age}",
                    spend(state, FORGETS)._replace(nodes=nodes, coordinators=coordinators),
                )

    def _recover(self, state: State, index: int, node: int) -> Iterator[Step]:
        """The claim of an owner brings back a node that restarted, or that promised a claim above it."""
        coordinator = state.coordinators[index]
        view = self.views[coordinator.view]
        mine = (coordinator.epoch, coordinator.nonce)
        standing = [
            other
            for other in view.nodes
            if other != node and self.votes(state, view, other) and state.nodes[other].promise == mine
        ]
        if not self.rules.raised:
            if len(standing) >= view.majority:
                logs = [state.nodes[other].log for other in standing]
                yield from self._admit(state, index, node, logs, state.nodes[node].floor)
            return
        if coordinator.raising_for != node:
            if self._in_need(state, coordinator, coordinator.raising_for):
                return  # one after the other
            coordinator = coordinator._replace(raising=(), raised_to=0, raising_for=node)
        raised = dict(coordinator.raising)
        for other in standing:
            there = state.nodes[other]
            if other not in raised:
                # All of them get the same one: what was the highest before the first of them got it, and
                # more.
                upto = coordinator.raised_to
                if not raised:
                    upto = ABOVE + max(max(one.promise[0], one.floor) for one in state.nodes)
                after = self._node(state, other, there._replace(floor=max(there.floor, upto)))
                raising = coordinator._replace(
                    raising=tuple(sorted((*coordinator.raising, (other, there.log)))), raised_to=upto
                )
                if len(raising.raising) >= view.majority:
                    raising = raising._replace(lowering=((node, upto),))
                yield (
                    f"{name_of(index)} raises the floor to {upto} at node {other}",
                    self._set(after, index, raising),
                )
        if len(raised) >= view.majority:
            yield from self._admit(state, index, node, list(raised.values()), coordinator.raised_to)

    def _in_need(self, state: State, coordinator: Coordinator, node: int) -> bool:
        """Whether a node is doubted, or promised a claim above an owner's."""
        there = state.nodes[node]
        return node >= 0 and (not there.sure or there.promise[0] > coordinator.epoch)

    def _lower(self, state: State, index: int, node: int) -> Iterator[Step]:
        """The node gives up a promise of which nobody can make a claim any more."""
        coordinator = state.coordinators[index]
        there = state.nodes[node]
        mine = (coordinator.epoch, coordinator.nonce)
        if there.promise == mine or there.promise[0] < coordinator.epoch:
            return
        for lowered, floor in coordinator.lowering:
            allowed = there.promise[0] <= floor or not self.rules.below
            if lowered == node and allowed and self.rules.lowered:
                yield (
                    f"{name_of(index)} lowers the promise of node {node} from {there.promise[0]}",
                    self._node(state, node, there._replace(promise=mine)),
                )

    def _admit(
        self, state: State, index: int, node: int, logs: list[tuple[int, ...]], floor: int
    ) -> Iterator[Step]:
        """The node gets the log, and votes."""
        coordinator = state.coordinators[index]
        there = state.nodes[node]
        mine = (coordinator.epoch, coordinator.nonce)
        if there.promise != mine and there.promise[0] >= coordinator.epoch:
            return
        most = max(self.end(log) for log in logs)
        copies = {
            other.log
            for other in state.nodes
            if other is not there and other.promise == mine and self.end(other.log)[0] == coordinator.epoch
        }
        if not self.rules.recovered:
            copies = {there.log}
        for log in copies:
            if self.rules.recovered and self.end(log) < most:
                continue
            back = there._replace(promise=mine, log=log, floor=max(there.floor, floor), sure=True)
            after = self._node(state, node, back)
            after = self._set(after, index, coordinator._replace(raising=(), raised_to=0, raising_for=-1))
            yield f"{name_of(index)} lets node {node} vote again", after
