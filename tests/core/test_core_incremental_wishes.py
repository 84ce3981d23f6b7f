"""Session and grace that members of incremental groups ask for (docs/safety.md, INC-104 and INC-105)."""

from collections.abc import Callable
from typing import TypeAlias

import pytest
from kit.lives.incremental_shard import NumberedMember, incremental_of, incremental_shard
from kit.lives.stream_member import StreamMember
from kit.lives.virtual_shard import VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_protos.muster.v1 import common_pb2

GRACE_MS, SESSION_MS = 3_000, 45_000
DISCONNECTED = common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED
EXPIRED = common_pb2.REBALANCE_CAUSE_KIND_SESSION_EXPIRED
Owner: TypeAlias = Callable[[VirtualShard], VirtualShard]


def same(cluster: VirtualShard) -> VirtualShard:
    return cluster


def next_owner(cluster: VirtualShard) -> VirtualShard:
    return incremental_shard(4, cluster.log, cluster.config)


def removals(cluster: VirtualShard) -> list[tuple[int, int]]:
    """Why, and after which silence."""
    causes = [record.member_removed.cause for _, record in cluster.log if record.HasField("member_removed")]
    return [(cause.kind, cause.silence_ms) for cause in causes]


@pytest.mark.parametrize("owner", [same, next_owner])
@pytest.mark.parametrize("session_ms", [10_000, 100_000])
def test_a_member_lives_for_the_session_that_it_asked_for(owner: Owner, session_ms: int) -> None:
    cluster = incremental_shard()
    member = NumberedMember(cluster, "a")
    member.session_ms = session_ms
    answer = member.join()
    assert answer.session_timeout_ms == session_ms
    assert answer.heartbeat_interval_ms <= session_ms // 3
    member.cluster = cluster = owner(cluster)
    assert member.beat().session_timeout_ms == session_ms
    cluster.advance(session_ms - 1)
    assert "a" in incremental_of(cluster).members
    cluster.advance(1)
    assert not incremental_of(cluster).members
    assert removals(cluster) == [(EXPIRED, session_ms)]
    check_every_cut([*cluster.log], cluster.config)


@pytest.mark.parametrize("owner", [same, next_owner])
@pytest.mark.parametrize("session_ms", [10_000, 100_000])
def test_beats_of_a_stream_keep_a_member_for_the_session_that_it_asked_for(
    owner: Owner, session_ms: int
) -> None:
    cluster = incremental_shard()
    member = StreamMember(cluster, "a")
    member.session_ms = session_ms
    assert not member.join().error_code
    cluster = owner(cluster)
    member.move(cluster)
    assert not member.beat(member.owned).error_code
    for _ in range(3):
        cluster.advance(session_ms - 1)
        member.live()
    cluster.advance(session_ms - 1)
    assert "a" in incremental_of(cluster).members
    cluster.advance(1)
    assert not incremental_of(cluster).members


@pytest.mark.parametrize("owner", [same, next_owner])
@pytest.mark.parametrize(
    ("session_ms", "grace_ms", "lasts_ms"),
    [(100_000, 60_000, 60_000), (10_000, 1_000, 1_000), (10_000, 60_000, 10_000), (0, 20_000, 20_000)],
)
def test_who_loses_its_stream_has_the_grace_that_it_asked_for(
    owner: Owner, session_ms: int, grace_ms: int, lasts_ms: int
) -> None:
    cluster = incremental_shard()
    member = StreamMember(cluster, "a")
    member.session_ms, member.grace_ms = session_ms, grace_ms
    assert not member.join().error_code
    cluster = owner(cluster)
    member.move(cluster)
    assert member.beat(member.owned).disconnect_grace_ms == lasts_ms
    for _ in range(2):  # after a load it may have heard `unsure`, and lives for its session
        cluster.advance((session_ms or SESSION_MS) - 1)
        member.live()
    member.lose_stream()
    cluster.advance(lasts_ms - 1)
    assert "a" in incremental_of(cluster).members
    cluster.advance(1)
    assert removals(cluster) == [(DISCONNECTED, lasts_ms)]
    check_every_cut([*cluster.log], cluster.config)


def test_who_asks_for_nothing_has_what_the_shard_says() -> None:
    cluster = incremental_shard()
    answer = NumberedMember(cluster, "a").join()
    assert (answer.session_timeout_ms, answer.disconnect_grace_ms) == (SESSION_MS, GRACE_MS)
    cluster.advance(SESSION_MS)
    assert removals(cluster) == [(EXPIRED, SESSION_MS)]


@pytest.mark.parametrize("session_ms", [-1, 5_999, 1_800_001])
def test_a_session_beyond_the_limits_is_refused_with_them(session_ms: int) -> None:
    cluster = incremental_shard()
    member = NumberedMember(cluster, "a")
    member.session_ms = session_ms
    answer = member.join()
    assert answer.error_code == error_code.INVALID_SESSION_TIMEOUT
    assert answer.error_message == "session_timeout_ms must be 0, or 6000 to 1800000"
    assert "a" not in {record.member_subscribed.member.member_id for _, record in cluster.log}


def test_a_join_that_is_made_again_keeps_what_it_was_told() -> None:
    cluster = incremental_shard()
    member = NumberedMember(cluster, "a")
    member.session_ms, member.grace_ms = 60_000, 20_000
    member.join()
    member.session_ms, member.grace_ms = 10_000, 1_000
    assert member.join(again=True).session_timeout_ms == 60_000
    answer = member.join()  # a new life, which works on nothing
    assert (answer.session_timeout_ms, answer.disconnect_grace_ms) == (10_000, 1_000)
    cluster.advance(10_000)
    assert removals(cluster) == [(EXPIRED, 10_000)]


def test_the_audit_finds_who_was_removed_before_the_time_that_it_was_granted() -> None:
    cluster = incremental_shard()
    member = NumberedMember(cluster, "a")
    member.session_ms = 60_000
    member.join()
    cluster.advance(60_000)
    assert not broken_promises(cluster)
    for _, record in cluster.log:
        if record.HasField("member_removed"):
            record.member_removed.cause.silence_ms = SESSION_MS
    assert [found.invariant for found in broken_promises(cluster)] == ["M3"]
