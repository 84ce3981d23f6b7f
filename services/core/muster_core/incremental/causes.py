"""Why the epoch of a group was raised: the typed cause and a sentence that a person understands."""

from collections.abc import Sequence
from typing import TypeAlias

from muster_protos.muster.v1 import common_pb2

from muster_core.incremental.member import Member

Cause: TypeAlias = common_pb2.RebalanceCause
Kind: TypeAlias = common_pb2.RebalanceCauseKind.ValueType

JOINED = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_JOINED
LEFT = common_pb2.REBALANCE_CAUSE_KIND_MEMBER_LEFT
SESSION_EXPIRED = common_pb2.REBALANCE_CAUSE_KIND_SESSION_EXPIRED
DISCONNECTED = common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED
REBALANCE_TIMEOUT = common_pb2.REBALANCE_CAUSE_KIND_REBALANCE_TIMEOUT
METADATA_CHANGED = common_pb2.REBALANCE_CAUSE_KIND_METADATA_CHANGED
ADMIN = common_pb2.REBALANCE_CAUSE_KIND_ADMIN
TOPIC_CHANGED = common_pb2.REBALANCE_CAUSE_KIND_TOPIC_CHANGED
CONVERTED = common_pb2.REBALANCE_CAUSE_KIND_CONVERTED

_SENTENCES: dict[Kind, str] = {
    JOINED: "{who} joined the group.",
    LEFT: "{who} left the group.",
    SESSION_EXPIRED: "{who} was not heard of for its session timeout of {silence:g} s and was removed.",
    DISCONNECTED: "{who} lost its connection, did not come back within {silence:g} s and was removed.",
    REBALANCE_TIMEOUT: "{who} did not give partitions back within its rebalance timeout of {rebalance:g} s "
    "and was removed.",
    METADATA_CHANGED: "{who} changed its subscription.",
    ADMIN: "{who} was removed by an operator.",
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
    who = f"Member {told.member_id}"
    if told.group_instance_id:
        who += f" (instance {told.group_instance_id})"
    if told.host:
        who += f" at {told.host}"
    sentence = _SENTENCES[kind].format(
        who=who, silence=silence_ms / 1000, rebalance=told.rebalance_timeout_ms / 1000
    )
    if reason:
        sentence = f"{sentence[:-1]}: {reason.rstrip(' .')}."
    return Cause(
        kind=kind,
        member_id=told.member_id,
        group_instance_id=told.group_instance_id,
        client_id=told.client_id,
        host=told.host,
        sentence=sentence,
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
    return Cause(kind=TOPIC_CHANGED, sentence="The partitions of a subscribed topic changed.", at_ms=at_ms)


def converted(at_ms: int) -> Cause:
    """The cause "the group became an incremental one while its members worked"."""
    return Cause(
        kind=CONVERTED,
        sentence="The group became an incremental one; its members keep what they have.",
        at_ms=at_ms,
    )


def converted_by_operator(at_ms: int, reason: str) -> Cause:
    """The cause "an operator made the group an incremental one while its members worked"."""
    sentence = "An operator made the group an incremental one; its members keep what they have"
    return Cause(
        kind=CONVERTED,
        sentence=f"{sentence}: {reason.rstrip(' .')}." if reason else f"{sentence}.",
        reason=reason,
        at_ms=at_ms,
    )


def settings_changed(names: Sequence[str], at_ms: int) -> Cause:
    """The cause "an operator changed settings of the group that the assignment depends on"."""
    return Cause(
        kind=ADMIN, sentence=f"An operator changed the group's settings: {', '.join(names)}.", at_ms=at_ms
    )


def expressions_resolved(at_ms: int) -> Cause:
    """The cause "an expression that members subscribe to matches other topics"."""
    return Cause(
        kind=METADATA_CHANGED, sentence="An expression matches other topics than before.", at_ms=at_ms
    )


def hold_ended(at_ms: int) -> Cause:
    """The cause "what a deployment held back may move now"."""
    return Cause(
        kind=METADATA_CHANGED,
        sentence="The time was over for which a deployment held moves back.",
        at_ms=at_ms,
    )


def share_waits(at_ms: int) -> Cause:
    """The cause "who should have got a share is gone, or is another one"."""
    return Cause(
        kind=METADATA_CHANGED,
        sentence="A member or a topic of the new assignment was gone when it was stored.",
        at_ms=at_ms,
    )
