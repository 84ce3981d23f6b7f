"""Owners of a partition, one after the other."""

from dataclasses import dataclass

from muster_core.position import Position


@dataclass(frozen=True)
class Owner:
    """An ownership, as a sink sees it."""

    token: str
    group: str = "crawlers"
    topic: str = "sites"
    number: int = 3


def owner(epoch: int, offset: int, number: int = 3) -> Owner:
    """The ownership that an entry of the log gave."""
    return Owner(Position(epoch, offset).token, number=number)


ZOMBIE, HEIR = owner(2, 17), owner(10, 4)
"""Two owners of one partition: the second one has the higher token, though not the higher offset."""
