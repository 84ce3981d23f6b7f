"""An explicit-state model of what the other nodes keep of a node that ran without its append-only file.

Node 0 loses its file while it runs, comes back with the old one, and one instance of metadata, which knows
nothing but what it asks, decides whether to believe it. The other nodes note the doubt one after the other,
lose their data and are filled again.

It is a model of docs/safety.md (`LOG-66` and after) and shares no code with what it models: `explore.py`
walks it, `doubts_cases.py` names the spaces. What becomes of a node that is doubted is in `forgetting.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

from model.explore import Goal
from model.quick_replace import quick_replace

WHOLE: Final = "whole"
WITHOUT: Final = "without a file"
BACK: Final = "back"


@dataclass(frozen=True)
class DoubtRules:
    """The rules; each may be dropped.

    Attributes:
        spread: a doubt counts when as many other nodes have it as are a majority (dropped: one of them).
        asked: an instance asks as many others as are a majority with the node (dropped: nobody).
        since: ... after the node is back (dropped: before counts as well).
        empty_silent: a node that lost its data answers nothing before it is filled.
        filled: a node that is filled gets the doubts of a majority of the others.
    """

    spread: bool = True
    asked: bool = True
    since: bool = True
    empty_silent: bool = True
    filled: bool = True


@dataclass(frozen=True)
class DoubtBounds:
    """What there is, and what happens.

    Attributes:
        nodes: how many there are.
        wipes: how often others lose their data.
    """

    nodes: int = 3
    wipes: int = 1


@quick_replace
class Doubtful(NamedTuple):
    """Everything.

    Attributes:
        node: how node 0 is.
        noted: the other nodes that have the doubt.
        empty: those that lost their data.
        counts: whether the doubt counted while the node still ran: it may have promised something after that.
        asked: whom the instance asked.
        heard: whether one of them had the doubt.
        believed: whether it counts the node's answers.
        wipes: how often nodes may still lose their data.
    """

    node: str
    noted: frozenset[int]
    empty: frozenset[int]
    counts: bool
    asked: frozenset[int]
    heard: bool
    believed: bool
    wipes: int


class DoubtModel:
    """The rules, as steps from state to state."""

    def __init__(self, rules: DoubtRules, bounds: DoubtBounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self.others = frozenset(range(1, bounds.nodes))
        self.majority = bounds.nodes // 2 + 1

    def initial(self) -> Doubtful:
        """Nothing has happened."""
        none: frozenset[int] = frozenset()
        return Doubtful(WHOLE, none, none, False, none, False, False, self.bounds.wipes)

    def canonical(self, state: Doubtful) -> Doubtful:
        """Every state for itself."""
        return state

    def broken(self, state: Doubtful) -> str:
        """Whether the node is believed although the doubt counted."""
        return (
            "a node is believed that comes back with an old file" if state.believed and state.counts else ""
        )

    def steps(self, state: Doubtful) -> Iterator[tuple[str, Doubtful]]:
        """Everything that can happen next."""
        if state.node == WHOLE:
            yield "node 0 goes on without a file", state._replace(node=WITHOUT)
        if state.node == WITHOUT:
            yield "node 0 comes back with its old file", self._back(state)
        if state.node != WHOLE:
            yield from self._notes(state)
        yield from self._losses(state)
        yield from self._judgement(state)

    def _back(self, state: Doubtful) -> Doubtful:
        state = state._replace(node=BACK)
        return state._replace(asked=frozenset(), heard=False) if self.rules.since else state

    def _notes(self, state: Doubtful) -> Iterator[tuple[str, Doubtful]]:
        """Also after the node is back, for what was sent before arrives late; then it counts no more."""
        for other in self.others - state.noted - state.empty:
            noted = state.noted | {other}
            enough = len(noted) >= (self.majority if self.rules.spread else 1)
            counts = state.counts or (enough and state.node == WITHOUT)
            yield f"node {other} has the doubt", state._replace(noted=noted, counts=counts)

    def _losses(self, state: Doubtful) -> Iterator[tuple[str, Doubtful]]:
        for other in self.others - state.empty:
            # A majority that lost its data is beyond what is promised.
            if state.wipes and len(state.empty) + 1 < self.majority:
                yield (
                    f"node {other} loses its data",
                    state._replace(
                        empty=state.empty | {other}, noted=state.noted - {other}, wipes=state.wipes - 1
                    ),
                )
        for other in state.empty:
            sources = (self.others | {0}) - state.empty
            for asked in combinations(sorted(sources), self.majority):
                gets = self.rules.filled and bool(state.noted & set(asked))
                noted = state.noted | {other} if gets else state.noted
                yield (
                    f"node {other} is filled, {asked} are asked",
                    state._replace(empty=state.empty - {other}, noted=noted),
                )

    def _judgement(self, state: Doubtful) -> Iterator[tuple[str, Doubtful]]:
        if state.believed or (state.node != BACK and self.rules.since):
            return
        for other in self.others - state.asked:
            if other not in state.empty or not self.rules.empty_silent:
                heard = state.heard or other in state.noted
                yield (
                    f"the instance asks node {other}",
                    state._replace(asked=state.asked | {other}, heard=heard),
                )
        enough = len(state.asked) + 1 >= self.majority or not self.rules.asked
        if state.node == BACK and enough and not state.heard:
            yield "the instance believes node 0", state._replace(believed=True)


JUDGED = Goal[Doubtful](
    "a node that is back is neither believed nor doubted",
    lambda state: state.node == BACK and not state.believed and not state.heard,
    lambda _, after: after.believed or after.heard,
)
"""Who is back is judged, whatever was lost."""
