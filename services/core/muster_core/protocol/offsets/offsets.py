"""OffsetFetch, OffsetDelete and the expiry of offsets and groups."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from muster_protos.limits import PARKED_PREFIX, topic_of
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.incremental.targets.target import subscribed_topics
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.commits import fault_of_fetch
from muster_core.protocol.offsets.commit_bounds import NOTHING
from muster_core.protocol.offsets.offset_commits import OffsetCommits
from muster_core.protocol.responses import IN_QUARANTINE
from muster_core.protocol.topics.tombstones import STEP_BYTES, each_tombstone, offset_tombstones
from muster_core.state.group import CONSUMER, Group
from muster_core.state.group_settings import is_any_set
from muster_core.state.group_state import GroupState
from muster_core.state.offsets.offset_store import (
    CommittedOffset,
    CommittedValues,
    OffsetStore,
    committed_offset,
)
from muster_core.state.published import TopicPartition

_NO_GROUP = "there is no such group"

PAGE_BYTES = 1 << 18
"""A page of offsets ends when their metadata strings have so many characters."""

LOOKED_AT = 2_000
"""Partitions that a removal looks at in a turn."""
TOMBSTONES_MADE = 25
"""Records of a removal that are made in a turn; they name two thousand topics."""
PORTION = 10_000
"""Offsets that a search for expired ones looks at before others have their turn."""


@dataclass(frozen=True, slots=True)
class _View:
    """What a fetch shows of a group: nobody sees half of what is carried out some at a time (LIM-32, LIM-71).

    Attributes:
        offsets: what the group has.
        deleted: topics that were deleted.
        catalog: knows which partitions were removed.
        leaving: numbers by topic of what is being removed.
        arriving: what partitions had before the commit that is being carried out.
    """

    offsets: OffsetStore
    deleted: frozenset[str]
    catalog: Catalog
    leaving: Mapping[str, Container[int]]
    arriving: Mapping[TopicPartition, CommittedValues | None]

    def offset_of(self, partition: TopicPartition) -> CommittedOffset | None:
        """What was committed in a partition that is not hidden; None: nothing."""
        if partition not in self.arriving:
            return self.offsets.get(partition)
        before = self.arriving[partition]
        return None if before is None else committed_offset(before)

    def hides(self, partition: TopicPartition) -> bool:
        """Whether nothing is shown of a partition, whatever the group still has of it."""
        topic, number = partition
        is_gone = topic in self.deleted or number in self.catalog.removed_of(topic)
        return is_gone or number in self.leaving.get(topic, ())


class Offsets:
    """Handles what concerns progress that is stored.

    Args:
        context: the shard.
        commits: knows which commits are on their way to the log.
    """

    def __init__(self, context: ShardContext, commits: OffsetCommits) -> None:
        self._context = context
        self._commits = commits

    # --- OffsetFetch

    def fetch(self, call: Request, request: OffsetFetchRequest) -> None:
        """Answers from what is acknowledged; the driver has passed the barrier."""
        response = OffsetFetchResponse()
        deleted = frozenset[str]().union(*self._context.deletions)
        for asked in request.groups:
            answer = response.groups.add(group_id=asked.group_id, shard_epoch=self._context.epoch)
            group = self._context.groups.get(asked.group_id) or self._context.held.get(asked.group_id)
            self._context.working_on = group
            if asked.group_id in self._context.quarantine.unreadable:
                answer.error_code, answer.error_message = error_code.GROUP_QUARANTINED, IN_QUARANTINE
                continue
            if group is not None and (fault := _fault_of_fetch(group, asked)) is not None:
                answer.error_code = fault
                continue
            view = _View(
                NOTHING if group is None else group.offsets,
                deleted,
                self._context.catalog,
                self._context.leaving.get(asked.group_id, {}),
                self._context.arriving.get(asked.group_id, {}),
            )
            if asked.topics:
                named = ((entry.topic, number) for entry in asked.topics for number in entry.partitions)
                for partition in named:
                    is_hidden = view.hides(partition)
                    end = None if group is None or is_hidden else group.ends.get(partition)
                    _add_offset(answer, partition, None if is_hidden else view.offset_of(partition), end)
            elif group is not None:
                self._fetch_all(group, asked, answer, view)
        self._context.reply(call.call_id, response)

    @staticmethod
    def _fetch_all(
        group: Group,
        asked: OffsetFetchRequest.Group,
        answer: OffsetFetchResponse.Group,
        view: _View,
    ) -> None:
        """Everything in order but what is hidden, or as much as a page has.

        That may be nothing yet: then it is asked for again, with the order made further.
        """
        offsets = group.offsets
        while not offsets.put_in_order():
            if asked.limit:
                answer.more = True
                return
        left = asked.limit or len(offsets)
        room_bytes = PAGE_BYTES
        begin = (asked.after_topic, asked.after_partition) if asked.limit and asked.after_topic else None
        for partition in offsets.after(begin):
            if not left or room_bytes <= 0:
                answer.more = True
                return
            if view.hides(partition) or (found := view.offset_of(partition)) is None:
                continue
            _add_offset(answer, partition, found, group.ends.get(partition))
            left -= 1
            if asked.limit:
                room_bytes -= len(found.metadata)

    # --- OffsetDelete (KIP-496)

    def delete(self, call: Request, request: OffsetDeleteRequest) -> None:
        """Removes offsets of topics that nobody subscribes to."""
        if not request.group_id:
            self._context.refuse(call.call_id, error_code.INVALID_GROUP_ID, "group_id is empty")
            return
        group = self._context.groups.get(request.group_id)
        if group is None:
            self._context.refuse(call.call_id, error_code.GROUP_ID_NOT_FOUND, _NO_GROUP)
            return
        if self._context.lines.call_in_line(group, call):
            return
        if group.members and group.protocol_type != CONSUMER:
            self._context.refuse(call.call_id, error_code.NON_EMPTY_GROUP, "the group has members")
            return
        response = OffsetDeleteResponse(shard_epoch=self._context.epoch)
        removed: dict[str, list[int]] = {}
        records: list[records_pb2.Record] = []
        looking = self._looked_at(group, request, response, removed, records)
        self._look(group, call, looking, response, removed, records)

    def _looked_at(
        self,
        group: Group,
        request: OffsetDeleteRequest,
        response: OffsetDeleteResponse,
        removed: dict[str, list[int]],
        records: list[records_pb2.Record],
    ) -> Iterator[None]:
        """Finds what is there, and makes the records that remove it; yields as `_looked_through`."""
        arriving = self._context.arriving.get(group.group_id, {})
        yield from _looked_through(group, request, response, removed, arriving)
        for record in each_tombstone(self._context, group.group_id, removed, "deleted"):
            if records and not len(records) % TOMBSTONES_MADE:
                yield
            records.append(record)

    def _look(
        self,
        group: Group,
        call: Request,
        looking: Iterator[None],
        response: OffsetDeleteResponse,
        removed: Mapping[str, Sequence[int]],
        records: Sequence[records_pb2.Record],
    ) -> None:
        """Looks on in the next turn where there are many, and then removes what is there."""
        for _ in looking:
            on = partial(self._look, group, call, looking, response, removed, records)
            self._context.lines.go_on_later(group, call, on)
            return
        answer = partial(self._deleted, group.group_id, call, response)
        if records:
            leaving = {topic: frozenset(numbers) for topic, numbers in removed.items()}
            self._context.append(
                records,
                answer,
                holds=group,
                calls=[call.call_id],
                step_bytes=STEP_BYTES,
                before=lambda _: self._context.leaving.__setitem__(group.group_id, leaving),
            )
        else:
            answer()

    def _deleted(self, group_id: str, call: Request, response: OffsetDeleteResponse) -> None:
        """All is carried out that a call removes."""
        self._context.leaving.pop(group_id, None)
        self._context.reply(call.call_id, response)

    # --- expiry (KIP-211)

    def expire(self) -> Iterator[None]:
        """Removes what is older than the retention, then groups that have nothing left (EX-01 to EX-15).

        Yields when others should have their turn (docs/safety.md, LIM-27).
        """
        looked_at = 0
        for group in tuple(self._context.groups.values()):
            partitions = tuple(group.offsets.table)
            for first in range(0, len(partitions) or 1, PORTION):
                some = partitions[first : first + PORTION]
                self._context.working_on = group
                self._context.lines.in_line(group, partial(self._expire_group, group, some))
                looked_at += 1 + len(some)
                if looked_at >= PORTION:
                    yield
                    looked_at = 0

    def _expire_group(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        if self._context.groups.get(group.group_id) is not group or self._commits.on_their_way(group):
            return  # a tombstone would land after a commit that is on its way, and take it too (EX-10)
        if self._context.forget_unstored(group):
            return
        expired = self._expired(group, partitions)
        records = offset_tombstones(self._context, group.group_id, expired, "expired")
        is_over = group.is_vacant and not group.pending_members and not is_any_set(group.settings)
        if is_over and len(expired) == len(group.offsets):
            records.append(self.group_tombstone(group, "expired" if expired else "empty"))
        if records:
            self._context.append(records, lambda: None, holds=group)

    def _expired(self, group: Group, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of the partitions whose offset is older than it may become."""
        now_ms = self._context.now.wall_ms
        oldest_ms = now_ms - self._context.config.offsets_retention_ms
        found = ((partition, group.offsets.get(partition)) for partition in partitions)
        offsets = [(partition, offset) for partition, offset in found if offset is not None]
        if group.is_vacant and not group.is_simple:
            all_old = group.state_since_ms <= oldest_ms
            return [p for p, at in offsets if (at.expire_at_ms <= now_ms if at.expire_at_ms else all_old)]
        wanted: frozenset[str] | None = frozenset()
        if group.incremental is not None:
            known = group.incremental.knows_matches
            wanted = subscribed_topics(group.incremental) if known else None
        elif group.state is GroupState.STABLE and group.protocol_type == CONSUMER:
            wanted = group.subscribed_topics
        elif group.state is not GroupState.EMPTY:
            wanted = None
        if wanted is None:
            return []
        return [
            p
            for p, at in offsets
            if (at.expire_at_ms <= now_ms if at.expire_at_ms else at.committed_at_ms <= oldest_ms)
            and topic_of(p[0]) not in wanted
        ]

    def group_tombstone(self, group: Group, reason: str) -> records_pb2.Record:
        """The record that removes a group, and whatever offsets it has."""
        record = self._context.record()
        record.group_tombstone.CopyFrom(
            records_pb2.GroupTombstone(
                group_id=group.group_id, last_generation=group.generation, reason=reason
            )
        )
        return record


def _looked_through(
    group: Group,
    request: OffsetDeleteRequest,
    response: OffsetDeleteResponse,
    removed: dict[str, list[int]],
    arriving: Mapping[TopicPartition, CommittedValues | None],
) -> Iterator[None]:
    """Says of each partition what becomes of it, and finds those with an offset.

    Yields when others should have their turn (docs/safety.md, LIM-32): some thousand take milliseconds.
    """
    left = LOOKED_AT
    for entry in request.topics:
        name = entry.topic
        subscribed = group.has_members and not name.startswith(PARKED_PREFIX) and group.is_subscribed_to(name)
        code = error_code.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else error_code.NONE
        add = response.topics.add(name=name).partitions.add
        for first in range(0, len(entry.partitions) or 1, LOOKED_AT):
            numbers = entry.partitions[first : first + LOOKED_AT]
            cost = len(numbers) or 1  # a topic takes as long as a partition, also without any
            if left < cost:
                yield
                left = LOOKED_AT
            left -= cost
            for number in numbers:
                add(partition=number, error_code=code) if code else add(partition=number)
            there = [] if subscribed else group.offsets.there(name, numbers)
            if arriving and there:  # what comes with a commit that is not all there comes after this
                there = [number for number in there if arriving.get((name, number), ()) is not None]
            if there:
                removed.setdefault(name, []).extend(there)


def _fault_of_fetch(group: Group, asked: OffsetFetchRequest.Group) -> ErrorCode | None:
    """Why a fetch is refused; only a member of an incremental group says who it is."""
    epoch = asked.member_epoch if asked.HasField("member_epoch") else -1
    return fault_of_fetch(group, asked.member_id if asked.HasField("member_id") else None, epoch)


def _add_offset(
    answer: OffsetFetchResponse.Group,
    partition: TopicPartition,
    found: CommittedOffset | None,
    end: int | None,
) -> None:
    name, number = partition
    if not answer.topics or answer.topics[-1].name != name:
        answer.topics.add(name=name)
    answer.topics[-1].partitions.add(
        partition=number,
        offset=found.offset if found else -1,
        leader_epoch=found.leader_epoch if found else -1,
        metadata=found.metadata if found else "",
        committed_at_ms=found.committed_at_ms if found else 0,
        end=end,
    )
