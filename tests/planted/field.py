"""Grounds on which bugs are tried at the same time."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

from kit.machine import CORES, WAITING, ports_of
from planted.ground import Ground, Outcome
from planted.plants import LAYERS, BadPlants, Check, Plant, folder_of, is_of

PLACES = 4 * CORES
"""How many bugs are tried at once: most tests wait, some a minute for what their bug prevents."""

PLANT_LIMIT_S = 300
CHECK_LIMIT_S = 900
UNPLANTED_LIMIT_S = 3_600

_COMPUTING = ("audit", "chaos", "model", "simulation")
"""Folders whose tests keep a core busy: no more of them run at once than there are cores, or one could reach
its time limit and so seem to have caught a bug."""

_SLOW_FIRST = ("integration", "coordinator", "metadata", "runtime", "server", "discovery", "client")
"""Folders whose tests wait, those that wait longest first; all others come later."""

_REASON_LENGTH = 120
T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """What came of a plant.

    Attributes:
        plant: the bug.
        caught_by: the test that saw it; empty: none.
        reason: what that test had to say.
        layers: the further layers that were tried → whether they saw it.
        broken: why it is not known; empty: it is.
    """

    plant: Plant
    caught_by: str = ""
    reason: str = ""
    layers: tuple[tuple[str, bool], ...] = ()
    broken: str = ""

    @property
    def good(self) -> bool:
        """Whether it was caught, by every layer that was tried."""
        return bool(self.caught_by) and not self.broken and all(saw for _, saw in self.layers)


class Field:
    """Some grounds.

    Args:
        folder: for the copies.
        places: how many.
    """

    def __init__(self, folder: Path, places: int) -> None:
        self._places = places
        self._free: SimpleQueue[Ground] = SimpleQueue()
        for number in range(places):
            self._free.put(Ground(folder / str(number), ports_of(number, places)))

    def failing_without_bugs(self, plants: Sequence[Plant]) -> tuple[tuple[str, ...], str]:
        """Tests that fail although no bug is planted; and why not all of them could be run."""
        tests = sorted({test for plant in plants for test in plant.tests})
        ground = self._free.get()
        try:
            processes = min(len(tests), self._places, CORES + WAITING)
            outcome = ground.test(tests, UNPLANTED_LIMIT_S, first_failure_ends=False, processes=processes)
        finally:
            self._free.put(ground)
        return outcome.failed, outcome.broken

    def failing_checks(self, plants: Sequence[Plant]) -> list[Check]:
        """Commands of further layers that find something although no bug is planted."""
        checks = list(dict.fromkeys(check for plant in plants for check in plant.also))
        with ThreadPoolExecutor(min(self._places, CORES)) as threads:
            outcomes = list(threads.map(self._unplanted_check, checks))
        return [check for check, outcome in zip(checks, outcomes, strict=True) if not outcome.passed]

    def _unplanted_check(self, check: Check) -> Outcome:
        ground = self._free.get()
        try:
            return ground.command(check.run, CHECK_LIMIT_S)
        finally:
            self._free.put(ground)

    def try_all(
        self,
        plants: Sequence[Plant],
        failing: Sequence[str],
        known: Mapping[str, str],
        *,
        all_layers: bool,
    ) -> list[Verdict]:
        """Plants them, and prints each verdict when it is known.

        Args:
            plants: the bugs.
            failing: tests that fail without any; they catch nothing.
            known: plant → the test that caught it earlier; it is asked first.
            all_layers: whether further layers are tried, which compute.
        """
        done = 0
        printing = Lock()

        def attempt(plant: Plant) -> Verdict:
            nonlocal done
            began = time.monotonic()
            if any(is_of(test, named) for test in failing for named in plant.tests):
                verdict = Verdict(plant, broken="its tests fail without it")
            else:
                verdict = self._try(plant, known.get(plant.id, ""), all_layers=all_layers)
            seen = f"caught by {verdict.caught_by}" if verdict.good else "NOT CAUGHT"
            said = verdict.broken or verdict.reason
            with printing:
                done += 1
                print(f"[{done:3}/{len(plants)}] {time.monotonic() - began:5.1f} s  {plant.id}: {seen}")
                for line in [said[:_REASON_LENGTH], *(f"{layer}: {saw}" for layer, saw in verdict.layers)]:
                    print(f"{'':20}{line}", flush=True)
            return verdict

        computing = [plant for plant in plants if _computes(plant, all_layers=all_layers)]
        others = sorted((plant for plant in plants if plant not in computing), key=_turn)
        return in_places(attempt, computing, others, self._places)

    def _try(self, plant: Plant, known: str, *, all_layers: bool) -> Verdict:
        ground = self._free.get()
        try:
            with ground.with_bug(plant):
                outcome = Outcome()
                if any(is_of(known, named) for named in plant.tests):
                    outcome = ground.test([known], PLANT_LIMIT_S, first_failure_ends=True)
                if not outcome.failed:
                    outcome = ground.test(plant.tests, PLANT_LIMIT_S, first_failure_ends=True)
                caught_by = outcome.failed[0] if outcome.failed else ""
                layers = []
                for check in plant.also if all_layers else ():
                    seen = ground.command(check.run, CHECK_LIMIT_S)
                    layers.append((LAYERS[check.layer], bool(seen.failed)))
                return Verdict(plant, caught_by, outcome.reason, tuple(layers), outcome.broken)
        except BadPlants as error:
            return Verdict(plant, broken=str(error))
        finally:
            self._free.put(ground)


def _computes(plant: Plant, *, all_layers: bool) -> bool:
    return bool(plant.also and all_layers) or any(folder_of(test) in _COMPUTING for test in plant.tests)


def _turn(plant: Plant) -> int:
    folder = folder_of(plant.tests[0])
    return _SLOW_FIRST.index(folder) if folder in _SLOW_FIRST else len(_SLOW_FIRST)


def in_places(
    attempt: Callable[[Plant], T], computing: Sequence[Plant], others: Sequence[Plant], places: int
) -> list[T]:
    """Tries plants at the same time, in their order; of those that compute, no more than there are cores.

    Args:
        attempt: tries one.
        computing: those that keep a core busy.
        others: those that mostly wait.
        places: how many are tried at once.

    Returns:
        What the attempts gave, in the order in which they ended.
    """
    first, second = deque(computing), deque(others)
    given: list[T] = []

    def work(place: int) -> None:
        queues = (first, second) if place < CORES else (second,)
        for queue in queues:
            while True:
                try:
                    plant = queue.popleft()
                except IndexError:
                    break
                given.append(attempt(plant))

    with ThreadPoolExecutor(places) as threads:
        list(threads.map(work, range(places)))
    return given
