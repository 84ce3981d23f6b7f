"""The parts that decide, without a network."""

import importlib
import inspect
import pkgutil
from typing import Any

import grpc
import muster
import pytest
from kit.waiting import until, until_equal
from muster import TopicPartition
from muster._backoff import Backoff
from muster._clock import boot_ms
from muster._cluster.discovery import parse_servers
from muster._messages import (
    decode_assignment,
    decode_member,
    encode_assignment,
    encode_subscription,
    tokens_of,
)
from muster._reactions import CONNECTION_LOST, Call, Reaction, reaction_to
from muster._session import forks
from muster._session.channels import ChannelPool
from muster._standing.life import Life
from muster._standing.seat import Caller, Pulse, Seat
from muster._standing.standing import Order, Standing
from muster.assignors import Assignor, MemberSnapshot
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

R = Reaction
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heartbeat_interval_ms": 45_000}, "heartbeat_interval_ms: 45000 must be below session_timeout_ms"),
        ({"session_timeout_ms": 0}, "session_timeout_ms: 0 is not between 1 and 1800000"),
        ({"session_timeout_ms": 1_800_001}, "session_timeout_ms: 1800001 is not between"),
        ({"rebalance_timeout_ms": -1}, "rebalance_timeout_ms: -1 is not between"),
        ({"request_timeout_ms": 1.5}, "request_timeout_ms: must be a whole number"),
        ({"beat_interval_ms": 99}, "beat_interval_ms: 99 is not between 100 and 60000"),
        ({"disconnect_grace_ms": -1}, "disconnect_grace_ms: -1 is not between 0 and 1800000"),
        ({"disconnect_grace_ms": 1_499}, "disconnect_grace_ms: 1499 must be 0 or at least three times beat"),
        ({"beat_interval_ms": 1_001}, "disconnect_grace_ms: 3000 must be 0 or at least three times beat"),
        ({"session": 1}, "session: must be True or False"),
        ({"group_instance_id": ".."}, "group_instance_id: '..'"),
        ({"group_instance_id": "a b"}, "group_instance_id: 'a b'"),
        ({"client_id": "é" * 128}, "client_id: has 256 bytes, at most 255"),
        (
            {"assignors": ["rang"]},
            "assignors: 'rang' is not one of cooperative-sticky, range, roundrobin, sticky",
        ),
        ({"assignors": []}, "assignors: 1 to 16 of them"),
        ({"assignors": ["range", "range"]}, "assignors: 'range' comes twice"),
        ({"assignors": [Assignor("", lambda _: {})]}, "assignors: a name has 1 to 255 bytes"),
        ({"user_data": b"x" * 65_537}, "user_data: must be bytes, at most 65536 of them"),
        ({"user_data": "text"}, "user_data: must be bytes"),
    ],
)
def test_a_setting_out_of_bounds_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(muster.SettingsError) as caught:
        muster.MemberConfig(**settings)
    assert str(caught.value).startswith(message)
    assert caught.value.field == message.partition(":")[0]


def test_the_defaults_are_kafkas() -> None:
    config = muster.MemberConfig()
    assert (config.session_timeout_ms, config.heartbeat_interval_ms) == (45_000, 3_000)
    assert (config.rebalance_timeout_ms, config.request_timeout_ms) == (300_000, 30_000)
    assert [a.name for a in config.resolved_assignors] == ["range"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ("localhost:7400",)),
        ("a:1, b:2", ("a:1", "b:2")),
        (["a", "b:7401"], ("a:7400", "b:7401")),
        ("[::1]:9", ("[::1]:9",)),
        ("[::1]", ("[::1]:7400",)),
    ],
)
def test_servers(monkeypatch: pytest.MonkeyPatch, given: Any, expected: tuple[str, ...]) -> None:
    monkeypatch.delenv("MUSTER_SERVERS", raising=False)
    assert parse_servers(given) == expected


def test_servers_of_the_environment_are_named_when_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SERVERS", "a:1,b:2")
    assert parse_servers(None) == ("a:1", "b:2")
    monkeypatch.setenv("MUSTER_SERVERS", "http://a:1")
    with pytest.raises(muster.SettingsError, match="MUSTER_SERVERS: 'http://a:1' is not an address"):
        parse_servers(None)


def test_back_off_doubles_to_a_second_and_hurries_once() -> None:
    backoff = Backoff()
    assert backoff.next_ms(connection_broken=True) == 0
    for middle in (100, 200, 400, 800, 1_000, 1_000):
        assert 0.8 * middle <= backoff.next_ms(connection_broken=True) <= 1.2 * middle
    backoff.reset()
    assert 80 <= backoff.next_ms() <= 120


# Conformance list, section 2.2: code, then the reactions of join, sync, heartbeat, commit, fetch (None: it
# has none). Sync repeats where Kafka rejoins (15, 16) or fails (14): the generation is stored.
SECTION_2_2 = [
    (14, R.RETRY, R.RETRY, R.RETRY, R.RETRY, R.RETRY),
    (15, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER),
    (16, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER),
    (22, None, R.REJOIN_KEEP_ID, R.REJOIN_KEEP_ID, R.REJOIN_KEEP_ID, None),
    (25, R.REJOIN_RESET_ID, R.REJOIN_RESET_ID, R.REJOIN_RESET_ID, R.REJOIN_RESET_ID, None),
    (27, R.REJOIN, R.REJOIN, R.REJOIN, R.REJOIN, None),
    (79, R.TAKE_ID, None, None, None, None),
    (82, R.FATAL, R.FATAL, R.FATAL, R.FATAL, None),
    (23, R.FATAL, R.FATAL, R.FATAL, R.FATAL, R.RAISE),
    (24, R.FATAL, R.FATAL, R.FATAL, R.FATAL, R.RAISE),
    (26, R.FATAL, R.FATAL, R.FATAL, R.FATAL, R.RAISE),
    (81, R.FATAL, R.FATAL, R.FATAL, R.FATAL, R.RAISE),
    (30, R.FATAL, R.FATAL, R.FATAL, R.FATAL, R.RAISE),
    (3, None, None, None, R.RETRY, R.RAISE),
    (12, None, None, None, R.RAISE, None),
    (28, None, None, None, R.RAISE, None),
    (29, None, None, None, R.RAISE, R.RAISE),
    (CONNECTION_LOST, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER, R.REDISCOVER),
    (10_001, R.RETRY, R.RETRY, R.RETRY, R.RETRY, R.RAISE),
    (9_999, R.FATAL, R.FATAL, R.FATAL, R.FATAL, R.RAISE),
]


@pytest.mark.parametrize("row", SECTION_2_2, ids=[str(row[0]) for row in SECTION_2_2])
def test_reactions(row: tuple[int, *tuple[Reaction | None, ...]]) -> None:
    code, *expected = row
    calls = (Call.JOIN, Call.SYNC, Call.HEARTBEAT, Call.COMMIT, Call.FETCH)
    for call, reaction in zip(calls, expected, strict=True):
        if reaction is not None:
            assert reaction_to(call, code) is reaction, call


def test_life_counts_from_when_the_acknowledged_beat_was_sent() -> None:
    life = Life(1_000)
    life.renew(5_000)
    life.renew(5_400)
    life.renew(5_200)
    assert life.remaining_ms(6_398) == 1
    assert life.remaining_ms(6_399) == 0
    assert life.remaining_ms(9_000) == 0


def test_life_on_a_stream_ends_with_the_grace() -> None:
    life = Life(45_000, 3_000)
    life.renew(5_000)
    assert life.remaining_ms(7_996) == 1
    assert life.remaining_ms(7_997) == 0
    life.on_stream = False
    assert life.remaining_ms(8_000) == 41_955
    assert Life(2_000, 3_000).span_ms == 1_998
    assert Life(45_000, 0).span_ms == 44_955


def test_a_thousandth_is_taken_off_a_life_for_a_clock_that_runs_slow() -> None:
    """The server's clock may have come further in what is a life by the client's."""
    for session_ms, grace_ms in ((45_000, 3_000), (1_800_000, 0), (6_000, 6_000)):
        life = Life(session_ms, grace_ms)
        life.renew(0)
        counted_ms = grace_ms or session_ms
        assert life.ends_at_ms * 1_001 <= counted_ms * 1_000 + 1_000


def test_a_life_that_goes_on_in_the_next_generation_ends_with_the_wait_for_its_sync() -> None:
    life = Life(10_000, 0, 6_000)
    life.renew(5_000)
    life.rebalancing = True
    life.renew(7_000)  # the generation began later than this
    life.go_on(6_500)
    life.renew(9_000)
    assert life.ends_at_ms == 7_000 + 5_994
    life.settle_in(8_000)
    assert life.ends_at_ms == 9_000 + 5_994
    life.rebalancing = True
    assert life.ends_at_ms == 8_000 + 5_994


def test_a_life_goes_on_from_the_join_where_no_beat_was_heard_after_it() -> None:
    life = Life(10_000, 0, 6_000)
    life.renew(5_000)
    life.go_on(6_500)
    life.renew(9_000)
    assert life.ends_at_ms == 6_500 + 5_994
    life.restart()
    assert life.ends_at_ms == 0


def test_a_member_that_is_to_release_something_does_not_live_on_by_its_beats() -> None:
    life = Life(10_000, 0, 6_000)
    life.renew(5_000)
    life.go_on(5_000)
    for sent_ms in range(6_000, 20_000, 1_000):
        life.renew(sent_ms)
    assert life.ends_at_ms == 5_000 + 5_994


def test_life_goes_by_what_the_membership_hangs_on() -> None:
    """The grace counts until a heartbeat of its own was acknowledged: the server may know of a stream."""
    standing = Standing(Caller("g"), Life(45_000, 3_000), seat=Seat("m", 3))
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=1_000, on_stream=True))
    standing.hear(Pulse(Seat("m", 3), CONNECTION_LOST, sent_ms=2_000))
    assert standing.life.ends_at_ms == 3_997
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=2_500))
    assert standing.life.ends_at_ms == 47_455
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=0, on_stream=True))
    assert standing.life.ends_at_ms == 5_497


def test_what_is_heard_about_an_earlier_seat_changes_nothing() -> None:
    standing = Standing(Caller("g"), Life(45_000, 3_000), seat=Seat("m", 4))
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=1_000, on_stream=True))
    assert standing.life.ends_at_ms == 0
    began_ms = boot_ms()
    standing.hear(Pulse(Seat("m", 4), 0, sent_ms=began_ms, on_stream=True))
    for code, unsure in ((0, False), (15, True), (27, False)):
        standing.hear(Pulse(Seat("m", 3), code, sent_ms=began_ms + 1, on_stream=True, unsure=unsure))
    assert standing.life.ends_at_ms == began_ms + 2_997
    assert not standing.life.rebalancing


def test_a_beat_wakes_nobody_who_holds_his_partitions() -> None:
    standing = Standing(Caller("g"), Life(45_000, 3_000), seat=Seat("m", 3), holding=True)
    standing.life.renew(boot_ms())
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=boot_ms(), on_stream=True))
    assert not standing.news.is_set()
    standing.hear(Pulse(Seat("m", 3), 27, sent_ms=0, on_stream=True))
    assert standing.news.is_set()
    standing.news.clear()
    standing.holding = False
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=2_000, on_stream=True))
    assert standing.news.is_set()


def test_a_life_that_ended_while_the_loop_was_blocked_is_lost_before_a_beat_counts_again() -> None:
    began_ms = boot_ms()
    standing = Standing(Caller("g"), Life(45_000, 3_000), seat=Seat("m", 3), holding=True)
    standing.life.renew(began_ms - 10_000)
    for pulse in (
        Pulse(Seat("m", 3), 0, sent_ms=began_ms, on_stream=True),
        Pulse(Seat("m", 3), 0, sent_ms=began_ms),
    ):
        standing.news.clear()
        standing.hear(pulse)
        assert standing.news.is_set()
        assert not standing.alive
    standing.holding = False
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=began_ms, on_stream=True))
    assert standing.alive


def test_a_deployment_says_for_all_its_workers_how_long_moves_are_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert muster.MemberConfig().rollout_hold_ms == 0
    monkeypatch.setenv("MUSTER_ROLLOUT_HOLD_MS", "120000")
    assert muster.MemberConfig().rollout_hold_ms == 120_000
    assert muster.MemberConfig(rollout_hold_ms=0).rollout_hold_ms == 0
    monkeypatch.setenv("MUSTER_ROLLOUT_HOLD_MS", "2m")
    with pytest.raises(
        muster.SettingsError, match="MUSTER_ROLLOUT_HOLD_MS: must be a whole number, not '2m'"
    ):
        muster.MemberConfig()


def test_the_grace_counts_only_with_a_stream() -> None:
    assert muster.MemberConfig().grace_ms == 3_000
    assert muster.MemberConfig(group_instance_id="blue").grace_ms == 0
    assert muster.MemberConfig(group_instance_id="blue", disconnect_grace_ms=20_000).grace_ms == 20_000
    assert muster.MemberConfig(session=False, disconnect_grace_ms=100).grace_ms == 0
    assert muster.MemberConfig(disconnect_grace_ms=1_500).grace_ms == 1_500
    assert muster.MemberConfig(disconnect_grace_ms=0, beat_interval_ms=10_000).grace_ms == 0


def test_a_member_that_hears_unsure_lives_for_its_session_until_a_beat_counts_again() -> None:
    """The session runs from when its last acknowledged beat was sent, too."""
    began_ms = boot_ms()
    standing = Standing(Caller("g"), Life(45_000, 3_000), seat=Seat("m", 3))
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=began_ms, on_stream=True))
    unsure = Pulse(Seat("m", 3), 15, sent_ms=0, on_stream=True, unsure=True)
    standing.hear(unsure)
    standing.hear(unsure)
    assert standing.life.ends_at_ms == began_ms + 44_955
    assert standing.take_order() is None
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=began_ms + 1, on_stream=True))
    assert standing.life.ends_at_ms == began_ms + 1 + 2_997


def test_a_life_that_is_over_is_not_brought_back_by_unsure() -> None:
    life = Life(45_000, 3_000)
    life.renew(10_000)
    life.extend(12_997)
    assert life.remaining_ms(12_997) == 0
    life.renew(13_000)
    life.extend(13_100)
    life.restart()
    assert life.span_ms == 2_997, "what an earlier seat heard does not count"


def test_the_more_severe_order_stays() -> None:
    standing = Standing(Caller("g"), Life(1_000), seat=Seat("m", 3))
    standing.demand(Order(R.REJOIN_RESET_ID, 25, "gone"))
    standing.demand(Order(R.REJOIN, 27, "rebalance"))
    order = standing.take_order()
    assert order is not None
    assert order.reaction is R.REJOIN_RESET_ID
    standing.leave_seat(order)
    assert standing.seat == Seat()
    assert standing.take_order() is None


def test_news_of_another_seat_or_during_a_join_changes_nothing() -> None:
    standing = Standing(Caller("g"), Life(1_000), seat=Seat("m", 3))
    unknown = int(common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID)
    standing.hear(Pulse(Seat("m", 2), unknown, sent_ms=10))
    standing.hear(Pulse(Seat("m", 2), 0, sent_ms=10))
    assert standing.life.ends_at_ms == 0
    standing.joining = True
    standing.hear(Pulse(Seat("m", 3), unknown, sent_ms=10))
    assert standing.take_order() is None
    standing.joining = False
    standing.hear(Pulse(Seat("m", 3), unknown, sent_ms=10))
    assert standing.take_order() == Order(R.REJOIN_RESET_ID, unknown, "")
    assert standing.life.ends_at_ms == 0


def test_a_rebalance_in_progress_is_a_sign_of_life_too() -> None:
    standing = Standing(Caller("g"), Life(1_000, rebalance_timeout_ms=5_000), seat=Seat("m", 3))
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=5))
    standing.hear(Pulse(Seat("m", 3), 27, sent_ms=10))
    assert standing.life.ends_at_ms == 1_009
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=0))
    assert standing.life.ends_at_ms == 1_009


def test_a_life_ends_before_a_join_phase_goes_on_without_the_member() -> None:
    """SES-28: a phase may have begun when the last answer that did not know of it was sent."""
    standing = Standing(Caller("g"), Life(10_000, rebalance_timeout_ms=4_000), seat=Seat("m", 3))
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=1_000))
    assert (standing.life.span_ms, standing.life.ends_at_ms) == (3_996, 4_996), "nobody told it"
    standing.hear(Pulse(Seat("m", 3), 27, sent_ms=3_000))
    assert standing.life.ends_at_ms == 4_996, "it was told, and lives on"


def test_beats_within_a_join_phase_do_not_prolong_a_life_beyond_its_end() -> None:
    """SES-28: on a stream only news tell of the phase; acknowledgements go on."""
    standing = Standing(Caller("g"), Life(45_000, 3_000, 5_000), seat=Seat("m", 3))
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=1_000, on_stream=True))
    standing.hear(Pulse(Seat("m", 3), 27, sent_ms=0, on_stream=True))
    for sent_ms, ends_ms in ((2_000, 4_997), (3_000, 5_995), (4_000, 5_995)):
        standing.hear(Pulse(Seat("m", 3), 0, sent_ms=sent_ms, on_stream=True))
        assert standing.life.ends_at_ms == ends_ms
    standing.life.restart()
    standing.hear(Pulse(Seat("m", 3), 0, sent_ms=9_000, on_stream=True))
    assert standing.life.ends_at_ms == 11_997, "the next generation has no join phase yet"


def test_a_sync_shows_that_no_join_phase_ran() -> None:
    """SES-28: its first beat may say already that one has begun since."""
    standing = Standing(Caller("g"), Life(10_000, rebalance_timeout_ms=4_000), seat=Seat("m", 3))
    standing.hear(Pulse(Seat("m", 3), 27, sent_ms=1_500))
    assert standing.life.ends_at_ms == 0
    standing.life.settle(1_000)
    assert standing.life.ends_at_ms == 4_996


def test_a_join_phase_waits_for_members_with_a_grace_that_hear_unsure_and_for_no_others() -> None:
    """SES-28 beside SES-24: the coordinator counts a session for those, not for the others."""
    began_ms = boot_ms()
    for grace_ms, ends_ms in ((3_000, 9_990), (0, 4_995)):
        standing = Standing(Caller("g"), Life(10_000, grace_ms, 5_000), seat=Seat("m", 3))
        standing.hear(Pulse(Seat("m", 3), 0, sent_ms=began_ms, on_stream=True))
        standing.hear(Pulse(Seat("m", 3), 27, sent_ms=0, on_stream=True))
        standing.hear(Pulse(Seat("m", 3), 15, sent_ms=0, on_stream=True, unsure=True))
        assert standing.life.ends_at_ms == began_ms + ends_ms


def test_subscriptions_and_assignments_are_the_published_messages() -> None:
    data = encode_subscription(["b", "a"], owned=[T1, T0], keeps_owned=False, generation=4, rack_id="r")
    member = coordinator_pb2.JoinGroupResponse.Member(member_id="m", group_instance_id="i", metadata=data)
    assert decode_member(member) == MemberSnapshot("m", ("a", "b"), "i", "r", (T0, T1), False, 4)
    member.metadata = b"\xff\xff"
    assert decode_member(member) is None
    assert decode_assignment(encode_assignment([T1, T0])) == (T0, T1)
    assert decode_assignment(b"") == ()
    assert decode_assignment(b"\xff\xff") is None
    assert decode_assignment(common_pb2.Assignment(version=2).SerializeToString()) is None
    response = coordinator_pb2.SyncGroupResponse(token="new")
    response.kept_tokens.add(topic="t", partition=1, token="old")
    assert tokens_of((T1, T0), response) == {T0: "new", T1: "old"}


async def test_a_channel_is_closed_when_nobody_uses_it() -> None:
    channels = ChannelPool(idle_ms=0)
    async with channels.use("127.0.0.1:1"), channels.use("127.0.0.1:1"):
        assert channels.addresses == {"127.0.0.1:1"}
    await until_equal(lambda: channels.addresses, set())
    await channels.close()


async def test_a_channel_that_is_opened_after_a_close_ends_with_its_own_user() -> None:
    """Not with another user of its address, whose channel is from before the close."""
    channels = ChannelPool()
    before, after = channels.use("127.0.0.1:1"), channels.use("127.0.0.1:1")
    old = await before.__aenter__()
    await channels.close()
    new = await after.__aenter__()
    await before.__aexit__(None, None, None)
    assert channels.addresses == {"127.0.0.1:1"}
    assert new is not old
    await after.__aexit__(None, None, None)
    assert channels.addresses == set()
    await until_equal(new.get_state, grpc.ChannelConnectivity.SHUTDOWN)
    await until(lambda: channels not in forks._connected, "the pool counts as closed")


def test_exports_are_exactly_the_public_names() -> None:
    assert muster.__all__ == sorted(muster.__all__)
    assert all(hasattr(muster, name) for name in muster.__all__)
    public = {name for name in vars(muster) if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(muster, name))}
    assert public - modules == set(muster.__all__) - {"assignors"}


def test_every_module_but_the_public_ones_is_private() -> None:
    names = {info.name for info in pkgutil.iter_modules(muster.__path__)}
    assert {name for name in names if not name.startswith("_")} == {"assignors", "cli", "sinks", "testing"}


def test_all_that_is_public_is_described() -> None:
    for name in set(muster.__all__) - {"PartitionsCallback"}:  # an alias has its words in the source
        assert inspect.getdoc(getattr(muster, name)), name


def test_every_module_can_be_imported_alone() -> None:
    for info in pkgutil.iter_modules(muster.__path__, "muster."):
        importlib.import_module(info.name)
