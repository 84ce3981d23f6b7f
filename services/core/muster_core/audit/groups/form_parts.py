"""What records of several kinds say, and what is wrong with it."""

from collections.abc import Iterable, Iterator, Sequence

from muster_protos.limits import MEMBER_WEIGHT_MAX
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, group_settings_pb2

from muster_core import cause_kind
from muster_core.state.group_settings import ADAPTIVE, ASSIGNMENT_INTERVAL_MAX_MS, CONVERT
from muster_core.state.members.member_secret import HASH_BYTES

KINDS = frozenset(common_pb2.RebalanceCauseKind.values())
"""All kinds of causes."""

OF_A_REMOVAL = frozenset(
    (
        cause_kind.LEFT,
        cause_kind.SESSION_EXPIRED,
        cause_kind.DISCONNECTED,
        cause_kind.REBALANCE_TIMEOUT,
        cause_kind.ADMIN,
        cause_kind.OVER_CAPACITY,
    )
)
"""Kinds of causes for which a member is removed."""

_OF_SILENCE = frozenset((cause_kind.SESSION_EXPIRED, cause_kind.DISCONNECTED))

PROCESS_BYTES = 16
"""Of the id of a process."""


def wrong_in_record(
    record: records_pb2.Record, group_id: str, *, may_be_nameless: bool = False
) -> Iterator[str]:
    """What is wrong with a record of any kind.

    Args:
        record: the record.
        group_id: its group.
        may_be_nameless: whether that may be the group without an id, which has offsets and never members.
    """
    if not group_id and not may_be_nameless:
        yield "a group without an id"
    if record.written_at_ms < 0:
        yield f"written at {record.written_at_ms} ms"


def wrong_in_cause(cause: common_pb2.RebalanceCause, kinds: frozenset[cause_kind.Kind]) -> Iterator[str]:
    """What is wrong with a cause of certain kinds. One that is not known here may be a later version's."""
    kind, silence_ms = cause.kind, cause.silence_ms
    if kind in KINDS and (kind not in kinds or kind == cause_kind.UNSPECIFIED):
        yield f"cause {common_pb2.RebalanceCauseKind.Name(kind)}"
    if silence_ms and (silence_ms < 0 or kind in KINDS - _OF_SILENCE):
        yield f"a silence of {silence_ms} ms"


def wrong_in_settings(settings: group_settings_pb2.GroupSettings) -> Iterator[str]:
    """What is wrong with settings of a group, whatever its servers' limits were."""
    if settings.HasField("convert") and settings.convert not in CONVERT:
        yield f"convert {settings.convert!r}"
    if settings.HasField("assignor") and not settings.assignor:
        yield "an assignor without a name"
    if not ADAPTIVE <= settings.assignment_interval_ms <= ASSIGNMENT_INTERVAL_MAX_MS:
        yield f"an assignment interval of {settings.assignment_interval_ms} ms"
    for name in ("session_timeout_ms", "heartbeat_interval_ms", "disconnect_grace_ms"):
        if settings.HasField(name) and getattr(settings, name) < 1:
            yield f"{name} {getattr(settings, name)}"


def wrong_in_partitions(topics: Iterable[common_pb2.TopicPartitions]) -> Iterator[str]:
    """What is wrong with a list of partitions."""
    named: list[tuple[str, int]] = []
    for entry in topics:
        if not entry.topic:
            yield "a topic without a name"
        if not entry.partitions:
            yield f"no partitions of {entry.topic!r}"
        named += [(entry.topic, number) for number in entry.partitions]
    if not named:
        yield "it removes nothing"
    if len(set(named)) < len(named):
        yield "a partition twice"


def wrong_in_weight(name: str, weight: int) -> Iterator[str]:
    """What is wrong with the weight of a member."""
    if weight > MEMBER_WEIGHT_MAX:
        yield f"{name} has a weight of {weight}"


def wrong_in_member(member: records_pb2.Member) -> Iterator[str]:
    """What is wrong with what is said of a member of a classic group."""
    name = member.member_id
    if member.session_timeout_ms < 1:
        yield f"{name} has a session of {member.session_timeout_ms} ms"
    if member.rebalance_timeout_ms < 0:
        yield f"{name} has a rebalance time-out of {member.rebalance_timeout_ms} ms"
    if member.disconnect_grace_ms < 0:
        yield f"{name} has a grace of {member.disconnect_grace_ms} ms"
    protocols = [protocol.name for protocol in member.protocols[:]]
    if not all(protocols) or len(set(protocols)) < len(protocols):
        yield f"{name} supports {protocols}"
    if len(member.secret_hash) not in (0, HASH_BYTES):
        yield f"{name} has {len(member.secret_hash)} bytes as hash of its secret"
    yield from wrong_in_weight(name, member.weight)


def wrong_in_names(what: str, names: Sequence[str]) -> Iterator[str]:
    """What is wrong with names of which each is there once."""
    if not all(names) or len(set(names)) < len(names):
        yield f"{what} {list(names)[:5]}"
