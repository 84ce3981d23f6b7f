"""Numbers of single groups, for as many of them as the settings say."""

import asyncio
from dataclasses import dataclass

from muster_core.state.group import Group
from muster_runtime.telemetry import Sample
from muster_runtime.telemetry.metric import OTHER

from muster_coordinator.telemetry import metrics

ENDS_AT_ONCE = 10_000
"""Reported ends that are looked at before other work of the loop gets its turn."""


@dataclass(slots=True)
class Figures:
    """What is shown of a group, or of several together.

    Attributes:
        members: how many there are.
        assigned: how many partitions they own.
        generation: number of the generation; None: of several groups.
        newest_ms: when something was committed last, wall clock; 0: never.
        lag: what is left to do where ends were reported; None: none was.
    """

    members: int
    assigned: int
    generation: int | None
    newest_ms: int
    lag: int | None

    def add(self, other: "Figures") -> None:
        """Adds another group. Of the last commits the oldest counts: that group may make no progress."""
        self.members += other.members
        self.assigned += other.assigned
        self.generation = None
        if other.newest_ms:
            self.newest_ms = min(self.newest_ms, other.newest_ms) if self.newest_ms else other.newest_ms
        if other.lag is not None:
            self.lag = (self.lag or 0) + other.lag


async def figures_of(group: Group) -> Figures:
    """The numbers of a group."""
    lag = await _lag_of(group) if len(group.ends) else None
    members, owned = len(group.members), len(group.owners)
    if group.incremental is not None and not members:
        members, owned = len(group.incremental.members), len(group.incremental.owners)
    return Figures(members, owned, group.generation, group.offsets.newest_ms, lag)


async def _lag_of(group: Group) -> int:
    """Positions that are left; a partition without a commit is as if 0 had been committed."""
    ends, lag = tuple(group.ends), 0
    for first in range(0, len(ends), ENDS_AT_ONCE):
        for partition, end in ends[first : first + ENDS_AT_ONCE]:
            committed = group.offsets.get(partition)
            lag += max(0, end - (0 if committed is None else committed.offset))
        if first + ENDS_AT_ONCE < len(ends):
            await asyncio.sleep(0)
    return lag


class NamedGroups:
    """Chooses the groups that are shown by their names: never more than so many, at whatever time.

    A group keeps its name while it is there. A place that is free goes to one with members first; where none
    is free, a group without members gives its place to one that has some.

    Args:
        most: how many; 0: nothing is shown of single groups, nor of the others together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, None] = {}

    def round(self) -> "Round":
        """Begins to look at all groups once."""
        return Round(self._most, self._names)


class Round:
    """One look at all groups.

    Args:
        most: how many names there can be.
        names: those that have one; changed at the end.
    """

    def __init__(self, most: int, names: dict[str, None]) -> None:
        self._most = most
        self._names = names
        self._named: dict[str, Figures] = {}
        self._at_work: dict[str, Figures] = {}
        self._idle: dict[str, Figures] = {}
        self._others: Figures | None = None

    async def see(self, group: Group) -> None:
        """Looks at a group."""
        if self._most == 0:
            return
        figures = await figures_of(group)
        waiting = self._at_work if figures.members else self._idle
        if group.group_id in self._names:
            self._named[group.group_id] = figures
        elif len(waiting) < self._most and group.group_id != OTHER:
            waiting[group.group_id] = figures
        else:
            self._put_with_others(figures)

    def samples(self, now_ms: int) -> list[Sample]:
        """Gives places to groups that wait for one, and returns the samples of all.

        Args:
            now_ms: wall clock.
        """
        self._give_places()
        told = [*self._named.items(), *([(OTHER, self._others)] if self._others is not None else ())]
        samples: list[Sample] = []
        for name, figures in told:
            labels = (name,)
            samples.append(Sample(metrics.GROUP_MEMBERS, figures.members, labels))
            samples.append(Sample(metrics.GROUP_PARTITIONS, figures.assigned, labels))
            if figures.generation is not None:
                samples.append(Sample(metrics.GROUP_GENERATION, figures.generation, labels))
            if figures.newest_ms:
                age_s = max(0, now_ms - figures.newest_ms) / 1_000
                samples.append(Sample(metrics.GROUP_LAST_COMMIT_AGE, age_s, labels))
            if figures.lag is not None:
                samples.append(Sample(metrics.GROUP_LAG, figures.lag, labels))
        return samples

    def _give_places(self) -> None:
        named = self._named
        resting = [name for name, figures in named.items() if not figures.members]
        for name, figures in (*self._at_work.items(), *self._idle.items()):
            if len(named) == self._most and figures.members and resting:
                self._put_with_others(named.pop(resting.pop()))
            if len(named) < self._most:
                named[name] = figures
            else:
                self._put_with_others(figures)
        self._names.clear()
        self._names.update(dict.fromkeys(named))

    def _put_with_others(self, figures: Figures) -> None:
        if self._others is None:
            self._others = figures
            figures.generation = None
        else:
            self._others.add(figures)
