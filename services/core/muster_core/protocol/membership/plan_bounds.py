"""What plans of a group may come to: refused when members join, not when a leader hands one in."""

from functools import lru_cache
from itertools import chain
from typing import NamedTuple
from weakref import WeakKeyDictionary

from muster_protos.limits import ID_MAX_BYTES

from muster_core.protocol.context import ShardContext
from muster_core.record_bounds import RECORD_MAX_BYTES, utf8_bytes
from muster_core.state.group import CONSUMER, Group
from muster_core.state.members.member import Member
from muster_core.state.members.protocols import KINDS, Protocols
from muster_core.state.members.terms import Terms
from muster_core.state.published import topics_in

_SUMS_MAX = 64
_MEMBER_BYTES = ID_MAX_BYTES + 32
"""The most that a member takes in the record of a plan, without its partitions."""
_TOPIC_BYTES = 12
"""The framing of a topic among the partitions of a member."""
_PARTITION_BYTES = 3
_TOKEN_BYTES = 32
"""A kept token, without the name of its topic."""


class _Sums(NamedTuple):
    """What the topics of a group add up to.

    Attributes:
        partitions: how many they have.
        topics: number of partitions and bytes of the name, of each topic that exists.
        names_bytes: what the names take if each partition comes with that of its topic.
        longest_bytes: the longest name.
    """

    partitions: int
    topics: tuple[tuple[int, int], ...]
    names_bytes: int
    longest_bytes: int


@lru_cache(maxsize=KINDS)
def _topics_of(protocols: Protocols) -> frozenset[str] | None:
    """What a member with these protocols wants; members are mostly alike."""
    return topics_in(metadata for _, metadata in protocols)


class PlanBounds:
    """Knows which groups want more than a plan may give, or the log can hold as one record.

    Args:
        context: the shard.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._catalog = context.catalog
        self._sums: dict[frozenset[str], _Sums] = {}
        self._wanted: WeakKeyDictionary[Group, tuple[int, frozenset[str]]] = WeakKeyDictionary()
        """The topics of a generation and of joins since; who wanted some may be gone."""

    def excess(self, group: Group, known: Member | None, protocol_type: str, terms: Terms) -> str:
        """Why plans of the group may be too large with a member of these terms, for people; empty: they fit.

        The member is a new one, or one that is known and had other terms so far.
        Topics that nobody knows, and those in foreign bytes, do not count.
        """
        if protocol_type != CONSUMER or not self._context.catalog.partitions:
            return ""
        topics = _topics_of(terms.protocols)
        if topics is None:
            return ""
        before = self._wanted_by(group)
        wanted = before if topics <= before else before | topics
        members = len(group.members) + (known is None)
        if self._excess_of(wanted, members):
            # Some who wanted these topics may be gone.
            others = (member for member in group.members.values() if member is not known)
            present = chain.from_iterable(member.terms.protocols for member in others)
            wanted = topics | (topics_in(metadata for _, metadata in present) or frozenset())
            if excess := self._excess_of(wanted, members):
                return excess
        self._wanted[group] = (group.generation, wanted)
        return ""

    def _wanted_by(self, group: Group) -> frozenset[str]:
        generation, wanted = self._wanted.get(group, (0, frozenset()))
        return wanted if generation == group.generation else group.subscribed_topics or frozenset()

    def _excess_of(self, topics: frozenset[str], members: int) -> str:
        sums, config = self._sums_of(topics), self._context.config
        if sums.partitions > config.max_partitions:
            return (
                f"the topics of the group have {sums.partitions:,} partitions, and a plan gives at most "
                f"{config.max_partitions:,} (MUSTER_GROUP_MAX_PARTITIONS)"
            )
        tokens = min(sums.partitions, config.max_kept_tokens)
        without_names_bytes = (
            members * _MEMBER_BYTES
            + sums.partitions * _PARTITION_BYTES
            + tokens * (sums.longest_bytes + _TOKEN_BYTES)
        )
        if without_names_bytes + sums.names_bytes <= RECORD_MAX_BYTES:
            return ""
        size_bytes = without_names_bytes + sum(
            min(partitions, members) * (name_bytes + _TOPIC_BYTES) for partitions, name_bytes in sums.topics
        )
        if size_bytes <= RECORD_MAX_BYTES:
            return ""
        return (
            f"a plan of {sums.partitions:,} partitions for {members:,} members may take {size_bytes:,} "
            f"bytes, and a record of the log at most {RECORD_MAX_BYTES:,} (RECORD_MAX_BYTES)"
        )

    def _sums_of(self, topics: frozenset[str]) -> _Sums:
        if self._catalog is not self._context.catalog or len(self._sums) >= _SUMS_MAX:
            self._catalog = self._context.catalog
            self._sums.clear()
        sums = self._sums.get(topics)
        if sums is None:
            known = self._catalog
            sizes = tuple(
                (partitions, utf8_bytes(topic))
                for topic in topics
                if (partitions := known.number_of(topic)) is not None
            )
            sums = self._sums[topics] = _Sums(
                sum(partitions for partitions, _ in sizes),
                sizes,
                sum(partitions * (name_bytes + _TOPIC_BYTES) for partitions, name_bytes in sizes),
                max((name_bytes for _, name_bytes in sizes), default=0),
            )
        return sums
