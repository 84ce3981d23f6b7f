"""Reading committed positions."""

from collections.abc import Iterable
from typing import TypeAlias

from muster_protos.limits import PARKED_PREFIX, can_be_committed
from muster_protos.muster.v1 import coordinator_pb2

from muster._backoff import Backoff
from muster._clock import boot_ms
from muster._cluster.link import GroupLink
from muster._errors import ClusterUnavailable, code_name, group_error
from muster._messages import to_messages
from muster._parking import is_mark
from muster._reactions import CONNECTION_LOST, Call, Reaction, reaction_to
from muster._values import Committed, Progress, TopicPartition

_Entry: TypeAlias = coordinator_pb2.OffsetFetchResponse.Partition
_PARTITIONS_PER_PAGE = 10_000
_BEFORE_MARKS = PARKED_PREFIX[:-1] + chr(ord(PARKED_PREFIX[-1]) - 1)
_AFTER_MARKS = PARKED_PREFIX[:-1] + chr(ord(PARKED_PREFIX[-1]) + 1)
_LAST_PARTITION = (1 << 32) - 1


async def fetch_committed(
    link: GroupLink,
    partitions: Iterable[TopicPartition] | None,
    *,
    request_timeout_ms: int,
    give_up_after_ms: int | None,
    marks: bool = False,
) -> dict[TopicPartition, Committed]:
    """Returns what a group committed; partitions without a commit are missing.

    Args:
        link: to the group's coordinator.
        partitions: which ones; None: all.
        request_timeout_ms: of each call.
        give_up_after_ms: how long to try; None: for ever.
        marks: where all are asked for: whether those that say which partitions are parked are meant, or the
            others.

    Raises:
        GroupError: the coordinator refuses.
        ClusterUnavailable: no coordinator answered in time.
    """
    entries = await _entries(
        link,
        partitions,
        request_timeout_ms=request_timeout_ms,
        give_up_after_ms=give_up_after_ms,
        marks=marks,
    )
    return {
        partition: Committed(entry.offset, entry.metadata)
        for partition, entry in entries.items()
        if entry.offset >= 0
    }


async def fetch_progress(
    link: GroupLink, assigned: Iterable[TopicPartition], *, timeout_ms: int
) -> list[Progress]:
    """Returns how far a group got, by partition: of all that it committed, and of what it is assigned.

    Args:
        link: to the group's coordinator.
        assigned: what its members own; of a topic that no commit can name nothing is said.
        timeout_ms: of each call, and how long to try each.

    Raises:
        GroupError: the coordinator refuses.
        ClusterUnavailable: no coordinator answered in time.
    """
    entries = await _entries(link, None, request_timeout_ms=timeout_ms, give_up_after_ms=timeout_ms)
    others = sorted({one for one in assigned if can_be_committed(one.topic)} - entries.keys())
    for first in range(0, len(others), _PARTITIONS_PER_PAGE):
        some = others[first : first + _PARTITIONS_PER_PAGE]
        entries |= await _entries(link, some, request_timeout_ms=timeout_ms, give_up_after_ms=timeout_ms)
    return [
        Progress(
            partition,
            entry.offset if entry.offset >= 0 else None,
            entry.committed_at_ms,
            entry.end if entry.HasField("end") else None,
        )
        for partition, entry in sorted(entries.items())
    ]


async def _entries(
    link: GroupLink,
    partitions: Iterable[TopicPartition] | None,
    *,
    request_timeout_ms: int,
    give_up_after_ms: int | None,
    marks: bool = False,
) -> dict[TopicPartition, _Entry]:
    """What the coordinator says of each partition; see `fetch_committed`."""
    wanted = None if partitions is None else to_messages(partitions)
    if wanted is not None and not wanted:
        return {}
    group = coordinator_pb2.OffsetFetchRequest.Group(group_id=link.group_id, topics=wanted or [])
    if wanted is None:
        group.limit = _PARTITIONS_PER_PAGE
        if marks:
            group.after_topic, group.after_partition = _BEFORE_MARKS, _LAST_PARTITION
    found: dict[TopicPartition, _Entry] = {}
    ends_at_ms = None if give_up_after_ms is None else boot_ms() + give_up_after_ms
    while True:
        response = await _fetch(link, group, request_timeout_ms, ends_at_ms)
        page = _read(link.group_id, response)
        found |= page if wanted is not None else {p: at for p, at in page.items() if is_mark(p) is marks}
        answer = response.groups[0]
        if not answer.more or (marks and answer.topics[-1].name >= _AFTER_MARKS):
            return found
        group.after_topic = answer.topics[-1].name
        group.after_partition = answer.topics[-1].partitions[-1].partition


async def _fetch(
    link: GroupLink,
    group: coordinator_pb2.OffsetFetchRequest.Group,
    request_timeout_ms: int,
    ends_at_ms: int | None,
) -> coordinator_pb2.OffsetFetchResponse:
    """One page; an older coordinator has no pages and answers with everything."""
    request = coordinator_pb2.OffsetFetchRequest(groups=[group])
    backoff = Backoff()
    while True:
        outcome = await link.call(request, coordinator_pb2.OffsetFetchResponse, timeout_ms=request_timeout_ms)
        reaction = reaction_to(Call.FETCH, outcome.code)
        if reaction is Reaction.DONE:
            return outcome.expect()
        if reaction not in (Reaction.RETRY, Reaction.REDISCOVER):
            raise group_error(link.group_id, outcome.code, outcome.message)
        if ends_at_ms is not None and boot_ms() >= ends_at_ms:
            raise ClusterUnavailable(
                f"committed positions of group {link.group_id!r} could not be read: {outcome.message}; "
                f"try again"
            )
        await backoff.pause(connection_broken=outcome.code == CONNECTION_LOST)


def _read(group_id: str, response: coordinator_pb2.OffsetFetchResponse) -> dict[TopicPartition, _Entry]:
    found: dict[TopicPartition, _Entry] = {}
    for topic in response.groups[0].topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition)
            if entry.error_code:
                raise group_error(
                    group_id, int(entry.error_code), f"{partition}: {code_name(int(entry.error_code))}"
                )
            found[partition] = entry
    return found
