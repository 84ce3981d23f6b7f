"""Walks a model, breadth first."""

import gc
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_LOOKS_EACH = 1_000
"""States from one look at the clock to the next: a look takes as long as a state."""

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
        seconds: how much it computed.
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
        along: whether a way may take a step.
    """

    missed: str
    demanded: Callable[[AnyState], bool]
    reached: Callable[[AnyState, AnyState], bool]
    along: Callable[[AnyState, AnyState], bool] = lambda _before, _after: True


@dataclass(frozen=True)
class Circle:
    """What must not go on for ever.

    Attributes:
        endless: what is wrong with a circle of states.
        closing: label of the step that closes it.
        progress: with what the label of a step begins that is progress; a circle with one of them is none.
    """

    endless: str
    closing: str
    progress: str


def explore(
    model: Walkable[AnyState],
    limit_s: float,
    goals: Sequence[Goal[AnyState]] = (),
    circles: Sequence[Circle] = (),
) -> Walk:
    """Visits every state that can be reached, up to the first broken one.

    Args:
        model: what is walked.
        limit_s: the walk is cut off when it has computed for so long.
        goals: what must stay possible as well.
        circles: what must not go on for ever.
    """
    with _without_collector():
        return _explored(model, limit_s, goals, circles)


@contextmanager
def _without_collector() -> Iterator[None]:
    """A walk keeps nearly all that it makes, and makes no circles: garbage would be looked for in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _explored(
    model: Walkable[AnyState], limit_s: float, goals: Sequence[Goal[AnyState]], circles: Sequence[Circle]
) -> Walk:
    began = time.process_time()
    states = [model.canonical(model.initial())]
    numbers = {states[0]: 0}
    came: list[tuple[int, str]] = [(-1, "")]
    children: list[list[int]] = []

    def end(broken: str = "", *steps: str, complete: bool = False) -> Walk:
        return Walk(len(states), time.process_time() - began, broken, steps, complete)

    walked = 0
    while walked < len(states):
        if walked % _LOOKS_EACH == 0 and time.process_time() - began > limit_s:
            return end()
        following: list[int] = []
        for label, step in model.steps(states[walked]):
            after = model.canonical(step)
            known = numbers.setdefault(after, len(states))
            following.append(known)
            if known < len(states):
                for circle in circles:
                    if label == circle.closing and _closes(came, walked, known, circle):
                        return end(circle.endless, *_trace(came, walked), label)
                continue
            states.append(after)
            came.append((walked, label))
            broken = model.broken(after)
            if broken:
                return end(broken, *_trace(came, known))
        children.append(following if goals else [])
        walked += 1
    for goal in goals:
        stuck = _stuck(states, children, goal)
        if stuck is not None:
            return end(goal.missed, *_trace(came, stuck), complete=True)
    return end(complete=True)


def _stuck(states: list[AnyState], children: list[list[int]], goal: Goal[AnyState]) -> int | None:
    """A state from which a goal cannot be reached although it is demanded there."""
    before: list[list[int]] = [[] for _ in states]
    good: set[int] = set()
    for number, following in enumerate(children):
        for after in following:
            if not goal.along(states[number], states[after]):
                continue
            before[after].append(number)
            if goal.reached(states[number], states[after]):
                good.add(number)
    queue = deque(good)
    while queue:
        for number in before[queue.popleft()]:
            if number not in good:
                good.add(number)
                queue.append(number)
    return next((n for n, state in enumerate(states) if n not in good and goal.demanded(state)), None)


def _closes(came: list[tuple[int, str]], number: int, known: int, circle: Circle) -> bool:
    """Whether a step from one state to an earlier one closes a circle without progress."""
    while number > known:
        number, label = came[number]
        if label.startswith(circle.progress):
            return False
    return number == known


def _trace(came: list[tuple[int, str]], number: int) -> tuple[str, ...]:
    """The steps to a state."""
    steps = []
    while number > 0:
        number, label = came[number]
        steps.append(label)
    return tuple(reversed(steps))
