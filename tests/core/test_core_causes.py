"""The sentences of causes: what an operator reads first."""

import pytest
from muster_core import cause_kind
from muster_core.protocol.generations import causes
from muster_core.state.members.member import Member
from muster_core.state.members.terms import Terms

TERMS = Terms(session_timeout_ms=45_000, rebalance_timeout_ms=300_000, disconnect_grace_ms=1_500)
WHO = "Member worker-7f3a (instance blue) at 10.0.0.9"


@pytest.mark.parametrize(
    ("kind", "others", "sentence"),
    [
        (cause_kind.JOINED, 0, f"{WHO} joined the group."),
        (cause_kind.LEFT, 0, f"{WHO} left the group."),
        (
            cause_kind.SESSION_EXPIRED,
            0,
            f"{WHO} was not heard of for its session timeout of 45 s and was removed.",
        ),
        (
            cause_kind.DISCONNECTED,
            0,
            f"{WHO} lost its connection, did not come back within 1.5 s and was removed.",
        ),
        (
            cause_kind.REBALANCE_TIMEOUT,
            0,
            f"{WHO} did not ask for the assignment within the rebalance timeout of 300 s.",
        ),
        (
            cause_kind.REBALANCE_TIMEOUT,
            2,
            f"{WHO} and 2 others did not ask for the assignment within the rebalance timeout of 300 s.",
        ),
        (cause_kind.LEADER_REJOINED, 0, f"{WHO}, the leader, asked for a new assignment."),
        (cause_kind.METADATA_CHANGED, 0, f"{WHO} changed its subscription or its protocols."),
        (cause_kind.STATIC_REPLACED, 0, f"{WHO} was taken over by a new process."),
        (cause_kind.ADMIN, 0, f"{WHO} was removed by an operator."),
        (cause_kind.OVER_CAPACITY, 0, f"{WHO} was removed because the group is larger than its limit."),
    ],
)
def test_a_cause_names_the_member_its_host_and_what_happened(
    kind: cause_kind.Kind, others: int, sentence: str
) -> None:
    member = Member("worker-7f3a", "blue")
    member.host = "10.0.0.9"
    member.terms = TERMS
    cause = causes.by_member(kind, member, 1, others=others)
    assert cause.sentence == sentence
    assert (cause.member_id, cause.host) == (member.member_id, member.host)
    said = causes.by_member(kind, member, 1, "node drained.", others)
    assert said.sentence == f"{sentence[:-1]}: node drained."


def test_a_cause_says_how_long_a_removed_member_had_to_be_silent() -> None:
    member = Member("a")
    member.terms = TERMS
    assert causes.by_member(cause_kind.SESSION_EXPIRED, member, 1).silence_ms == 45_000
    assert causes.by_member(cause_kind.DISCONNECTED, member, 1).silence_ms == 1_500
    assert causes.by_member(cause_kind.LEFT, member, 1).silence_ms == 0
