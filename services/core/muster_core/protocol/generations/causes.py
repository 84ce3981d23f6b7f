"""Why a rebalance was started: the typed cause and a sentence that a person understands."""

from typing import TypeAlias

from muster_protos.muster.v1 import common_pb2

from muster_core.state.members.member import Member

Kind: TypeAlias = common_pb2.RebalanceCauseKind.ValueType

JOINED = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED
LEFT = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_LEFT
SESSION_EXPIRED = common_pb2.REBALANCE_CAUSE_KIND_SESSION_EXPIRED
DISCONNECTED = common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED
REBALANCE_TIMEOUT = common_pb2.REBALANCE_CAUSE_KIND_REBALANCE_TIMEOUT
LEADER_REJOINED = common_pb2.REBALANCE_CAUSE_KIND_LEADER_REJOINED
METADATA_CHANGED = common_pb2.REBALANCE_CAUSE_KIND_METADATA_CHANGED
TOPIC_CHANGED = common_pb2.REBALANCE_CAUSE_KIND_TOPIC_CHANGED
STATIC_REPLACED = common_pb2.REBALANCE_CAUSE_KIND_STATIC_REPLACED
ADMIN = common_pb2.REBALANCE_CAUSE_KIND_ADMIN
CONVERTED = common_pb2.REBALANCE_CAUSE_KIND_CONVERTED
OVER_CAPACITY = common_pb2.REBALANCE_CAUSE_KIND_OVER_CAPACITY

_SENTENCES: dict[Kind, str] = {
    JOINED: "{who} joined the group.",
    LEFT: "{who} left the group.",
    SESSION_EXPIRED: "{who} was not heard of for its session timeout of {session} s and was removed.",
    DISCONNECTED: "{who} lost its connection, did not come back within {grace} s and was removed.",
    REBALANCE_TIMEOUT: "{who} did not ask for the assignment within the rebalance timeout of {rebalance} s.",
    LEADER_REJOINED: "{who}, the leader, asked for a new assignment.",
    METADATA_CHANGED: "{who} changed its subscription or its protocols.",
    STATIC_REPLACED: "{who} was taken over by a new process.",
    ADMIN: "{who} was removed by an operator.",
    OVER_CAPACITY: "{who} was removed because the group is larger than its limit.",
}


def by_member(
    kind: Kind, member: Member, at_ms: int, reason: str = "", others: int = 0
) -> common_pb2.RebalanceCause:
    """The cause that a member gave.

    Args:
        kind: what it did, or what befell it.
        member: the member.
        at_ms: when, wall clock.
        reason: its own words, if it gave any.
        others: how many more members shared its fate in the same step.
    """
    sentence = _SENTENCES[kind].format(
        who=_who(member, others),
        session=_seconds(member.terms.session_timeout_ms),
        grace=_seconds(member.terms.disconnect_grace_ms),
        rebalance=_seconds(member.terms.rebalance_timeout_ms),
    )
    if reason:
        sentence = f"{sentence[:-1]}: {reason.rstrip(' .')}."
    return common_pb2.RebalanceCause(
        kind=kind,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.host,
        reason=reason,
        sentence=sentence,
        at_ms=at_ms,
        silence_ms=_silence_ms(kind, member),
    )


def reverted(at_ms: int, joiner: Member | None, reason: str = "") -> common_pb2.RebalanceCause:
    """The cause "an incremental group is a classic one again".

    Args:
        at_ms: when, wall clock.
        joiner: the classic client because of which, which has no member id yet; None: an operator said so.
        reason: in its words, or the operator's.
    """
    who = "an operator wanted it"
    if joiner is not None:
        who = f"client {joiner.client_id!r}"
        who += f" (instance {joiner.group_instance_id})" if joiner.group_instance_id else ""
        who += f" at {joiner.host}" if joiner.host else ""
        who += " can only be in such a one"
    sentence = f"The group became a classic one again, because {who}"
    return common_pb2.RebalanceCause(
        kind=CONVERTED,
        group_instance_id=joiner.group_instance_id if joiner is not None else "",
        client_id=joiner.client_id if joiner is not None else "",
        host=joiner.host if joiner is not None else "",
        reason=reason,
        sentence=f"{sentence}: {reason.rstrip(' .')}." if reason else f"{sentence}.",
        at_ms=at_ms,
    )


def topics_changed(topics: list[str], at_ms: int) -> common_pb2.RebalanceCause:
    """The cause "a subscribed topic was created, deleted or resized"."""
    names = ", ".join(topics[:5]) + (f" and {len(topics) - 5} more" if len(topics) > 5 else "")
    return common_pb2.RebalanceCause(
        kind=TOPIC_CHANGED, sentence=f"The partitions of a subscribed topic changed: {names}.", at_ms=at_ms
    )


def over_capacity(size: int, limit: int, at_ms: int) -> common_pb2.RebalanceCause:
    """The cause "the loaded group is larger than the limit"."""
    return common_pb2.RebalanceCause(
        kind=OVER_CAPACITY,
        sentence=f"The group was loaded with {size} members, more than its limit of {limit}.",
        at_ms=at_ms,
    )


def _silence_ms(kind: Kind, member: Member) -> int:
    if kind == SESSION_EXPIRED:
        return member.terms.session_timeout_ms
    return member.terms.disconnect_grace_ms if kind == DISCONNECTED else 0


def _who(member: Member, others: int) -> str:
    name = f"Member {member.member_id}"
    if member.group_instance_id:
        name += f" (instance {member.group_instance_id})"
    if member.host:
        name += f" at {member.host}"
    if others:
        name += f" and {others} other{'s' if others > 1 else ''}"
    return name


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g}"
