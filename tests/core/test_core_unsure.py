"""Members that may have heard `unsure`: for how long they are counted as alive, and what ends that."""

from collections.abc import Callable

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.events import Attach, Beat, StreamBroken
from muster_protos.muster.v1 import session_pb2

STREAM = 5_000
SESSION_MS = 10_000
GRACE_MS = 3_000


def attach(member: VirtualMember, stream_id: int = STREAM, *, knows_unsure: bool = True) -> None:
    request = session_pb2.Attach(
        group_id=member.group, member_id=member.member_id, generation=member.generation
    )
    member.cluster.feed(Attach(stream_id, request, knows_unsure))


def alone(grace_ms: int = GRACE_MS) -> tuple[VirtualShard, VirtualMember]:
    """The only member of a Stable group, on a stream."""
    cluster = VirtualShard()
    member = VirtualMember(cluster, "a").join(disconnect_grace_ms=grace_ms)
    cluster.advance(cluster.config.initial_rebalance_delay_ms)
    member.joined()
    member.sync({member.member_id: b"x"}).synced()
    attach(member)
    return cluster, member


def loaded(grace_ms: int = GRACE_MS, *, knows_unsure: bool = True) -> tuple[VirtualShard, VirtualMember]:
    """The extension at the next owner, which has just loaded the shard."""
    cluster, member = alone(grace_ms)
    member.cluster = after = cluster.reloaded()
    attach(member, knows_unsure=knows_unsure)
    return after, member


def resumed() -> tuple[VirtualShard, VirtualMember]:
    """The extension after a lapse of the lease of no length."""
    cluster, member = alone()
    cluster.suspend()
    cluster.resume()
    return cluster, member


def pair() -> tuple[VirtualShard, VirtualMember, VirtualMember]:
    """Two members of a Stable group after a lapse; a join phase waits for them for 2 s."""
    cluster = VirtualShard()
    members = [
        VirtualMember(cluster, name).join(disconnect_grace_ms=GRACE_MS, rebalance_timeout_ms=2_000)
        for name in ("a", "b")
    ]
    while any(member.is_parked for member in members):
        cluster.advance(100)
    answers = [member.joined() for member in members]
    leader, other = members if answers[0].members else members[::-1]
    leader.sync(dict.fromkeys((leader.member_id, other.member_id), b"x")).synced()
    other.sync().synced()
    attach(leader)
    attach(other, STREAM + 1)
    cluster.suspend()
    cluster.resume()
    return cluster, leader, other


def remaining_ms(cluster: VirtualShard) -> int:
    (described,) = cluster.describe().members
    return described.session_remaining_ms


@pytest.mark.parametrize("since", [loaded, resumed])
@pytest.mark.parametrize(
    ("acknowledged", "left_ms"),
    [((), SESSION_MS), ((0, 0, 0), SESSION_MS), ((0, 1), GRACE_MS), ((0, 0, 1), GRACE_MS)],
)
def test_a_grace_counts_when_a_beat_named_a_later_acknowledgement(
    since: Callable[[], tuple[VirtualShard, VirtualMember]], acknowledged: tuple[int, ...], left_ms: int
) -> None:
    cluster, _ = since()
    for number, seen in enumerate(acknowledged, 1):
        cluster.feed(Beat(STREAM, number, seen))
    cluster.feed(StreamBroken(STREAM))
    assert remaining_ms(cluster) == left_ms


def test_an_acknowledgement_of_before_the_lapse_does_not_count() -> None:
    cluster, _ = alone()
    cluster.feed(Beat(STREAM, 1, 0))
    cluster.suspend()
    cluster.resume()
    cluster.feed(Beat(STREAM, 2, 1))
    cluster.feed(StreamBroken(STREAM))
    assert remaining_ms(cluster) == SESSION_MS


def test_nor_does_one_of_another_stream() -> None:
    cluster, member = loaded()
    cluster.feed(Beat(STREAM, 1, 0))
    attach(member, STREAM + 1)
    cluster.feed(Beat(STREAM + 1, 1, 1))
    cluster.feed(StreamBroken(STREAM + 1))
    assert remaining_ms(cluster) == SESSION_MS


def test_the_session_runs_from_when_unsure_may_have_been_said_first() -> None:
    cluster, _ = alone()
    cluster.suspend()
    cluster.advance(4_000)
    cluster.resume()
    cluster.feed(StreamBroken(STREAM))
    assert remaining_ms(cluster) == SESSION_MS - 4_000
    cluster, _ = loaded()
    cluster.advance(9_000)
    cluster.feed(Beat(STREAM, 1, 0))
    cluster.feed(StreamBroken(STREAM))
    assert remaining_ms(cluster) == GRACE_MS


def test_a_client_that_does_not_know_the_word_has_its_grace() -> None:
    cluster, _ = loaded(knows_unsure=False)
    cluster.feed(StreamBroken(STREAM))
    assert remaining_ms(cluster) == GRACE_MS


def test_a_join_phase_does_not_end_while_somebody_who_is_cut_off_may_work_on() -> None:
    cluster, first, _ = pair()
    first.join(rebalance_timeout_ms=2_000)
    cluster.advance(SESSION_MS - 1)
    assert first.is_parked, "the other one heard `unsure`, perhaps, and nothing since"
    cluster.advance(1)
    assert [member.member_id for member in first.joined().members] == [first.member_id]


def test_a_join_phase_ends_in_time_for_who_is_heard_of() -> None:
    cluster, first, _ = pair()
    for number in (1, 2):
        cluster.feed(Beat(STREAM + 1, number, number - 1))
    first.join(rebalance_timeout_ms=2_000)
    cluster.advance(2_000)
    assert [member.member_id for member in first.joined().members] == [first.member_id]
