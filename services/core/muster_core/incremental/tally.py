"""What the members of an incremental group say of themselves, counted."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

from muster_core.incremental.member import Told
from muster_core.participant import Participant

_Key = TypeVar("_Key")

_NO_TOPICS = frozenset[str]()


@dataclass(slots=True)
class Tally:
    """How many members say what, so that a decision about a large group need not look at each of them.

    Attributes:
        ids: of the members, in order.
        participants: they as the history shows them, in that order.
        topics: how many members name a topic.
        listed: names in the lists of all members together.
        expressions: how many members subscribe to an expression.
        assignors: how many members prefer an assignor.
        weights: how many members have a weight.
        numbered: how many members name their joins.
        on_session: how many members are stream members.
        in_racks: how many members say where they run.
    """

    ids: list[str] = field(default_factory=list)
    participants: list[Participant] = field(default_factory=list)
    topics: Counter[str] = field(default_factory=Counter)
    listed: int = 0
    expressions: Counter[str] = field(default_factory=Counter)
    assignors: Counter[str] = field(default_factory=Counter)
    weights: Counter[int] = field(default_factory=Counter)
    numbered: int = 0
    on_session: int = 0
    in_racks: int = 0

    def copy(self) -> "Tally":
        """Another one that says the same."""
        return Tally(
            self.ids.copy(),
            self.participants.copy(),
            Counter(self.topics),
            self.listed,
            Counter(self.expressions),
            Counter(self.assignors),
            Counter(self.weights),
            self.numbered,
            self.on_session,
            self.in_racks,
        )

    def exchange(self, before: Told | None, after: Told | None) -> None:
        """Counts what a member says in the place of what it said; None: it was, or is, no member."""
        named = before.topics if before is not None else _NO_TOPICS
        names = after.topics if after is not None else _NO_TOPICS
        if names is not named and names != named:
            self.listed += len(names) - len(named)
            self.topics.update(names - named)
            for topic in named - names:
                _count(self.topics, topic, -1)
        if before is not None:
            self._add(before, -1)
        if after is not None:
            self._add(after, 1)
        self._list(before, after)

    def _list(self, before: Told | None, after: Told | None) -> None:
        told = after or before
        if told is None:
            return
        place = bisect_left(self.ids, told.member_id)
        listed = slice(place, place + (before is not None))
        self.ids[listed] = [after.member_id] if after is not None else []
        participants = [Participant.of(after)] if after is not None else []
        if participants != self.participants[listed]:  # the very one that it was is quicker to compare
            self.participants[listed] = participants

    def _add(self, told: Told, count: int) -> None:
        if told.topic_regex:
            _count(self.expressions, told.topic_regex, count)
        if told.server_assignor:
            _count(self.assignors, told.server_assignor, count)
        _count(self.weights, told.weight, count)
        self.numbered += count * told.is_numbered
        self.on_session += count * told.on_session
        self.in_racks += count * bool(told.rack_id)


def _count(counts: Counter[_Key], key: _Key, count: int) -> None:
    """Counts some more of a key, or fewer; of nothing there is no count."""
    counts[key] += count
    if not counts[key]:
        del counts[key]
