"""The limits of the public API: what a request must hold before the group protocol sees it.

Pure. An empty group id, a session timeout out of bounds, no protocols and no protocol type are outcomes of
the group protocol, not violations: the core answers them (conformance GV-02, JG-01, JG-13, JG-14).
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from muster_core.events import GroupRequest
from muster_core.state.group_settings import NAMES as SETTINGS
from muster_protos.limits import (
    COMMIT_METADATA_MAX_BYTES,
    DISCONNECT_GRACE_MAX_MS,
    ID_MAX_BYTES,
    MEMBER_SECRET_MAX_BYTES,
    MEMBER_SECRET_MIN_BYTES,
    MEMBER_WEIGHT_MAX,
    NAME_MAX_CHARACTERS,
    NAME_RULE,
    PROTOCOLS_MAX,
    REASON_MAX_CHARACTERS,
    ROLLOUT_HOLD_MAX_MS,
    can_be_committed,
    has_unfit,
    is_name,
)
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
)
from muster_runtime.ids import HAS_UNFIT, id_problem
from muster_runtime.rpc.refusals import Violation

REQUEST_ID_MAX_BYTES = 64
CLIENT_VERSION_MAX_BYTES = 64
METADATA_MAX_BYTES = 1 << 19
ASSIGNMENT_MAX_BYTES = 1 << 20
REBALANCE_TIMEOUT_MAX_MS = 2**31 - 1
"""As in Kafka, whose clients give it where a member may work on its records for as long as it likes."""
LEAVING_MEMBERS_MAX = 1_000
GROUPS_MAX = 1_000
PAGE_MAX = 10_000
PARTITIONS_MAX = 10_000
ASSIGNMENTS_MAX = 100_000
STATES_MAX = 100
HISTORY_MAX = 100
RETENTION_MAX_MS = 10 * 366 * 24 * 3_600_000
OWNED_MAX = 100_000
"""Partitions that a member may say it works on."""
OWNED_TOPICS_MAX = 10_000
"""Topics that these may be of: as many as a catalog has."""
EXPRESSION_MAX_BYTES = 1_024
PROCESS_ID_BYTES = 16
MEMBER_SEQ_MAX = 2**63 - 1
"""What the tables of the lake, and most languages, can hold."""

_PAGE_TOKEN = re.compile(r"[0-9]{1,9}/.{0,255}")

_FOUND_MAX = 100
"""Of what breaks more limits no more are looked for: a hundred thousand take longer than others may wait."""

Report = Callable[[str, str], None]


class _Enough(Exception):
    """So many limits are broken that no more are looked for."""


def violations(request: GroupRequest) -> Sequence[Violation]:
    """The limits that a request breaks, of many the first hundred; empty: none.

    Called for each call before anything else looks at it; a heartbeat costs a few comparisons, and ten
    thousand topics some milliseconds: names of fields are made only of what is wrong.
    """
    found: list[Violation] = []

    def report(field: str, text: str) -> None:
        found.append(Violation(field, text))
        if len(found) == _FOUND_MAX:
            raise _Enough

    with suppress(_Enough):
        _CHECKS[type(request)](request, report)
    return found


def _text(
    report: Report, field: str, value: str, *, required: bool = False, limit: int = ID_MAX_BYTES
) -> None:
    if not value:
        if required:
            report(field, f"must be 1 to {limit} bytes long")
        return
    if problem := id_problem(value, limit):
        report(field, problem)


def _instance_id(report: Report, field: str, value: str) -> None:
    if value and not is_name(value):
        report(field, f"must be {NAME_RULE}")


def _reason(report: Report, field: str, value: str) -> None:
    if len(value) > REASON_MAX_CHARACTERS:
        report(field, f"must be at most {REASON_MAX_CHARACTERS} characters long")
    elif has_unfit(value):
        report(field, HAS_UNFIT)


def _range(report: Report, field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        report(field, f"must be {low:,} to {high:,}")


def _count(report: Report, field: str, items: Sequence[Any], low: int, high: int) -> bool:
    """Reports a wrong number of items. False: there are too many to look at each."""
    if not low <= len(items) <= high:
        report(field, f"must have {low:,} to {high:,} items")
    return len(items) <= high


def _identity(report: Report, request: Any) -> None:
    _text(report, "group_id", request.group_id)
    _text(report, "member_id", request.member_id)
    _instance_id(report, "group_instance_id", request.group_instance_id)
    _secret(report, "member_secret", request.member_secret)


def _secret(report: Report, field: str, value: bytes) -> None:
    if value and not MEMBER_SECRET_MIN_BYTES <= len(value) <= MEMBER_SECRET_MAX_BYTES:
        report(field, f"must be {MEMBER_SECRET_MIN_BYTES} to {MEMBER_SECRET_MAX_BYTES} bytes long")


def _join(request: coordinator_pb2.JoinGroupRequest, report: Report) -> None:
    _identity(report, request)
    _text(report, "protocol_type", request.protocol_type)
    _text(report, "client_id", request.client_id)
    _text(report, "client_version", request.client_version, limit=CLIENT_VERSION_MAX_BYTES)
    _text(report, "request_id", request.request_id, limit=REQUEST_ID_MAX_BYTES)
    _text(report, "server_assignor", request.server_assignor)
    _reason(report, "reason", request.reason)
    _range(report, "rebalance_timeout_ms", request.rebalance_timeout_ms, 0, REBALANCE_TIMEOUT_MAX_MS)
    _range(report, "disconnect_grace_ms", request.disconnect_grace_ms, 0, DISCONNECT_GRACE_MAX_MS)
    _range(report, "member_seq", request.member_seq, 0, MEMBER_SEQ_MAX)
    _range(report, "weight", request.weight, 0, MEMBER_WEIGHT_MAX)
    _process(report, request.process_id)
    if not _count(report, "protocols", request.protocols, 0, PROTOCOLS_MAX):
        return
    names = set()
    for index, protocol in enumerate(request.protocols):
        _text(report, f"protocols[{index}].name", protocol.name, required=True)
        if len(protocol.metadata) > METADATA_MAX_BYTES:
            report(f"protocols[{index}].metadata", f"must be at most {METADATA_MAX_BYTES:,} bytes long")
        if protocol.name in names:
            report(f"protocols[{index}].name", "must not be given twice")
        names.add(protocol.name)


def _sync(request: coordinator_pb2.SyncGroupRequest, report: Report) -> None:
    _identity(report, request)
    _text(report, "protocol_type", request.protocol_type)
    _text(report, "protocol_name", request.protocol_name)
    if not _count(report, "assignments", request.assignments, 0, ASSIGNMENTS_MAX):
        return
    if request.ByteSize() <= ASSIGNMENT_MAX_BYTES:
        return  # nor is one of them larger; whose they are is not looked at, for strangers are given nothing
    for index, size_bytes in enumerate([len(entry.assignment) for entry in request.assignments]):
        if size_bytes > ASSIGNMENT_MAX_BYTES:
            report(f"assignments[{index}].assignment", f"must be at most {ASSIGNMENT_MAX_BYTES:,} bytes long")


def _heartbeat(request: coordinator_pb2.HeartbeatRequest, report: Report) -> None:
    _identity(report, request)


def _leave(request: coordinator_pb2.LeaveGroupRequest, report: Report) -> None:
    _text(report, "group_id", request.group_id)
    if not _count(report, "members", request.members, 1, LEAVING_MEMBERS_MAX):
        return
    for index, member in enumerate(request.members):
        _text(report, f"members[{index}].member_id", member.member_id)
        _instance_id(report, f"members[{index}].group_instance_id", member.group_instance_id)
        _reason(report, f"members[{index}].reason", member.reason)
        _secret(report, f"members[{index}].member_secret", member.member_secret)


def _topic(report: Report, field: str) -> None:
    report(field, f"must be 1 to {NAME_MAX_CHARACTERS} characters without control characters")


def _total(topics: Sequence[Any]) -> int:
    """How many partitions topics have; one without any counts as one. Of too many topics their number."""
    if len(topics) > PARTITIONS_MAX:
        return len(topics)
    return sum([len(topic.partitions) or 1 for topic in topics])


def _commit(request: coordinator_pb2.OffsetCommitRequest, report: Report) -> None:
    _identity(report, request)
    _range(report, "retention_ms", request.retention_ms, 0, RETENTION_MAX_MS)
    _range(report, "member_seq", request.member_seq, 0, MEMBER_SEQ_MAX)
    if (topics := _named(report, "topics", request.topics)) is None:
        return
    for topic, partitions in enumerate(topics):
        for index, entry in enumerate(partitions):
            if entry.offset < 0:
                report(_of_partition(topic, index, "offset"), "must not be negative")
            if entry.leader_epoch < -1:
                report(_of_partition(topic, index, "leader_epoch"), "must be -1 or more")
            metadata = entry.metadata
            if metadata and len(metadata.encode("utf-8", "surrogatepass")) > COMMIT_METADATA_MAX_BYTES:
                text = f"must be at most {COMMIT_METADATA_MAX_BYTES:,} bytes long"
                report(_of_partition(topic, index, "metadata"), text)
        if len(partitions) > 1:
            _once_each(report, "topics", topic, partitions)
    for topic, partitions in enumerate(_named(report, "ends", request.ends) or ()):
        for index, entry in enumerate(partitions):
            if entry.end < 0:
                report(f"ends[{topic}].partitions[{index}].end", "must not be negative")
        if len(partitions) > 1:
            _once_each(report, "ends", topic, partitions)


def _named(report: Report, field: str, topics: Sequence[Any]) -> list[Sequence[Any]] | None:
    """The partitions of each topic of a commit; None: they are too many to look at each.

    Reports topics that are wrong. What is looked at is kept: to have it from the message once more takes as
    long as to look at it.
    """
    if len(topics) <= PARTITIONS_MAX:
        partitions = [topic.partitions for topic in topics]
        if sum([len(some) or 1 for some in partitions]) <= PARTITIONS_MAX:
            names = [topic.name for topic in topics]
            for index, name in enumerate(names):
                if not can_be_committed(name):
                    _topic(report, f"{field}[{index}].name")
            _once(report, field, "name", names)
            return partitions
    report(field, f"must have at most {PARTITIONS_MAX:,} partitions in all")
    return None


def _once_each(report: Report, field: str, topic: int, partitions: Sequence[Any]) -> None:
    numbers = [entry.partition for entry in partitions]
    _once(report, f"{field}[{topic}].partitions", "partition", numbers)


def _of_partition(topic: int, index: int, field: str) -> str:
    return f"topics[{topic}].partitions[{index}].{field}"


def _partitions(
    report: Report,
    field: str,
    topics: Sequence[common_pb2.TopicPartitions],
    limit: int,
    of: int = PARTITIONS_MAX,
) -> None:
    if _total(topics) > limit:
        report(field, f"must have at most {of:,} partitions in all")
        return
    for index, topic in enumerate(topics):
        numbers = topic.partitions
        if not can_be_committed(topic.topic):
            _topic(report, f"{field}[{index}].topic")
        if len(numbers) > 1 and len(set(numbers)) != len(numbers):
            report(f"{field}[{index}].partitions", "must not name a partition twice")


def _once(report: Report, field: str, name: str, values: Sequence[str | int]) -> None:
    """Reports values given twice: with them a small request could ask for one large thing many times."""
    if len(set(values)) == len(values):
        return
    seen = set()
    for index, value in enumerate(values):
        if value in seen:
            report(f"{field}[{index}]{'.' if name else ''}{name}", "must not be given twice")
        seen.add(value)


def _fetch(request: coordinator_pb2.OffsetFetchRequest, report: Report) -> None:
    if not _count(report, "groups", request.groups, 1, GROUPS_MAX):
        return
    _once(report, "groups", "group_id", [group.group_id for group in request.groups])
    left = PARTITIONS_MAX
    for index, group in enumerate(request.groups):
        _text(report, f"groups[{index}].group_id", group.group_id)
        _range(report, f"groups[{index}].limit", group.limit, 0, PAGE_MAX)
        _partitions(report, f"groups[{index}].topics", group.topics, left)
        left -= _total(group.topics)
        if left < 0:
            return
        _once(report, f"groups[{index}].topics", "topic", [topic.topic for topic in group.topics])


def _offset_delete(request: coordinator_pb2.OffsetDeleteRequest, report: Report) -> None:
    _text(report, "group_id", request.group_id)
    _partitions(report, "topics", request.topics, PARTITIONS_MAX)


def _group_ids(request: Any, report: Report) -> None:
    if not _count(report, "group_ids", request.group_ids, 1, GROUPS_MAX):
        return
    for index, group_id in enumerate(request.group_ids):
        _text(report, f"group_ids[{index}]", group_id)


def _describe(
    request: coordinator_pb2.DescribeGroupsRequest | incremental_pb2.ConsumerGroupDescribeRequest,
    report: Report,
) -> None:
    _group_ids(request, report)
    if len(request.group_ids) <= GROUPS_MAX:
        _once(report, "group_ids", "", request.group_ids)


def _list(request: coordinator_pb2.ListGroupsRequest, report: Report) -> None:
    for field, values in (("states", request.states), ("types", request.types)):
        if _count(report, field, values, 0, STATES_MAX):
            for index, value in enumerate(values):
                _text(report, f"{field}[{index}]", value)
    _range(report, "limit", request.limit, 0, PAGE_MAX)
    if request.page_token and (not request.limit or _PAGE_TOKEN.fullmatch(request.page_token) is None):
        report("page_token", "must be the next_page_token of an answer, and come with a limit")


def _history(request: coordinator_pb2.GroupHistoryRequest, report: Report) -> None:
    _text(report, "group_id", request.group_id)
    _range(report, "limit", request.limit, 0, HISTORY_MAX)


def _process(report: Report, process_id: bytes) -> None:
    if process_id and len(process_id) != PROCESS_ID_BYTES:
        report("process_id", f"must be {PROCESS_ID_BYTES} bytes long")


def _release(request: coordinator_pb2.ReleaseGroupRequest, report: Report) -> None:
    _text(report, "group_id", request.group_id)


def _alter_settings(request: group_settings_pb2.AlterGroupSettingsRequest, report: Report) -> None:
    _text(report, "group_id", request.group_id)
    for field in ("assignor", "convert"):
        _text(report, f"set.{field}", getattr(request.set, field))
    if not _count(report, "unset", request.unset, 0, len(SETTINGS)):
        return
    _once(report, "unset", "", request.unset)
    for index, name in enumerate(request.unset):
        if name not in SETTINGS:
            report(f"unset[{index}]", f"must be {', '.join(SETTINGS[:-1])} or {SETTINGS[-1]}")
        elif request.set.HasField(name):  # type: ignore[arg-type]  # stubs take literals alone
            report(f"unset[{index}]", "must not be set in the same call")
    if not request.set.ListFields() and not request.unset:
        report("set", "must set something, or unset must name something")


def _convert(request: group_conversion_pb2.ConvertGroupRequest, report: Report) -> None:
    _text(report, "group_id", request.group_id)
    if request.kind not in (
        group_conversion_pb2.GROUP_KIND_CLASSIC,
        group_conversion_pb2.GROUP_KIND_INCREMENTAL,
    ):
        report("kind", "must be GROUP_KIND_CLASSIC or GROUP_KIND_INCREMENTAL")
    _reason(report, "reason", request.reason)


def _incremental_heartbeat(request: incremental_pb2.ConsumerGroupHeartbeatRequest, report: Report) -> None:
    _identity(report, request)
    for field in ("rack_id", "client_id", "server_assignor"):
        _text(report, field, getattr(request, field))
    _text(report, "topic_regex", request.topic_regex, limit=EXPRESSION_MAX_BYTES)
    _reason(report, "leave_reason", request.leave_reason)
    _range(report, "disconnect_grace_ms", request.disconnect_grace_ms, 0, DISCONNECT_GRACE_MAX_MS)
    _range(report, "rebalance_timeout_ms", request.rebalance_timeout_ms, 0, REBALANCE_TIMEOUT_MAX_MS)
    _range(report, "member_seq", request.member_seq, 0, MEMBER_SEQ_MAX)
    _range(report, "weight", request.weight, 0, MEMBER_WEIGHT_MAX)
    _text(report, "client_version", request.client_version, limit=CLIENT_VERSION_MAX_BYTES)
    _range(report, "rollout_hold_ms", request.rollout_hold_ms, 0, ROLLOUT_HOLD_MAX_MS)
    if _count(report, "classic_protocols", request.classic_protocols, 0, PROTOCOLS_MAX):
        _once(report, "classic_protocols", "", request.classic_protocols)
        for index, name in enumerate(request.classic_protocols):
            _text(report, f"classic_protocols[{index}]", name, required=True)
    _process(report, request.process_id)
    if _count(report, "topics.names", request.topics.names, 0, PARTITIONS_MAX):
        for index, name in enumerate(request.topics.names):
            if not can_be_committed(name):
                _topic(report, f"topics.names[{index}]")
    if _count(report, "owned.topics", request.owned.topics, 0, OWNED_TOPICS_MAX):
        _partitions(report, "owned.topics", request.owned.topics, OWNED_MAX, OWNED_MAX)
        _once(report, "owned.topics", "topic", [entry.topic for entry in request.owned.topics])


_CHECKS: dict[type[GroupRequest], Callable[[Any, Report], None]] = {
    coordinator_pb2.JoinGroupRequest: _join,
    coordinator_pb2.SyncGroupRequest: _sync,
    coordinator_pb2.HeartbeatRequest: _heartbeat,
    coordinator_pb2.LeaveGroupRequest: _leave,
    coordinator_pb2.OffsetCommitRequest: _commit,
    coordinator_pb2.OffsetFetchRequest: _fetch,
    coordinator_pb2.OffsetDeleteRequest: _offset_delete,
    coordinator_pb2.DescribeGroupsRequest: _describe,
    coordinator_pb2.DeleteGroupsRequest: _group_ids,
    coordinator_pb2.ListGroupsRequest: _list,
    coordinator_pb2.GroupHistoryRequest: _history,
    coordinator_pb2.ReleaseGroupRequest: _release,
    group_settings_pb2.AlterGroupSettingsRequest: _alter_settings,
    group_conversion_pb2.ConvertGroupRequest: _convert,
    incremental_pb2.ConsumerGroupHeartbeatRequest: _incremental_heartbeat,
    incremental_pb2.ConsumerGroupDescribeRequest: _describe,
}
