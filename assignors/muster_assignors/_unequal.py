"""Stickiness among members that want different topics: partitions move while that evens shares out."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from muster_assignors._java import NumberSet, text_hash
from muster_assignors._work import NOBODY, Claims, Racks, Work

PASSES_MAX = 100
"""How often all partitions are looked at for one that had better move. Kafka has no bound; a few passes are
enough. What is not even after so many stays so, and each partition has its owner all the same."""


class UnequalShares:
    """Shares of members that want different topics, as even as those topics allow.

    Attributes:
        shares: for each member its partitions, in Kafka's order.
    """

    def __init__(self, work: Work, claims: Claims) -> None:
        self.shares: list[dict[int, None]] = [{} for _ in work.names]
        self._work = work
        self._racks = work.racks()
        self._owners = [NOBODY] * len(work.partitions)
        self._topics = sorted(work.topics, key=lambda topic: len(work.subscribers[topic]))
        """Those that few members want first."""
        self._before = self._earlier(claims)
        self._moves = {topic: _Moves(topic, work.numbers[topic].start) for topic in work.topics}
        revoked = self._keep(claims)
        fresh = not any(self.shares)
        free = self._assign_free()
        movable = {topic for topic in work.topics if len(work.subscribers[topic]) > 1}
        kept = [dict(share) for share in self.shares]
        if not revoked:
            self._even_out({topic: free[topic] for topic in movable})
        moved = self._even_out({topic: work.numbers[topic] for topic in movable})
        if moved and not fresh and self._unevenness(self.shares, movable) >= self._unevenness(kept, movable):
            self.shares = kept

    def _earlier(self, claims: Claims) -> dict[int, int]:
        """For each partition who had it in the latest generation before the newest, and still wants it."""
        found: dict[int, tuple[int, int]] = {}
        for member in self._work.visits:
            stated, generation = claims.stated[member]
            if generation < claims.newest:
                for partition in stated:
                    if partition not in found or generation > found[partition][1]:
                        found[partition] = (member, generation)
        wanted, partitions = self._work.wanted, self._work.partitions
        return {p: member for p, (member, _) in found.items() if partitions[p].topic in wanted[member]}

    def _keep(self, claims: Claims) -> bool:
        """Leaves members what they had; returns whether they lose something that they want no more."""
        revoked = False
        for member, had in enumerate(claims.had):
            wanted, share = self._work.wanted[member], self.shares[member]
            for partition in had:
                wants = self._work.partitions[partition].topic in wanted
                if wants and (self._racks is None or not self._racks.part(member, partition)):
                    share[partition] = None
                    self._owners[partition] = member
                else:
                    revoked = True
        return revoked

    def _assign_free(self) -> dict[str, list[int]]:
        """Gives free partitions to those who have least, on their racks first; returns them by topic."""
        owners = self._owners
        free = {
            topic: [p for p in self._work.numbers[topic] if owners[p] == NOBODY] for topic in self._topics
        }
        if self._racks is not None:
            for topic, partitions in free.items():
                self._assign_on_racks(self._racks, topic, partitions)
        for topic, partitions in free.items():
            least = _Least(self.shares, self._work.subscribers[topic])
            for partition in partitions:
                if owners[partition] == NOBODY:
                    self._give(least.take(), partition)
        return free

    def _assign_on_racks(self, racks: Racks, topic: str, partitions: list[int]) -> None:
        by_rack: dict[str, list[int]] = {}
        for member in self._work.subscribers[topic]:
            by_rack.setdefault(racks.members[member], []).append(member)
        least = {rack: _Least(self.shares, members) for rack, members in by_rack.items()}
        for partition in partitions:
            near = [least[rack] for rack in ("", *racks.partitions[partition]) if rack in least]
            if near:
                self._give(min(near, key=_Least.peek).take(), partition)

    def _give(self, member: int, partition: int) -> None:
        self.shares[member][partition] = None
        self._owners[partition] = member

    def _even_out(self, candidates: dict[str, Iterable[int]]) -> bool:
        """Moves partitions from members with many to those with fewer; returns whether any moved."""
        moved = False
        for _ in range(PASSES_MAX):
            moved_now = False
            for topic in self._topics:
                if topic in candidates:
                    moved_now |= self._even_out_topic(topic, candidates[topic])
            if not moved_now:
                break
            moved = True
        return moved

    def _even_out_topic(self, topic: str, candidates: Iterable[int]) -> bool:
        """One pass over partitions of a topic.

        Moves within a topic change the shares of its subscribers alone.
        """
        members, shares, owners = self._work.subscribers[topic], self.shares, self._owners
        sizes = [len(shares[member]) for member in members]
        if max(sizes) <= min(sizes) + 1:
            return False
        least = _Least(shares, members)
        fewest, smallest = least.peek()
        moved = False
        for partition in candidates:
            has = len(shares[owners[partition]])
            if has <= fewest + 1:
                continue
            before = self._before.get(partition, smallest)
            target = before if has > len(shares[before]) + 1 else smallest
            least.changed(*self._move(topic, partition, target))
            fewest, smallest = least.peek()
            moved = True
        return moved

    def _move(self, topic: str, partition: int, target: int) -> tuple[int, int]:
        """Moves a partition, or one that thereby goes back; returns from whom and to whom."""
        moves = self._moves[topic]
        partition = moves.better(partition, self._owners[partition], target)
        source = self._owners[partition]
        moves.note(partition, source, target)
        del self.shares[source][partition]
        self._give(target, partition)
        return source, target

    def _unevenness(self, shares: list[dict[int, None]], movable: set[str]) -> int:
        """Differences of sizes, added up over all pairs of members that want a topic that others want too."""
        wanted = self._work.wanted
        sizes = sorted(len(share) for m, share in enumerate(shares) if not wanted[m].isdisjoint(movable))
        return sum((2 * place + 1 - len(sizes)) * size for place, size in enumerate(sizes))


class _Least:
    """Finds the member with the smallest share among some: the first of them in order.

    Args:
        shares: the shares of all members.
        members: those to choose from.
    """

    def __init__(self, shares: list[dict[int, None]], members: Iterable[int]) -> None:
        self._shares = shares
        self._heap = [(len(shares[member]), member) for member in members]
        heapify(self._heap)

    def peek(self) -> tuple[int, int]:
        """How much the member has, and the member."""
        return self._heap[0]

    def take(self) -> int:
        """The member, which gets one more now."""
        size, member = self._heap[0]
        heapreplace(self._heap, (size + 1, member))
        return member

    def changed(self, *members: int) -> None:
        """Takes new sizes of members into account."""
        heap = self._heap
        for member in members:
            heappush(heap, (len(self._shares[member]), member))
        while len(self._shares[heap[0][1]]) != heap[0][0]:
            heappop(heap)


class _Moves:
    """How partitions of one topic have moved: none is to go one way while another one goes the other way.

    Args:
        topic: its name.
        start: index of its first partition.
    """

    def __init__(self, topic: str, start: int) -> None:
        self._topic = topic
        self._start = start
        self._paths: dict[int, tuple[int, int]] = {}
        """Partition → from whom it came at first, and who has it."""
        self._on_path: dict[tuple[int, int], NumberSet] = {}

    def better(self, partition: int, source: int, target: int) -> int:
        """The partition that is to move instead: one that came from the target to the origin of this one."""
        origin = self._paths[partition][0] if partition in self._paths else source
        back = self._on_path.get((target, origin))
        return partition if back is None else back.first() + self._start

    def note(self, partition: int, source: int, target: int) -> None:
        """Remembers a move."""
        origin = source
        path = self._paths.pop(partition, None)
        if path is not None:
            origin = path[0]
            on_path = self._on_path[path]
            on_path.remove(partition - self._start)
            if not on_path:
                del self._on_path[path]
        if origin != target:
            path = self._paths[partition] = (origin, target)
            if path not in self._on_path:
                self._on_path[path] = NumberSet(text_hash(self._topic))
            self._on_path[path].add(partition - self._start)
