"""Looks at what workers take for their own: no partition has two owners, at any instant of virtual time."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

from muster import TopicPartition
from simulation.violations import Violations
from simulation.worker import Worker
from simulation.world import World

_LONGEST_S = 10.0
"""The longest session of a worker."""


class _Holding(NamedTuple):
    """What a worker takes for its own, with its tokens, and the virtual time at which its life ends."""

    partitions: Mapping[TopicPartition, str]
    until_s: float


class Owners:
    """Compares the workers of each group whenever one of them takes partitions for its own.

    What a worker gives back is its own until its work has ended.
    A worker owns what it was assigned and did not give up until its life ends by its own clock, also while
    its process is stopped: it does not know that yet. Two such times overlap only if one of the workers still
    owns at the moment at which the other one begins to, so that is when they are compared.

    Args:
        world: time.
        violations: takes what is wrong.
        skew: how much clocks run fast or slow. More than a thousandth breaks what clients rely on
            (docs/safety.md, SES-27); as long as such clocks come apart within a session, two may own.
    """

    def __init__(self, world: World, violations: Violations, skew: float) -> None:
        self._world = world
        self._violations = violations
        self._allowed_s = 0.005 + max(0.0, 2 * skew - 0.001) * _LONGEST_S * (1 + 2 * skew)
        self._holding: dict[Worker, _Holding] = {}

    def watch(self, worker: Worker) -> None:
        """Looks at a worker after each of its turns from now on."""
        worker.process.after_turn = partial(self._look, worker)

    def _look(self, worker: Worker) -> None:
        member = worker.member
        standing = None if member is None else member._standing
        if standing is None or not standing.holding or not standing.owned:
            self._holding.pop(worker, None)
            return
        now_s = self._world.now_s
        until_s = worker.process.until_s(standing.life.ends_at_ms / 1000)
        before = self._holding.get(worker)
        self._holding[worker] = _Holding(standing.owned, until_s)
        goes_on = before is not None and before.until_s > now_s
        had = before.partitions if before is not None and goes_on else {}
        begun = {p for p, token in standing.owned.items() if had.get(p) != token}
        if until_s > now_s and begun:
            self._begins(worker, begun)

    def _begins(self, worker: Worker, begun: Collection[TopicPartition]) -> None:
        for other, theirs in self._holding.items():
            if other is worker or other.group_id != worker.group_id or not other.process.alive:
                continue
            more_s = theirs.until_s - self._world.now_s
            shared = sorted(theirs.partitions.keys() & begun) if more_s > self._allowed_s else []
            self._violations.expect(
                "O7",
                not shared,
                f"{worker.process.name} begins to own {', '.join(map(str, shared))} of {worker.group_id}, "
                f"which {other.process.name} takes for its own for {more_s:.3f} s still",
            )
