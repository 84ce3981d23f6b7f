"""What becomes of each partition of a commit, found some at a time."""

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

from muster_protos.limits import topic_of
from muster_protos.muster.v1.coordinator_pb2 import OffsetCommitRequest, OffsetCommitResponse

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.commits import (
    JudgeOfPartition,
    is_classic,
    judge_of,
    judge_of_reverted,
)
from muster_core.protocol.offsets.commit_records import CommitRecords
from muster_core.record_bounds import utf8_bytes
from muster_core.state.group import Group

PORTION: Final = 1_000
"""Partitions of a commit that are looked at in a turn; a topic takes as long as two."""

_UNKNOWN = error_code.UNKNOWN_TOPIC_OR_PARTITION

_Named = TypeVar("_Named", OffsetCommitRequest.Topic, OffsetCommitRequest.TopicEnds)


class CommitOutcomes:
    """Looks at the partitions of a commit.

    Args:
        context: the shard.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context

    def look(
        self,
        request: OffsetCommitRequest,
        response: OffsetCommitResponse,
        by_token: bool,
        commit: CommitRecords | None = None,
        refused: ErrorCode | None = None,
    ) -> Generator[None, None, bool]:
        """Says of each partition what becomes of it; yields when others should have their turn (LIM-71).

        Args:
            request: the commit.
            response: where that is said.
            by_token: see `names_tokens`.
            commit: where those are written to that are well; None: nowhere.
            refused: what those hear that there are, whatever else is the matter; None: each is looked at.

        Returns:
            Whether there are all of the partitions, as far as that is known.

        Raises:
            CommitTooLarge: see `CommitRecords.place_of`.
        """
        group = self._context.groups.get(request.group_id)
        judge = None if group is None else self._judge(group, request, by_token)
        from_member = request.generation >= 0 or request.HasField("member_epoch")
        renewed = group.renewed_topics if group is not None and from_member else frozenset()
        all_known, of_topic = True, None
        for topic, entries in portions(request.topics):
            if entries is None:
                yield
                continue
            if of_topic is None or topic is not of_topic.topic:
                of_topic = self._of_topic(topic, group, judge, renewed, request.HasField("member_epoch"))
                name, name_bytes = topic.name, utf8_bytes(topic.name)
                answered = response.topics.add()
                answered.name = name
                add_outcome = answered.partitions.add
            codes = of_topic.codes(entries)
            if refused is not None:
                all_known = all_known and _UNKNOWN not in codes
                codes = [code if code == _UNKNOWN else refused for code in codes]
            for entry, code in zip(entries, codes, strict=True):
                # To set fields takes less time than to give them to `add`: there may be ten thousand.
                outcome = add_outcome()
                outcome.partition, outcome.error_code = entry.partition, code
                if commit is not None and not code:
                    metadata = entry.metadata
                    stored = commit.place_of(name_bytes + (utf8_bytes(metadata) if metadata else 0)).add()
                    stored.topic, stored.partition, stored.offset = name, entry.partition, entry.offset
                    stored.leader_epoch, stored.metadata = entry.leader_epoch, metadata
        return all_known

    def refuse(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse, code: ErrorCode
    ) -> Iterator[None]:
        """Says the same of each partition; yields when others should have their turn."""
        last = None
        for topic, entries in portions(request.topics):
            if entries is None:
                yield
                continue
            if topic is not last:
                last, answered = topic, response.topics.add()
                answered.name = topic.name
            add_outcome = answered.partitions.add
            for entry in entries:
                outcome = add_outcome()
                outcome.partition, outcome.error_code = entry.partition, code

    def _judge(self, group: Group, request: OffsetCommitRequest, by_token: bool) -> JudgeOfPartition | None:
        """What looks at each partition by who has it; None: nothing does."""
        if group.reverted and by_token:
            return judge_of_reverted(group, request.member_id)
        if group.incremental is None:
            return None
        deleted = frozenset[str]().union(*self._context.deletions)
        classic = is_classic(group.incremental, request, by_token=by_token)
        return judge_of(group.incremental, request.member_id, deleted, by_token=by_token, classic=classic)

    def _of_topic(
        self,
        topic: OffsetCommitRequest.Topic,
        group: Group | None,
        judge: JudgeOfPartition | None,
        renewed: Set[str],
        names_epoch: bool,
    ) -> "_OfTopic":
        catalog, name = self._context.catalog, topic.name
        about = topic_of(name) if judge is not None else name
        count = catalog.partitions.get(about)
        if topic_of(name) in renewed:  # what its members work at is of the topic that was deleted
            count, group = 0, None
        elif count is None and not names_epoch and judge is None:
            count = _ANY
        return _OfTopic(
            topic,
            about,
            count or 0,
            catalog.removed_of(name),
            group,
            judge,
            self._context.config.offset_metadata_max_bytes,
        )


_ANY = 1 << 31
"""Partitions that a topic may have of which nothing is known."""


@dataclass(slots=True)
class _OfTopic:
    """What partitions of one topic are judged by.

    Attributes:
        topic: what the commit says of it.
        about: its name, or that of the topic whose partitions are parked under it.
        count: how many partitions it has.
        removed: the numbers of those that were removed.
        group: who may have been given more of them, before this coordinator knows; None: nobody.
        judge: looks at who has a partition; None: nothing does.
        metadata_max_bytes: what metadata may have.
    """

    topic: OffsetCommitRequest.Topic
    about: str
    count: int
    removed: Collection[int]
    group: Group | None
    judge: JudgeOfPartition | None
    metadata_max_bytes: int

    def codes(self, entries: Iterable[OffsetCommitRequest.Partition]) -> list[ErrorCode]:
        """What becomes of some of its partitions."""
        return [*map(self._code, entries)]

    def _code(self, entry: OffsetCommitRequest.Partition) -> ErrorCode:
        if (metadata := entry.metadata) and utf8_bytes(metadata) > self.metadata_max_bytes:
            return error_code.OFFSET_METADATA_TOO_LARGE
        number = entry.partition
        if number in self.removed:
            return _UNKNOWN
        if number >= self.count and (self.group is None or not self.group.owner_of((self.about, number))):
            return _UNKNOWN
        return error_code.NONE if self.judge is None else self.judge((self.about, number), entry)


def is_large(request: OffsetCommitRequest) -> bool:
    """Whether a commit names more than is looked at in a turn."""
    return any(entries is None for _, entries in chain(portions(request.topics), portions(request.ends)))


def names_tokens(request: OffsetCommitRequest) -> Generator[None, None, bool]:
    """Whether a commit is judged by its tokens, not by the epoch of its member (docs/safety.md, INC-51).

    Yields as `portions` says.
    """
    for _, entries in portions(request.topics):
        if entries is None:
            yield
        elif any(entry.HasField("token") for entry in entries):
            return True
    return False


def portions(topics: Iterable[_Named]) -> Iterator[tuple[_Named, Sequence[Any] | None]]:
    """The partitions of topics, some at a time; None where others should have their turn."""
    left = PORTION
    for topic in topics:
        partitions = topic.partitions
        for first in range(0, len(partitions) or 1, PORTION):
            some = partitions[first : first + PORTION]
            if left < min(PORTION, 2 + len(some)):
                yield topic, None
                left = PORTION
            left -= 2 + len(some)
            yield topic, some
