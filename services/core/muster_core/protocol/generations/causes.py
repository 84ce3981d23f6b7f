"""Why a rebalance was started: the typed cause and a sentence that a person understands."""

from muster_protos.muster.v1 import common_pb2

from muster_core import cause_kind
from muster_core.cause_kind import Kind
from muster_core.cause_sentence import member_named, with_reason
from muster_core.state.members.member import Member

_SENTENCES: dict[Kind, str] = {
    cause_kind.JOINED: "{who} joined the group.",
    cause_kind.LEFT: "{who} left the group.",
    cause_kind.SESSION_EXPIRED: (
        "{who} was not heard of for its session timeout of {session} s and was removed."
    ),
    cause_kind.DISCONNECTED: "{who} lost its connection, did not come back within {grace} s and was removed.",
    cause_kind.REBALANCE_TIMEOUT: (
        "{who} did not ask for the assignment within the rebalance timeout of {rebalance} s."
    ),
    cause_kind.LEADER_REJOINED: "{who}, the leader, asked for a new assignment.",
    cause_kind.METADATA_CHANGED: "{who} changed its subscription or its protocols.",
    cause_kind.STATIC_REPLACED: "{who} was taken over by a new process.",
    cause_kind.ADMIN: "{who} was removed by an operator.",
    cause_kind.OVER_CAPACITY: "{who} was removed because the group is larger than its limit.",
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
    return common_pb2.RebalanceCause(
        kind=kind,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.host,
        reason=reason,
        sentence=with_reason(sentence, reason),
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
    return common_pb2.RebalanceCause(
        kind=cause_kind.CONVERTED,
        group_instance_id=joiner.group_instance_id if joiner is not None else "",
        client_id=joiner.client_id if joiner is not None else "",
        host=joiner.host if joiner is not None else "",
        reason=reason,
        sentence=with_reason(f"The group became a classic one again, because {who}.", reason),
        at_ms=at_ms,
    )


def topics_changed(topics: list[str], at_ms: int) -> common_pb2.RebalanceCause:
    """The cause "a subscribed topic was created, deleted or resized"."""
    names = ", ".join(topics[:5]) + (f" and {len(topics) - 5} more" if len(topics) > 5 else "")
    return common_pb2.RebalanceCause(
        kind=cause_kind.TOPIC_CHANGED,
        sentence=f"The partitions of a subscribed topic changed: {names}.",
        at_ms=at_ms,
    )


def over_capacity(size: int, limit: int, at_ms: int) -> common_pb2.RebalanceCause:
    """The cause "the loaded group is larger than the limit"."""
    return common_pb2.RebalanceCause(
        kind=cause_kind.OVER_CAPACITY,
        sentence=f"The group was loaded with {size} members, more than its limit of {limit}.",
        at_ms=at_ms,
    )


def _silence_ms(kind: Kind, member: Member) -> int:
    if kind == cause_kind.SESSION_EXPIRED:
        return member.terms.session_timeout_ms
    return member.terms.disconnect_grace_ms if kind == cause_kind.DISCONNECTED else 0


def _who(member: Member, others: int) -> str:
    name = member_named(member)
    return f"{name} and {others} other{'s' if others > 1 else ''}" if others else name


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g}"
