"""Why the epoch of a group was raised: the typed cause and a sentence that a person understands."""

from collections.abc import Sequence
from typing import TypeAlias

from muster_protos.muster.v1 import common_pb2

from muster_core import cause_kind
from muster_core.cause_kind import Kind
from muster_core.cause_sentence import member_named, with_reason
from muster_core.incremental.member import Member

Cause: TypeAlias = common_pb2.RebalanceCause

_SENTENCES: dict[Kind, str] = {
    cause_kind.JOINED: "{who} joined the group.",
    cause_kind.LEFT: "{who} left the group.",
    cause_kind.SESSION_EXPIRED: (
        "{who} was not heard of for its session timeout of {silence:g} s and was removed."
    ),
    cause_kind.DISCONNECTED: (
        "{who} lost its connection, did not come back within {silence:g} s and was removed."
    ),
    cause_kind.REBALANCE_TIMEOUT: (
        "{who} did not give partitions back within its rebalance timeout of {rebalance:g} s and was removed."
    ),
    cause_kind.METADATA_CHANGED: "{who} changed its subscription.",
    cause_kind.ADMIN: "{who} was removed by an operator.",
}


def by_member(kind: Kind, member: Member, at_ms: int, silence_ms: int = 0, reason: str = "") -> Cause:
    """The cause that a member gave.

    Args:
        kind: what it did, or what befell it.
        member: the member.
        at_ms: when, wall clock.
        silence_ms: how long it was silent, where it was removed for that.
        reason: what was said of it; empty: nothing.
    """
    told = member.told
    sentence = _SENTENCES[kind].format(
        who=member_named(told), silence=silence_ms / 1000, rebalance=told.rebalance_timeout_ms / 1000
    )
    return Cause(
        kind=kind,
        member_id=told.member_id,
        group_instance_id=told.group_instance_id,
        client_id=told.client_id,
        host=told.host,
        sentence=with_reason(sentence, reason),
        at_ms=at_ms,
        silence_ms=silence_ms,
        reason=reason,
    )


def with_others(cause: Cause, others: int) -> Cause:
    """The cause that a member gave to whom so many others went at the same time."""
    if not others:
        return cause
    more = Cause()
    more.CopyFrom(cause)
    more.sentence = f"{cause.sentence[:-1]}, and {others:,} {'other' if others == 1 else 'others'} with it."
    return more


def topics_changed(at_ms: int) -> Cause:
    """The cause "a subscribed topic was created, deleted or resized"."""
    return Cause(
        kind=cause_kind.TOPIC_CHANGED,
        sentence="The partitions of a subscribed topic changed.",
        at_ms=at_ms,
    )


def converted(at_ms: int) -> Cause:
    """The cause "the group became an incremental one while its members worked"."""
    return Cause(
        kind=cause_kind.CONVERTED,
        sentence="The group became an incremental one; its members keep what they have.",
        at_ms=at_ms,
    )


def converted_by_operator(at_ms: int, reason: str) -> Cause:
    """The cause "an operator made the group an incremental one while its members worked"."""
    sentence = "An operator made the group an incremental one; its members keep what they have."
    return Cause(
        kind=cause_kind.CONVERTED,
        sentence=with_reason(sentence, reason),
        reason=reason,
        at_ms=at_ms,
    )


def settings_changed(names: Sequence[str], at_ms: int) -> Cause:
    """The cause "an operator changed settings of the group that the assignment depends on"."""
    return Cause(
        kind=cause_kind.ADMIN,
        sentence=f"An operator changed the group's settings: {', '.join(names)}.",
        at_ms=at_ms,
    )


def expressions_resolved(at_ms: int) -> Cause:
    """The cause "an expression that members subscribe to matches other topics"."""
    return Cause(
        kind=cause_kind.METADATA_CHANGED,
        sentence="An expression matches other topics than before.",
        at_ms=at_ms,
    )


def hold_ended(at_ms: int) -> Cause:
    """The cause "what a deployment held back may move now"."""
    return Cause(
        kind=cause_kind.METADATA_CHANGED,
        sentence="The time was over for which a deployment held moves back.",
        at_ms=at_ms,
    )


def share_waits(at_ms: int) -> Cause:
    """The cause "who should have got a share is gone, or is another one"."""
    return Cause(
        kind=cause_kind.METADATA_CHANGED,
        sentence="A member or a topic of the new assignment was gone when it was stored.",
        at_ms=at_ms,
    )
