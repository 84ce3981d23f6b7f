"""Stickiness among members that all want the same topics: shares differ by one partition at most."""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from itertools import chain
from operator import itemgetter

from muster_assignors._work import Claims, Racks, Work


class EqualShares:
    """Shares of members that want the same topics; members keep as much as fits of what they had.

    Attributes:
        shares: for each member its partitions, in Kafka's order.
        moving: partitions that somebody had whom it is taken from → its new owner.
    """

    def __init__(self, work: Work, claims: Claims) -> None:
        self.shares: list[list[int]] = [[] for _ in work.names]
        self.moving: dict[int, int] = {}
        self._work = work
        self._racks = work.racks()
        self._contested = claims.contested
        self._left: dict[int, int] = {}
        """Partitions that a member is not to keep → that member."""
        self._least, self._extras = divmod(len(work.partitions), len(work.names))
        """What each member gets, and how many may get one more."""
        self._short: list[int] = []
        """Members that have less than the least."""
        self._level: deque[int] = deque()
        """Members that have the least, and may get one more."""
        self._keep(claims)
        self._short.sort()
        self._level = deque(sorted(self._level))
        free = self._free()
        if self._racks is not None:
            free = self._deal_on_racks(self._racks, free)
        self._deal(free)

    def _keep(self, claims: Claims) -> None:
        order = self._by_number()
        for member in self._work.visits:
            had = list(claims.had[member])
            if self._racks is not None:
                away = [partition for partition in had if self._racks.part(member, partition)]
                self._left.update(dict.fromkeys(away, member))
                had = [partition for partition in had if not self._racks.part(member, partition)]
            if self._contested:
                had = [partition for partition in had if partition not in self._contested]
            had.sort(key=None if order is None else order.__getitem__)
            if len(had) < self._least:
                kept = len(had)
                self._short.append(member)
            elif len(had) > self._least and self._extras:
                kept = self._least + 1
                self._spend_extra()
            else:
                kept = self._least
                if self._extras:
                    self._level.append(member)
            self.shares[member] = had[:kept]
            self._left.update(dict.fromkeys(had[kept:], member))

    def _by_number(self) -> list[int] | None:
        """For each partition its place by number, then topic; None: as they are."""
        if len(self._work.topics) == 1:
            return None
        step = len(self._work.topics)
        return [
            number * step + place
            for place, topic in enumerate(self._work.topics)
            for number in range(len(self._work.numbers[topic]))
        ]

    def _free(self) -> list[int]:
        taken = bytearray(len(self._work.partitions))
        for share in self.shares:
            for partition in share:
                taken[partition] = 1
        return [partition for partition, has in enumerate(taken) if not has]

    def _spend_extra(self) -> None:
        """One member has got one more than the least. After the last one nobody else can."""
        self._extras -= 1
        if not self._extras:
            self._level.clear()

    def _give(self, member: int, partition: int) -> int:
        """Gives a free partition to a member; returns how many it has then."""
        share = self.shares[member]
        share.append(partition)
        if self._left.get(partition, member) != member or partition in self._contested:
            self.moving[partition] = member
        return len(share)

    def _deal_on_racks(self, racks: Racks, free: list[int]) -> list[int]:
        """Gives free partitions to members on their racks, those first that fit few; returns the others."""
        short = _ByRack(racks, self._short)
        level = _ByRack(racks, self._level)
        on_rack = Counter(racks.members)
        turn, left = 0, []
        for partition in sorted(free, key=lambda p: sum(on_rack[rack] for rack in racks.partitions[p])):
            near = racks.partitions[partition]
            member = short.first_from(turn, near)
            if member is not None:
                turn = member + 1
                if self._give(member, partition) == self._least:
                    short.remove(member)
                    if self._extras:
                        level.append(member)
            elif (member := level.first(near)) is not None:
                self._give(member, partition)
                level.remove(member)
                self._spend_extra()
                if not self._extras:
                    level = _ByRack(racks, ())
            else:
                left.append(partition)
        self._short, self._level = sorted(short.members()), deque(level.members())
        return left

    def _deal(self, free: list[int]) -> None:
        short, level = deque(self._short), self._level
        for partition in free:
            if short:
                member = short.popleft()
                if self._give(member, partition) < self._least:
                    short.append(member)
                else:
                    level.append(member)
            else:
                self._give(level.popleft(), partition)


class _ByRack:
    """A list of members, in which those on some racks are looked for.

    Args:
        racks: where they are.
        members: the list, in ascending order.
    """

    def __init__(self, racks: Racks, members: Iterable[int]) -> None:
        self._racks = racks
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """For each rack (place in the list, member), in order."""
        self._end = 0
        for member in members:
            self.append(member)

    def append(self, member: int) -> None:
        """Puts a member at the end."""
        self._places[self._racks.members[member]].append((self._end, member))
        self._end += 1

    def remove(self, member: int) -> None:
        """Takes a member out."""
        places = self._places[self._racks.members[member]]
        del places[next(at for at, (_, other) in enumerate(places) if other == member)]

    def first(self, racks: frozenset[str]) -> int | None:
        """The first member on one of these racks; None: there is none."""
        found = [self._places[rack][0] for rack in racks if self._places.get(rack)]
        return min(found)[1] if found else None

    def first_from(self, turn: int, racks: frozenset[str]) -> int | None:
        """The first on one of these racks from some member on, or from the start; members are in order."""
        found = []
        for rack in racks:
            if places := self._places.get(rack):
                at = bisect_left(places, turn, key=itemgetter(1))
                found.append(places[at % len(places)][1])
        return min(found, key=lambda member: (member < turn, member), default=None)

    def members(self) -> list[int]:
        """The whole list, in order."""
        return [member for _, member in sorted(chain.from_iterable(self._places.values()))]
