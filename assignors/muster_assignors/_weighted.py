"""`uniform` where members can do more than others, partitions are more work than others, or zones are known.

A member's level is the load of its partitions for its weight. Levels are even when no partition could go to
another member that wants it and that would then be at a lower level than its owner is now; where loads
differ, lower by more than a twentieth, or else the smallest of them would move all the time. Partitions stay
where that allows it, and which one of equals moves is chosen by zones.
"""

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from muster_assignors._java import in_text_order
from muster_assignors._snapshot import GroupSnapshot, TopicPartition

_ROUNDS = 16
"""How often all members are looked at for what they could give up."""

SLACK = 0.05
"""Part of a member's level by which a move has to better it, where partitions differ in load."""

_Zones = frozenset[str]
_NOWHERE: _Zones = frozenset()
_Places = dict[_Zones, list[TopicPartition]]
"""Partitions of one pool and one load, by the members' racks that they are near."""


def has_weights(group: GroupSnapshot) -> bool:
    """Whether members, or partitions of the topics that they want, differ in weight."""
    return len({member.weight for member in group.members.values()}) > 1 or len(_loads(group)) > 1


def has_zones(group: GroupSnapshot) -> bool:
    """Whether a partition is near to a member, as far as that is known."""
    racks = {member.rack_id for member in group.members.values()} - {""}
    topics = map(group.topics.__getitem__, group.topics_in_order()) if racks else ()
    return any(not racks.isdisjoint(zones) for topic in topics for zones in topic.racks)


def weighted_shares(group: GroupSnapshot) -> dict[str, list[TopicPartition]]:
    """What each member gets; nothing that it does not want."""
    work = _Work(group)
    work.give_free()
    work.even_out()
    return work.shares()


class _Move(NamedTuple):
    """A way to take something from a member; the least is best.

    Attributes:
        higher: the higher level of the two members after it.
        level: the receiver's.
        receiver: who gets it.
        pool: of the partition.
        load: of the partition.
    """

    higher: float
    level: float
    receiver: int
    pool: int
    load: int


class _Pool:
    """Partitions that the same members want.

    Attributes:
        takers: who wants them.
    """

    def __init__(self, takers: Sequence[int], weights: Sequence[int], loads: Sequence[int]) -> None:
        self.takers = takers
        self._loads = loads
        self._lowest: dict[int, tuple[float, int]] = {}
        self._by_weight: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for place in takers:
            self._by_weight[weights[place]].append((loads[place], place))
        for members in self._by_weight.values():
            heapify(members)

    def note(self, place: int, weight: int) -> None:
        """The load of a taker has changed."""
        heappush(self._by_weight[weight], (self._loads[place], place))
        self._lowest.clear()

    def lowest(self, load: int) -> tuple[float, int]:
        """Who would be at the lowest level with one more partition of a load, and that level."""
        found = self._lowest.get(load)
        if found is not None:
            return found
        for weight, members in self._by_weight.items():
            while members[0][0] != self._loads[members[0][1]]:
                heappop(members)  # an earlier load
            before, place = members[0]
            one = ((before + load) / weight, place)
            found = one if found is None else min(found, one)
        assert found is not None
        self._lowest[load] = found
        return found


class _Work:
    """A group while it is shared out; members are numbers in the order of their names."""

    def __init__(self, group: GroupSnapshot) -> None:
        self._members = [group.members[name] for name in in_text_order(group.members)]
        self._weights = [member.weight for member in self._members]
        self._loads = [0] * len(self._members)
        self._held: list[dict[tuple[int, int], _Places]] = [{} for _ in self._members]
        self._free: dict[tuple[int, int], _Places] = {}
        self._worthwhile = 1 - SLACK if len(_loads(group)) > 1 else 1.0
        self._racks = frozenset(member.rack_id for member in self._members) - {""}
        takers: dict[tuple[int, ...], int] = {}
        self._topics: dict[str, int] = {}
        wanted: dict[str, list[int]] = defaultdict(list)
        for place, member in enumerate(self._members):
            for topic in dict.fromkeys(member.topics):
                wanted[topic].append(place)
        for topic in group.topics_in_order():
            self._topics[topic] = takers.setdefault(tuple(wanted[topic]), len(takers))
        self._put_down(group)
        self._pools = [_Pool(members, self._weights, self._loads) for members in takers]
        self._pools_of: list[list[_Pool]] = [[] for _ in self._members]
        for pool in self._pools:
            for place in pool.takers:
                self._pools_of[place].append(pool)

    def _put_down(self, group: GroupSnapshot) -> None:
        """Notes who has what, and what is free."""
        owners: dict[TopicPartition, int] = {}
        for place, member in enumerate(self._members):
            topics = frozenset(member.topics)
            owners |= {partition: place for partition in member.owned if partition.topic in topics}
        for topic, pool in self._topics.items():
            about = group.topics[topic]
            for number in about.numbers:
                partition = TopicPartition(topic, number)
                load = about.weights[number] if about.weights else 1
                zones = about.racks[number] & self._racks if about.racks else _NOWHERE
                owner = owners.get(partition)
                places = self._free if owner is None else self._held[owner]
                places.setdefault((pool, load), {}).setdefault(zones, []).append(partition)
                if owner is not None:
                    self._loads[owner] += load

    def give_free(self) -> None:
        """Gives what nobody has, the heaviest first, to who is at the lowest level with it."""
        order = sorted(self._free, key=lambda kind: (-kind[1], len(self._pools[kind[0]].takers), kind[0]))
        for pool, load in order:
            places = self._free[pool, load]
            for some in places.values():
                some.reverse()  # the first is taken first
            for _ in range(sum(map(len, places.values()))):
                _, place = self._pools[pool].lowest(load)
                rack = self._members[place].rack_id
                zones = max(places, key=lambda zones: (rack in zones, not zones, len(places[zones])))
                self._put(place, (pool, load), zones, _popped(places, zones))

    def even_out(self) -> None:
        """Moves partitions from the highest level down, as long as that helps."""
        left = 4 * sum(
            len(some) for held in self._held for places in held.values() for some in places.values()
        )
        for _ in range(_ROUNDS):
            moved = False
            heap = [
                (-load / weight, place)
                for place, (load, weight) in enumerate(zip(self._loads, self._weights, strict=True))
            ]
            heapify(heap)
            while heap and left:
                level, place = heappop(heap)
                if -level != self._loads[place] / self._weights[place]:
                    continue  # an earlier level
                best = self._best_move(place)
                if best is not None:
                    self._move(place, best)
                    for one in (place, best.receiver):
                        heappush(heap, (-self._loads[one] / self._weights[one], one))
                    moved, left = True, left - 1
            if not moved:
                return

    def _best_move(self, place: int) -> _Move | None:
        """What a member should give up first, and to whom; None: nothing."""
        load, weight = self._loads[place], self._weights[place]
        level, best = load / weight * self._worthwhile, None
        for pool, of_one in self._held[place]:
            reached, receiver = self._pools[pool].lowest(of_one)
            if reached < level:
                move = _Move(max((load - of_one) / weight, reached), reached, receiver, pool, of_one)
                best = move if best is None else min(best, move)
        return best

    def _move(self, giver: int, move: _Move) -> None:
        kind = move.pool, move.load
        places = self._held[giver][kind]
        here, there = self._members[giver].rack_id, self._members[move.receiver].rack_id
        zones = max(places, key=lambda zones: ((there in zones) - (here in zones), places[zones][-1]))
        partition = _popped(places, zones)
        if not places:
            del self._held[giver][kind]
        self._loads[giver] -= move.load
        self._note(giver)
        self._put(move.receiver, kind, zones, partition)

    def _put(self, place: int, kind: tuple[int, int], zones: _Zones, partition: TopicPartition) -> None:
        self._held[place].setdefault(kind, {}).setdefault(zones, []).append(partition)
        self._loads[place] += kind[1]
        self._note(place)

    def _note(self, place: int) -> None:
        for pool in self._pools_of[place]:
            pool.note(place, self._weights[place])

    def shares(self) -> dict[str, list[TopicPartition]]:
        """What everybody has."""
        return {
            member.member_id: sorted(
                one for places in held.values() for some in places.values() for one in some
            )
            for member, held in zip(self._members, self._held, strict=True)
        }


def _popped(places: _Places, zones: _Zones) -> TopicPartition:
    partition = places[zones].pop()
    if not places[zones]:
        del places[zones]
    return partition


def _loads(group: GroupSnapshot) -> set[int]:
    """The loads of the partitions of all topics that members want."""
    loads = set[int]()
    for topic in map(group.topics.__getitem__, group.topics_in_order()):
        loads |= {topic.weights[number] for number in topic.numbers} if topic.weights else {1}
    return loads
