"""Settings of groups (docs/safety.md, INC-120 to INC-126)."""

from typing import Any

import pytest
from core.test_core_conversions import CONFIG, WAIT_MS, stable
from kit.lives.incremental_shard import (
    GROUP,
    NumberedMember,
    incremental_of,
    incremental_shard,
    joined,
    settle,
    tell_partitions,
)
from kit.lives.server_assignors import SERVER_ASSIGNORS, answer_to
from kit.lives.stream_member import StreamMember
from kit.lives.virtual_shard import VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.events import Assign, Assigned
from muster_core.features import ALL_FEATURES, Feature
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_protos.muster.v1.coordinator_pb2 import DeleteGroupsRequest, DescribeGroupsRequest
from muster_protos.muster.v1.group_settings_pb2 import (
    AlterGroupSettingsRequest,
    AlterGroupSettingsResponse,
    GroupSettings,
)
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

DAY_MS = 86_400_000
SESSION_MS = 45_000


def alter(cluster: VirtualShard, *unset: str, **settings: Any) -> AlterGroupSettingsResponse:
    request = AlterGroupSettingsRequest(group_id=GROUP, set=GroupSettings(**settings), unset=unset)
    answer = cluster.ask(request)
    assert isinstance(answer, AlterGroupSettingsResponse)
    return answer


def done(cluster: VirtualShard, *unset: str, **settings: Any) -> GroupSettings:
    answer = alter(cluster, *unset, **settings)
    assert not answer.error_code, answer.error_message
    return answer.settings


def described(cluster: VirtualShard) -> coordinator_pb2.DescribeGroupsResponse.Group:
    answer = cluster.ask(DescribeGroupsRequest(group_ids=[GROUP]))
    assert isinstance(answer, coordinator_pb2.DescribeGroupsResponse)
    return answer.groups[0]


def deleted(cluster: VirtualShard) -> int:
    answer = cluster.ask(DeleteGroupsRequest(group_ids=[GROUP]))
    assert isinstance(answer, coordinator_pb2.DeleteGroupsResponse)
    return answer.results[0].error_code


def kafka_member(cluster: VirtualShard, epoch: int = 0) -> Any:
    """A heartbeat as Kafka's clients make it, which names no join."""
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="k", member_epoch=epoch)
    if not epoch:
        request.topics.names.append("t")
        request.rebalance_timeout_ms = 30_000
        request.owned.SetInParent()
    answer: Any = cluster.ask(request)
    assert not answer.error_code, answer.error_message
    return answer


# --- what is set, and where


def test_what_is_set_is_stored_merged_shown_and_taken_back() -> None:
    """INC-120: with whoever owns the shard next, from records and from snapshots alike."""
    cluster = incremental_shard()
    assert done(cluster, assignor="range", hold=True) == GroupSettings(assignor="range", hold=True)
    now = done(cluster, "assignor", session_timeout_ms=60_000)
    assert now == GroupSettings(hold=True, session_timeout_ms=60_000)
    joined(cluster, "a", "b")
    cluster = incremental_shard(4, cluster.log, cluster.config)
    assert described(cluster).settings == now
    check_every_cut([*cluster.log], cluster.config)
    assert not broken_promises(cluster)
    assert done(cluster, "hold", "session_timeout_ms") == GroupSettings()
    assert not described(cluster).HasField("settings")


def test_it_is_answered_when_the_log_has_it_and_only_then_counts() -> None:
    """INC-120."""
    cluster = incremental_shard()
    cluster.auto_ack = False
    call_id = cluster.send(AlterGroupSettingsRequest(group_id=GROUP, set=GroupSettings(hold=True)))
    assert cluster.is_parked(call_id)
    assert not described(cluster).HasField("settings")
    cluster.acknowledge()
    assert cluster.answer(call_id) == AlterGroupSettingsResponse(
        settings=GroupSettings(hold=True), shard_epoch=cluster.epoch
    )
    assert described(cluster).settings.hold


def test_what_is_set_already_is_not_written_again() -> None:
    cluster = incremental_shard()
    done(cluster, hold=True)
    before = len(cluster.log)
    done(cluster, "assignor", hold=True)
    assert len(cluster.log) == before


@pytest.mark.row("TM-06")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"assignor": "sticky"}, "assignor must be uniform or range, not 'sticky'"),
        ({"convert": "soon"}, "convert must be never, auto or always, not 'soon'"),
        ({"assignment_interval_ms": -2}, "assignment_interval_ms must be -1 to 600,000, not -2"),
        ({"session_timeout_ms": 5_999}, "session_timeout_ms must be 6,000 to 1,800,000, not 5,999"),
        ({"session_timeout_ms": 1_800_001}, "session_timeout_ms must be 6,000 to 1,800,000, not 1,800,001"),
        ({"disconnect_grace_ms": 0}, "disconnect_grace_ms must be 1 to 1,800,000, not 0"),
        (
            {"heartbeat_interval_ms": 999},
            "heartbeat_interval_ms must be 1,000 to 44,999 (below the session time-out), not 999",
        ),
    ],
)
def test_a_value_that_is_not_possible_names_the_limit_and_changes_nothing(
    settings: dict[str, Any], text: str
) -> None:
    """INC-120."""
    cluster = incremental_shard()
    answer = alter(cluster, hold=True, **settings)
    assert (answer.error_code, answer.error_message) == (error_code.INVALID_CONFIG, text)
    assert GROUP not in cluster.shard.groups
    assert "group_settings_altered" not in cluster.kinds()


@pytest.mark.row("TM-07")
def test_heartbeats_come_within_the_session() -> None:
    cluster = incremental_shard()
    assert alter(cluster, heartbeat_interval_ms=SESSION_MS).error_code == error_code.INVALID_CONFIG
    done(cluster, heartbeat_interval_ms=SESSION_MS, session_timeout_ms=60_000)
    refused = alter(cluster, "session_timeout_ms")
    assert "must be 1,000 to 44,999" in refused.error_message


def test_nothing_is_taken_back_from_a_group_that_is_not_there() -> None:
    cluster = incremental_shard()
    assert alter(cluster, "hold").error_code == error_code.GROUP_ID_NOT_FOUND
    assert GROUP not in cluster.shard.groups


def test_nothing_is_written_before_the_feature_is_enabled() -> None:
    """INC-120: a server of the version before could not read it."""
    cluster = VirtualShard(features=ALL_FEATURES - {Feature.GROUP_SETTINGS})
    answer = alter(cluster, hold=True)
    assert answer.error_code == error_code.UNSUPPORTED_VERSION
    assert "group-settings" in answer.error_message
    assert "group_settings_altered" not in cluster.kinds()


def test_settings_make_no_more_groups_than_there_may_be() -> None:
    cluster = VirtualShard(GroupConfig(max_groups_per_shard=2))
    for name in ("x", "y"):
        answer: Any = cluster.ask(AlterGroupSettingsRequest(group_id=name, set=GroupSettings(hold=True)))
        assert not answer.error_code
    answer = alter(cluster, hold=True)
    assert answer.error_code == error_code.COORDINATOR_NOT_AVAILABLE
    assert "limit of 2 groups" in answer.error_message


# --- a group and its settings live and go together


def test_a_group_with_settings_alone_stays_until_it_is_deleted() -> None:
    """INC-122: and a later group of its name begins without."""
    cluster = incremental_shard()
    done(cluster, hold=True)
    cluster.advance(30 * DAY_MS)
    cluster = incremental_shard(4, cluster.log, cluster.config, now_ms=cluster.now_ms)
    cluster.advance(30 * DAY_MS)
    assert described(cluster).settings.hold
    assert deleted(cluster) == error_code.NONE
    assert described(cluster).state == coordinator_pb2.GROUP_STATE_DEAD
    joined(cluster, "a")
    assert not described(cluster).HasField("settings")
    check_every_cut([*cluster.log], cluster.config)
    assert not broken_promises(cluster)


def test_a_group_of_which_nothing_is_set_any_more_is_removed_with_time() -> None:
    """INC-122."""
    cluster = incremental_shard()
    done(cluster, hold=True)
    done(cluster, "hold")
    cluster.advance(DAY_MS)
    assert GROUP not in cluster.shard.groups


def test_settings_stay_with_the_group_whatever_kind_it_is_of() -> None:
    """INC-120."""
    cluster = incremental_shard(config=CONFIG)
    done(cluster, hold=True, convert="always")
    stable(cluster, "a", "b")
    assert described(cluster).settings.hold
    cluster.advance(WAIT_MS)
    assert "group_converted" in cluster.kinds()
    assert described(cluster).settings.hold
    check_every_cut([*cluster.log], cluster.config)


# --- session, grace and heartbeats


@pytest.mark.parametrize("wish_ms", [0, 30_000])
def test_a_session_that_is_set_counts_with_the_next_join(wish_ms: int) -> None:
    """INC-121: who has joined lives by what it was told, whatever is set since."""
    cluster = incremental_shard()
    before = NumberedMember(cluster, "a")
    before.session_ms = wish_ms
    before.join()
    done(cluster, session_timeout_ms=10_000, disconnect_grace_ms=2_000)
    assert before.beat().session_timeout_ms == (wish_ms or SESSION_MS)
    after = NumberedMember(cluster, "b")
    after.session_ms, after.grace_ms = wish_ms, 9_000
    answer = after.join()
    assert (answer.session_timeout_ms, answer.disconnect_grace_ms) == (10_000, 2_000)
    done(cluster, "session_timeout_ms", disconnect_grace_ms=1_000)
    assert after.beat().disconnect_grace_ms == 2_000
    settle(before, after)
    cluster = incremental_shard(4, cluster.log, cluster.config)
    after.cluster = before.cluster = cluster
    assert after.beat().session_timeout_ms == 10_000
    before.beat()
    cluster.advance(9_999)
    assert incremental_of(cluster).members.keys() == {"a", "b"}
    cluster.advance(1)
    assert incremental_of(cluster).members.keys() == {"a"}
    cluster.advance((wish_ms or SESSION_MS) - 10_001)
    assert "a" in incremental_of(cluster).members
    assert not broken_promises(cluster)


def test_a_static_member_that_is_replaced_has_what_is_set_now() -> None:
    """INC-121."""
    cluster = incremental_shard()
    first = NumberedMember(cluster, "a", instance="i")
    first.join()
    first.leave(-2)
    done(cluster, session_timeout_ms=10_000)
    next_ = NumberedMember(cluster, "b", instance="i")
    held = next_.join()
    answer = next_.join(again=True, replaces=incremental_of(cluster).members["a"].joined)
    assert held.error_code == error_code.UNRELEASED_INSTANCE_ID
    assert answer.session_timeout_ms == 10_000


@pytest.mark.row("TM-08")
def test_members_without_joins_hear_what_is_set_with_their_next_heartbeat() -> None:
    """As Kafka's do: the interval in the answer, and the session from then on."""
    cluster = incremental_shard()
    answer = kafka_member(cluster)
    assert (answer.session_timeout_ms, answer.heartbeat_interval_ms) == (SESSION_MS, 5_000)
    done(cluster, session_timeout_ms=50_000, heartbeat_interval_ms=10_000)
    answer = kafka_member(cluster, answer.member_epoch)
    assert (answer.session_timeout_ms, answer.heartbeat_interval_ms) == (50_000, 10_000)
    cluster.advance(49_999)
    assert incremental_of(cluster).members
    cluster.advance(1)
    assert not incremental_of(cluster).members


def test_who_is_removed_before_it_hears_of_another_session_was_silent_for_its_own() -> None:
    """INC-121, M3: the cause says how long it was silent, not what is set by now."""
    cluster = incremental_shard(4)
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id="a", member_epoch=0, rebalance_timeout_ms=30_000
    )
    request.topics.names.append("t")
    request.owned.SetInParent()
    cluster.ask(request)
    done(cluster, session_timeout_ms=60_000)
    cluster.advance(SESSION_MS + 1)
    (removed,) = [record.member_removed for _, record in cluster.log if record.HasField("member_removed")]
    assert f"{SESSION_MS // 1_000} s" in removed.cause.sentence
    assert not broken_promises(cluster)


@pytest.mark.row("TM-09")
def test_a_session_outside_of_the_limits_of_now_is_moved_into_them() -> None:
    """INC-121: the limits of a server may change after the group's setting."""
    cluster = incremental_shard()
    done(cluster, session_timeout_ms=60_000)
    cluster = incremental_shard(4, cluster.log, GroupConfig(max_session_timeout_ms=20_000))
    assert NumberedMember(cluster, "a").join().session_timeout_ms == 20_000
    assert kafka_member(cluster).session_timeout_ms == 20_000
    assert described(cluster).settings.session_timeout_ms == 60_000


def test_no_interval_is_longer_than_the_session_of_who_joined_before() -> None:
    cluster = incremental_shard()
    member = NumberedMember(cluster, "a")
    member.join()
    done(cluster, session_timeout_ms=120_000, heartbeat_interval_ms=100_000)
    assert member.beat().heartbeat_interval_ms == SESSION_MS // 3


# --- who assigns


def test_the_assignor_that_is_set_assigns_anew_whatever_members_prefer() -> None:
    """INC-123: on streams at once, and after a load too."""
    cluster = incremental_shard(5)
    members = [StreamMember(cluster, name) for name in ("a", "b")]
    for member in members:
        assert not member.join().error_code
    assert incremental_of(cluster).server_assignor == "uniform"
    done(cluster, assignor="range")
    assert incremental_of(cluster).server_assignor == "range"
    cause = cluster.shard.groups[GROUP].cause
    assert cause is not None
    assert cause.kind == common_pb2.REBALANCE_CAUSE_KIND_ADMIN
    assert cause.sentence == "An operator changed the group's settings: assignor."
    cluster = incremental_shard(5, cluster.log, cluster.config)
    tell_partitions(cluster, 6)
    assert incremental_of(cluster).server_assignor == "range"
    done(cluster, "assignor")
    assert incremental_of(cluster).server_assignor == "uniform"
    check_every_cut([*cluster.log], cluster.config)


def test_members_that_make_calls_get_the_target_of_the_set_assignor_with_their_next() -> None:
    """INC-123."""
    cluster = incremental_shard(5)
    (member,) = joined(cluster, "a")
    done(cluster, assignor="range")
    assert incremental_of(cluster).state.value == "Assigning"
    settle(member)
    assert incremental_of(cluster).server_assignor == "range"


def test_an_assignor_that_this_server_has_not_counts_as_not_set() -> None:
    """INC-123: the one that has stored it may have more."""
    cluster = incremental_shard()
    done(cluster, assignor="range")
    only = {"uniform": SERVER_ASSIGNORS["uniform"]}
    cluster = incremental_shard(4, cluster.log, cluster.config, only)
    joined(cluster, "a")
    assert incremental_of(cluster).server_assignor == "uniform"


@pytest.mark.parametrize("of_the_server", [-1, 0])
def test_the_pause_between_assignments_is_what_is_set(of_the_server: int) -> None:
    """INC-126."""
    cluster = incremental_shard(config=GroupConfig(incremental_assignment_interval_ms=of_the_server))
    done(cluster, assignment_interval_ms=1_000)
    a, b = (StreamMember(cluster, name) for name in "ab")
    a.join()
    b.join()
    assert incremental_of(cluster).state.value == "Assigning"
    cluster.advance(999)
    assert not incremental_of(cluster).members["b"].target
    cluster.advance(1)
    assert len(incremental_of(cluster).members["b"].target) == 2


@pytest.mark.parametrize(
    ("after_ms", "left_ms", "change"),
    [
        (300, 200, {"assignment_interval_ms": 500}),
        (600, 0, {"assignment_interval_ms": 500}),
        (300, 0, {"assignment_interval_ms": 0}),
        (300, 700, {"assignment_interval_ms": 5_000}),
        (5, 15, {}),
    ],
    ids=["shorter", "over", "none", "longer", "taken back"],
)
def test_a_pause_that_runs_is_cut_by_what_is_set_then(
    after_ms: int, left_ms: int, change: dict[str, Any]
) -> None:
    """INC-126: it is never longer than is set, and a longer one counts from the next assignment on."""
    cluster = incremental_shard(config=GroupConfig(incremental_assignment_interval_ms=-1))
    done(cluster, assignment_interval_ms=1_000)
    a, b = (StreamMember(cluster, name) for name in "ab")
    a.join()
    b.join()
    cluster.advance(after_ms)
    done(cluster, *([] if change else ["assignment_interval_ms"]), **change)
    if left_ms:
        cluster.advance(left_ms - 1)
        assert not incremental_of(cluster).members["b"].target
    cluster.advance(1)
    assert len(incremental_of(cluster).members["b"].target) == 2


def test_a_pause_after_a_failure_is_not_cut_to_nothing() -> None:
    """INC-109: what fails again and again would be computed without a pause."""
    cluster = incremental_shard()
    cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS, at_once_max=0))
    done(cluster, assignment_interval_ms=0)
    cluster.works = answer_to
    StreamMember(cluster, "a").join()
    cluster.works = None
    StreamMember(cluster, "b").join()
    done(cluster, assignment_interval_ms=60_000)
    asked = cluster.work.popleft()
    assert isinstance(asked, Assign)
    cluster.feed(Assigned(GROUP, asked.number, None))
    done(cluster, assignment_interval_ms=0)
    cluster.advance(999)
    assert not cluster.work
    cluster.advance(1)
    assert len(cluster.work) == 1


# --- hold


def owners(cluster: VirtualShard) -> dict[int, str]:
    return {number: owner for (_, number), owner in sorted(incremental_of(cluster).owners.items())}


@pytest.mark.parametrize("member_type", [NumberedMember, StreamMember])
@pytest.mark.parametrize("aside", [False, True])
def test_on_hold_nothing_is_taken_from_who_lives_and_what_nobody_has_is_given_out(
    member_type: type[NumberedMember], *, aside: bool
) -> None:
    """INC-124: until the hold ends."""
    cluster = incremental_shard(6)
    if aside:
        cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS, at_once_max=0))
        cluster.works = answer_to
    a, b, c = (member_type(cluster, name) for name in "abc")
    for member in (a, b):
        member.join()
        settle(a, b)
    before = owners(cluster)
    done(cluster, hold=True)
    c.join()
    settle(a, b, c)
    assert owners(cluster) == before, "nothing moves"
    tell_partitions(cluster, 8)
    settle(a, b, c)
    assert {number: owners(cluster)[number] for number in before} == before
    assert len(owners(cluster)) == 8, "the new partitions are given out"
    b.leave()
    settle(a, c)
    kept = {number for number, owner in before.items() if owner == "a"}
    assert {number for number in kept if owners(cluster)[number] == "a"} == kept
    assert len(owners(cluster)) == 8, "those of who left are given out"
    done(cluster, hold=False)
    settle(a, c)
    assert sorted(owners(cluster).values()) == ["a"] * 4 + ["c"] * 4, "balanced again"
    check_every_cut([*cluster.log], cluster.config)
    assert not broken_promises(cluster)


def test_a_hold_keeps_back_what_was_being_computed_when_it_began() -> None:
    """INC-124."""
    cluster = incremental_shard(4)
    cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS, at_once_max=0))
    cluster.works = answer_to
    (a,) = joined(cluster, "a")
    cluster.works = None
    b = NumberedMember(cluster, "b")
    b.seq = 1
    request = b.request(0)
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    cluster.send(request)
    (work,) = cluster.work
    done(cluster, hold=True)
    cluster.feed(answer_to(work))
    settle(a)
    assert owners(cluster) == dict.fromkeys(range(4), "a")
    assert incremental_of(cluster).target_epoch == incremental_of(cluster).epoch


def test_who_does_not_want_a_topic_any_more_gives_it_back_on_hold_too() -> None:
    """INC-124: it would work on what it does not ask for."""
    cluster = incremental_shard(4)
    a, b = joined(cluster, "a", "b")
    done(cluster, hold=True)
    request = b.request(b.epoch)
    request.topics.names.append("other")
    b.hear(b.ask(request))
    settle(a, b)
    assert set(owners(cluster).values()) == {"a"}


# --- conversion


@pytest.mark.parametrize(
    ("convert", "of_the_server", "becomes"),
    [("always", "never", True), ("never", "always", False), ("auto", "never", True), (None, "never", False)],
)
def test_a_group_is_converted_as_is_set_for_it(
    convert: str | None, of_the_server: Any, *, becomes: bool
) -> None:
    """INC-125: before the first member joins, or while members work."""
    config = GroupConfig(convert=of_the_server, convert_after_ms=WAIT_MS, initial_rebalance_delay_ms=0)
    cluster = incremental_shard(config=config)
    if convert == "never":
        done(cluster, convert=convert)
    stable(cluster, "a", "b")
    if convert not in (None, "never"):
        done(cluster, convert=convert)
    cluster.advance(2 * WAIT_MS)
    assert ("group_converted" in cluster.kinds()) is becomes
