"""Walks a model, breadth first."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

AnyState = TypeVar("AnyState", bound=Hashable)


class Walkable(Protocol[AnyState]):
    """A model: states, and steps from one to others."""

    def initial(self) -> AnyState:
        """Where a walk begins."""
        ...

    def canonical(self, state: AnyState, /) -> AnyState:
        """The one state that stands for all that are alike."""
        ...

    def steps(self, state: AnyState, /) -> Iterator[tuple[str, AnyState]]:
        """Everything that can happen next, with words for it."""
        ...

    def broken(self, state: AnyState, /) -> str:
        """Which invariant does not hold; empty: all do."""
        ...


@dataclass(frozen=True)
class Walk:
    """What a walk found.

    Attributes:
        states: how many different states there are.
        seconds: how long it took.
        broken: which invariant does not hold in some state; empty: all do.
        trace: the steps to that state, the shortest way.
        complete: whether every state was seen.
    """

    states: int
    seconds: float
    broken: str = ""
    trace: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True)
class Goal(Generic[AnyState]):
    """What must stay possible.

    Attributes:
        missed: what is wrong with a state from which it cannot be reached.
        demanded: whether a state must have a way to it.
        reached: whether a step from one state to another is it.
    """

    missed: str
    demanded: Callable[[AnyState], bool]
    reached: Callable[[AnyState, AnyState], bool]


def explore(model: Walkable[AnyState], limit_s: float, goals: Sequence[Goal[AnyState]] = ()) -> Walk:
    """Visits every state that can be reached, up to the first broken one.

    Args:
        model: what is walked.
        limit_s: the walk is cut off after this time.
        goals: what must stay possible as well.
    """
    began = time.monotonic()
    first = model.initial()
    parents: dict[AnyState, tuple[AnyState, str] | None] = {first: None}
    children: dict[Any, list[Any]] = {}
    queue = deque([first])
    while queue:
        if time.monotonic() - began > limit_s:
            return Walk(len(parents), time.monotonic() - began, complete=False)
        state = queue.popleft()
        following = children.setdefault(state, []) if goals else None
        for label, step in model.steps(state):
            after = model.canonical(step)
            if following is not None:
                following.append(after)
            if after in parents:
                continue
            parents[after] = (state, label)
            broken = model.broken(after)
            if broken:
                return Walk(
                    len(parents), time.monotonic() - began, broken, _trace(parents, after), complete=False
                )
            queue.append(after)
    for goal in goals:
        stuck = _stuck(children, goal)
        if stuck is not None:
            return Walk(len(parents), time.monotonic() - began, goal.missed, _trace(parents, stuck))
    return Walk(len(parents), time.monotonic() - began)


def _stuck(children: dict[AnyState, list[AnyState]], goal: Goal[AnyState]) -> AnyState | None:
    """A state from which a goal cannot be reached although it is demanded there."""
    before: dict[AnyState, list[AnyState]] = {}
    good: set[AnyState] = set()
    for state, following in children.items():
        for after in following:
            before.setdefault(after, []).append(state)
            if goal.reached(state, after):
                good.add(state)
    queue = deque(good)
    while queue:
        for state in before.get(queue.popleft(), ()):
            if state not in good:
                good.add(state)
                queue.append(state)
    return next((state for state in children if state not in good and goal.demanded(state)), None)


def _trace(parents: Mapping[Any, tuple[Any, str] | None], state: Any) -> tuple[str, ...]:
    steps = []
    while (step := parents[state]) is not None:
        state, label = step
        steps.append(label)
    return tuple(reversed(steps))
