"""Quotas of callers: at their edges, by connection, caller and group (LIM-39 to LIM-46)."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from abuse import http2
from google.rpc import error_details_pb2, status_pb2
from kit.waiting import until
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc, quotas_pb2, quotas_pb2_grpc
from muster_runtime.errors import StartupError
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc._guard import _rationed
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.quotas import Connection, Quota, Quotas, QuotaSettings
from muster_runtime.rpc.quotas import quotas as quotas_module
from muster_runtime.rpc.quotas.bucket import Bucket
from muster_runtime.rpc.quotas.party import BURST_S, CREATION_BURST_S, Party
from muster_runtime.rpc.quotas.quotas import host_of
from muster_runtime.rpc.quotas.servicer import QuotaServicer
from muster_runtime.rpc.refusals import ResourceExhausted, Unavailable
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.rpc.unread import Cuts

HEALTH = "/grpc.health.v1.Health/"
TOPICS = "/muster.v1.CoordinatorDiscoveryService/"
OFF = dict.fromkeys((quota.value for quota in Quota), 0)


class Clock:
    def __init__(self) -> None:
        self.s = 1_000.0

    def __call__(self) -> float:
        return self.s


class Call:
    """A call as the quotas see it."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


def quotas(clock: Clock, file: Path | None = None, **limits: int) -> Quotas:
    return Quotas(QuotaSettings.model_validate({**OFF, **limits, "file": file}), clock)


class Callers:
    """Calls that stay open until they are ended."""

    def __init__(self, of: Quotas) -> None:
        self._of = of
        self._calls: list[asyncio.Task[None]] = []

    async def begin(self, peer: str = "ipv4:10.0.0.1:1") -> Quota | None:
        """Begins a call; gives what it was refused for."""
        before = dict(self._of.refusals)
        begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def call() -> None:
            try:
                self._of.enter(Call(peer))
            except ResourceExhausted:
                begun.set_result(False)
                return
            begun.set_result(True)
            await asyncio.Event().wait()

        task = asyncio.create_task(call())
        if await begun:
            self._calls.append(task)
            return None
        return next(quota for quota, number in self._of.refusals.items() if number > before[quota])

    async def end(self, number: int | None = None) -> None:
        """Ends the oldest calls, or all."""
        some, self._calls = self._calls[:number], self._calls[number or len(self._calls) :]
        for task in some:
            task.cancel()
        await asyncio.gather(*some, return_exceptions=True)
        await asyncio.sleep(0)


def party(clock: Clock, **limits: int) -> Party:
    return Party("p", {**OFF, **limits}, clock, lambda _: None)


def taken(take: Callable[[], None], most: int = 10_000) -> int:
    """How often something may be taken."""
    for number in range(most):
        try:
            take()
        except ResourceExhausted:
            return number
    return most


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(10, 20, 0.0)
    assert [bucket.take(1, 0.0) for _ in range(20)] == [0] * 20
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    assert not bucket.is_full(0.0)
    assert bucket.take(1, 0.1) == 0
    assert bucket.take(1, 0.1) == pytest.approx(0.1)
    assert bucket.take(100, 1_000.0) == 0, "more than the burst at once"
    assert bucket.take(1, 1_001.0) == pytest.approx(7.1), "is paid back before anything else"
    assert bucket.take(1, 1_008.1) == 0
    assert bucket.is_full(2_000.0)


def test_what_is_paid_afterwards_is_owed_up_to_the_burst() -> None:
    bucket = Bucket(10, 20, 0.0)
    assert bucket.pay(5, 0.0) == 0
    assert bucket.pay(14, 0.0) == 0
    assert bucket.pay(4, 0.0) == pytest.approx(0.4)
    assert bucket.pay(1_000, 0.0) == pytest.approx(2.1), "large messages are read still"
    assert bucket.deep_debt_s(0.0) == 0
    bucket.owe(30)
    assert bucket.pay(1_000, 0.0) == pytest.approx(5.1), "what was owed before stays"
    assert bucket.deep_debt_s(0.0) == pytest.approx(3)
    assert bucket.take(1, 5.1) == 0


def test_what_a_connection_was_answered_is_paid_by_its_share() -> None:
    """LIM-42: else each of many goes on with its share, however much it is answered; a calm one does."""
    clock = Clock()
    one = party(clock, partitions_per_s=100)
    greedy, calm = Connection(one), Connection(one)
    clock.s += 60
    greedy.pay_partitions(5_000)
    with pytest.raises(ResourceExhausted):
        greedy.take_partitions(0)
    calm.take_partitions(0)
    assert one.taken[Quota.PARTITIONS] == 5_000


@pytest.mark.parametrize(
    ("quota", "burst_s"),
    [
        (Quota.COMMITS, BURST_S),
        (Quota.PARTITIONS, BURST_S),
        (Quota.NEW_GROUPS, CREATION_BURST_S),
        (Quota.TOPIC_CHANGES, CREATION_BURST_S),
    ],
)
def test_a_rate_of_a_caller_is_kept_over_all_its_connections(quota: Quota, burst_s: int) -> None:
    clock = Clock()
    one = party(clock, **{quota.value: 3})
    first, second = Connection(one), Connection(one)
    assert taken(lambda: first.take(quota)) == 3 * burst_s
    with pytest.raises(ResourceExhausted, match=f"MUSTER_QUOTA_{quota.value.upper()}") as refused:
        second.take(quota)
    assert refused.value.retry_after_ms == 334
    clock.s += 0.334
    second.take(quota)
    assert one.refusals == {quota: 2}
    free = Connection(party(clock))
    assert taken(lambda: free.take(quota)) == 10_000, "0 is no limit"


def test_a_connection_has_a_rate_of_its_own_below_that_of_its_caller() -> None:
    clock = Clock()
    one = party(
        clock, calls_per_s=10, connection_calls_per_s=4, bytes_per_s=10_000, connection_bytes_per_s=1_000
    )
    broken, other = Connection(one), Connection(one)
    assert taken(lambda: broken.take_request(0)) == 4 * BURST_S
    assert taken(lambda: other.take_request(0), 4 * BURST_S) == 4 * BURST_S, "others of the caller go on"
    assert one.refusals == {Quota.CONNECTION_CALLS: 1}
    assert taken(lambda: Connection(one).take_request(0)) == 2 * BURST_S
    assert one.refusals[Quota.CALLS] == 1
    assert taken(lambda: broken.take_bytes(1_000)) == BURST_S
    assert taken(lambda: other.take_bytes(1_000)) == BURST_S
    assert one.refusals[Quota.CONNECTION_BYTES] == 2


def test_partitions_that_calls_name_have_rates_of_their_own() -> None:
    clock = Clock()
    one = party(clock, partitions_per_s=1_000, connection_partitions_per_s=400)
    broken, other = Connection(one), Connection(one)
    assert taken(lambda: broken.take_partitions(100)) == 4 * BURST_S
    with pytest.raises(ResourceExhausted, match="MUSTER_QUOTA_CONNECTION_PARTITIONS_PER_S"):
        broken.take_partitions(1)
    broken.take_request(0)
    assert taken(lambda: other.take_partitions(100), 4 * BURST_S) == 4 * BURST_S, "others of the caller go on"
    third = Connection(one)
    third.take_partitions(1_000)
    assert taken(lambda: third.take_partitions(100)) == 0, "as many as the caller may name are named"
    assert one.refusals == {Quota.CONNECTION_PARTITIONS: 2, Quota.PARTITIONS: 1}
    assert not broken.is_at_rest(clock.s)
    clock.s += 1
    assert taken(lambda: broken.take_partitions(100)) == 4, "and its rate after that"


async def test_open_calls_and_connections_of_a_caller_end_at_their_limits() -> None:
    of = quotas(Clock(), connections=2, open_calls=4)
    callers = Callers(of)
    first, second, third, stranger = (
        f"ipv4:10.0.0.{host}:{port}" for host, port in ((1, 1), (1, 2), (1, 3), (2, 1))
    )
    assert [await callers.begin(first) for _ in range(2)] == [None] * 2
    assert await callers.begin(second) is None
    assert await callers.begin(third) is Quota.CONNECTIONS
    assert await callers.begin(first) is None
    assert await callers.begin(first) is Quota.OPEN_CALLS
    assert await callers.begin(stranger) is None
    await callers.end(1)
    assert await callers.begin(first) is None
    await callers.end()
    assert await callers.begin(third) is None
    await callers.end()


async def test_open_calls_of_others_leave_each_connection_its_share() -> None:
    of = quotas(Clock(), connections=2, open_calls=4)
    callers = Callers(of)
    broken, calm = "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2"
    assert [await callers.begin(broken) for _ in range(5)] == [None] * 4 + [Quota.OPEN_CALLS]
    assert [await callers.begin(calm) for _ in range(3)] == [None] * 2 + [Quota.OPEN_CALLS]
    await callers.end()


async def test_open_calls_of_any_number_of_connections_end_at_twice_their_limit() -> None:
    of = quotas(Clock(), open_calls=4)
    callers = Callers(of)
    begun = [await callers.begin(f"ipv4:10.0.0.1:{port}") for port in range(20)]
    assert begun == [None] * 8 + [Quota.OPEN_CALLS] * 12
    await callers.end()


@pytest.mark.parametrize("quota", [Quota.CALLS, Quota.COMMITS, Quota.BYTES, Quota.NEW_GROUPS])
def test_a_calm_connection_has_its_share_of_what_others_use_up(quota: Quota) -> None:
    clock = Clock()
    one = party(clock, **{quota.value: 100})
    broken = [Connection(one) for _ in range(3)]
    calm = Connection(one)

    def take(connection: Connection) -> int:
        return taken(lambda: one.take(quota, 1, clock.s, connection.share_of))

    total = refused = 0
    for _ in range(100):
        clock.s += 0.1
        total += sum(map(take, broken))
        try:
            one.take(quota, 1, clock.s, calm.share_of)
            total += 1
        except ResourceExhausted:
            refused += 1
    assert refused == 0
    burst_s = CREATION_BURST_S if quota is Quota.NEW_GROUPS else BURST_S
    assert total <= 100 * (burst_s + 11) + 4, "all together have the rate of the caller and little more"
    sum(map(take, broken))
    # with a calm one that has asked for little, who may catch up
    assert 20 <= take(calm) <= 25 * burst_s


def test_frames_that_are_no_calls_have_the_rate_of_calls_once_more() -> None:
    clock = Clock()
    one = Connection(party(clock, connection_calls_per_s=4))
    assert taken(lambda: one.take_request(0)) == 4 * BURST_S
    assert [one.takes_frames(4) for _ in range(BURST_S + 1)] == [True] * BURST_S + [False]
    clock.s += 1
    assert one.takes_frames(1)
    assert Connection(party(clock)).takes_frames(1 << 30), "0 is no limit"


def test_frames_of_a_caller_wait_for_what_all_its_connections_have_sent_too_many() -> None:
    clock = Clock()
    one = party(clock, frames_per_s=100)
    first, second = Connection(one), Connection(one)
    assert first.wait_for_frames_s(100 * BURST_S) == 0
    assert first.wait_for_frames_s(100) == pytest.approx(1, abs=0.02), "until it has paid back"
    clock.s += 0.5
    assert first.wait_for_frames_s(0) == pytest.approx(0.51, abs=0.02)
    assert one.refusals == {Quota.FRAMES: 2}, "each wait is shown"
    clock.s += 0.5
    assert second.wait_for_frames_s(49) == 0, "its share"
    assert Connection(party(clock, frames_per_s=100)).wait_for_frames_s(100 * BURST_S) == 0, "another caller"
    free = Connection(party(clock))
    assert free.wait_for_frames_s(1 << 30) == 0, "0 is no limit"


async def test_who_is_at_rest_is_forgotten() -> None:
    clock = Clock()
    of = quotas(clock, calls_per_s=1, connection_calls_per_s=1)
    callers = Callers(of)
    await callers.begin()
    clock.s += 100
    of.sweep()
    assert [one.open_calls for one in of.parties()] == [1]
    await callers.end()
    clock.s += BURST_S
    await callers.begin()
    await callers.end()
    of.sweep()
    assert len(list(of.parties())) == 1, "its bucket is not full"
    clock.s += 1
    of.sweep()
    assert list(of.parties()) == []
    of.close()


async def test_callers_at_rest_are_forgotten_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIM-39: twenty thousand held the loop for a quarter of a second."""
    monkeypatch.setattr(quotas_module, "_SWEEP_S", 0.0)
    clock = Clock()
    of = quotas(clock, calls_per_s=1)
    callers = Callers(of)
    for number in range(1_000):
        await callers.begin(f"ipv4:10.0.{number >> 8}.{number & 255}:1")
    await callers.end()
    clock.s += 100
    left = [len(list(of.parties()))]
    while left[-1]:
        await asyncio.sleep(0.001)
        left.append(len(list(of.parties())))
    assert max(before - after for before, after in pairwise(left)) <= 200
    of.close()


async def test_who_comes_again_while_callers_are_forgotten_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-39: it was counted anew beside its open calls, as a caller that has none."""
    monkeypatch.setattr(quotas_module, "_SWEPT_AT_ONCE", 1)
    clock = Clock()
    of = quotas(clock, open_calls=1)
    callers = Callers(of)
    first, second = "ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"
    for peer in (first, second):
        await callers.begin(peer)
    await callers.end()
    steps = of._sweep_in_steps()
    for _ in range(3):  # both connections, and the first of the callers
        next(steps)
    assert [party.name for party in of.parties()] == ["10.0.0.2"]
    of.sweep(full=True)  # as where a server knows as many connections as it may
    await callers.begin(second)
    for _ in steps:
        pass
    assert [party.open_calls for party in of.parties()] == [1]
    await callers.end()
    of.close()


async def test_the_first_callers_of_many_are_shown_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    of = quotas(clock, calls_per_s=1)
    for number in range(5_000):
        of._party(f"host-{number}").taken[Quota.CALLS] = number * 7_919 % 5_000
    rests = 0

    async def rest(_: LoopShare) -> None:
        nonlocal rests
        rests += 1

    monkeypatch.setattr(LoopShare, "rest", rest)
    servicer = QuotaServicer(of, Access())
    context = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:4")
    shown = await servicer.DescribeQuotas(quotas_pb2.DescribeQuotasRequest(limit=50), context)
    most = sorted(of.parties(), key=lambda one: -one.taken[Quota.CALLS])
    assert [caller.name for caller in shown.callers] == [one.name for one in most[:50]]
    assert shown.known == 5_000
    assert rests >= 3
    of.close()


async def test_a_calm_connection_is_kept_while_its_caller_is_refused_something() -> None:
    clock = Clock()
    of = quotas(clock, calls_per_s=10)
    callers = Callers(of)
    calm, broken = "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2"
    for _ in range(60):
        clock.s += 1
        assert await callers.begin(calm) is None
        await callers.end()
        while await callers.begin(broken) is None:
            pass
        await callers.end()
        of.sweep()
    of.sweep(full=True)
    assert [one.known for one in of.parties()] == [0]
    of.close()


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:5123", "10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:5123", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:5123", "10.0.0.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5123", "fe80::/64"),
        ("unix:", "local"),
    ],
)
def test_hosts_stand_for_those_who_prove_nothing(peer: str, host: str) -> None:
    assert host_of(peer) == host


# --- the file


RULES = """
[[quota]]
caller = "10.0."
connections = 1

[[quota]]
caller = "10.0.0.7"
connections = 0
open_calls = 1

[[quota]]
groups = "batch-"
commits_per_s = 1

[[quota]]
groups = "batch-large-"
commits_per_s = 2
"""


async def test_the_longest_rule_that_fits_a_caller_holds(tmp_path: Path) -> None:
    (tmp_path / "quotas.toml").write_text(RULES)
    of = quotas(Clock(), tmp_path / "quotas.toml", connections=2)
    callers = Callers(of)
    assert await callers.begin("ipv4:10.0.0.1:1") is None
    assert await callers.begin("ipv4:10.0.0.1:2") is Quota.CONNECTIONS
    assert await callers.begin("ipv4:10.0.0.7:1") is None
    assert await callers.begin("ipv4:10.0.0.7:1") is Quota.OPEN_CALLS
    assert [await callers.begin(f"ipv4:10.1.0.1:{port}") for port in (1, 2, 3)] == [
        None,
        None,
        Quota.CONNECTIONS,
    ]
    await callers.end()
    of.close()


def test_groups_of_a_prefix_share_a_quota_whoever_calls(tmp_path: Path) -> None:
    (tmp_path / "quotas.toml").write_text(RULES)
    of = quotas(Clock(), tmp_path / "quotas.toml")
    assert of.has_groups
    assert taken(lambda: of.take_of_groups(Quota.COMMITS, "batch-1", 1)) == BURST_S
    with pytest.raises(ResourceExhausted, match="groups batch-… have the quota of 1 commits a second"):
        of.take_of_groups(Quota.COMMITS, "batch-2", 1)
    assert taken(lambda: of.take_of_groups(Quota.COMMITS, "batch-large-1", 1)) == 2 * BURST_S
    assert taken(lambda: of.take_of_groups(Quota.COMMITS, "other", 1)) == 10_000
    assert taken(lambda: of.take_of_groups(Quota.CALLS, "batch-1", 1)) == 10_000


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[quota]]\ncalls_per_s = 1", "quota 1: name either `caller` or `groups`"),
        ('[[quota]]\ncaller = "a"\ngroups = "b"', "name either `caller` or `groups`"),
        ('[[quota]]\ngroups = "b"\nstreams = 1', "quota 1: groups have no quota of streams"),
        ('[[quota]]\ncaller = "a"\ncalls = 1', "quota 1: calls: there is no such field"),
        ('[[quota]]\ncaller = "a"\ncalls_per_s = -1', "quota 1: calls_per_s: input should be greater"),
        ('[quota]\ncaller = "a"', "quota: each begins with [[quota]]"),
        ('[[quota]]\ncaller = "a"\n[[quota]]\ncalls_per_s = 1\nx = 1', "quota 2: x: there is no such field"),
        ("[[quota]]\nx = 1\n[[quota]]\ny = 1", "quota 1: x: there is no such field; quota 2: y: there is"),
        ("[[quota]", "line 1"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_start(tmp_path: Path, text: str | None, named: str) -> None:
    file = tmp_path / "quotas.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(StartupError, match="MUSTER_QUOTA_FILE") as error:
        quotas(Clock(), file)
    assert named in str(error.value)


async def test_a_refusal_names_what_sets_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text(
        '[[quota]]\ncaller = "batch"\ntotal_members = 1\n[[quota]]\ngroups = "a"\ntotal_members = 1\n'
    )
    of = quotas(Clock(), file, total_members=1)
    texts = {}
    for who, group_id in (("batch-7", "x"), ("web", "x"), ("", "a-1")):
        full = of.full_with(Quota.TOTAL_MEMBERS, group_id, 2, who)
        assert full is not None
        texts[full.name] = str(full.refusal(Quota.TOTAL_MEMBERS, full.now_s()))
    of.close()
    in_file = "(total_members in the file of MUSTER_QUOTA_FILE)"
    places = {"batch-7": in_file, "web": "(MUSTER_QUOTA_TOTAL_MEMBERS)", "a": in_file}
    assert texts.keys() == places.keys()
    assert all(place in texts[name] for name, place in places.items())


async def test_a_file_that_changes_is_in_force_for_who_is_there_and_one_that_cannot_be_used_is_not(
    tmp_path: Path,
) -> None:
    clock = Clock()
    file = tmp_path / "quotas.toml"
    file.write_text('[[quota]]\ncaller = "10."\nopen_calls = 1\n[[quota]]\ngroups = "a"\ncommits_per_s = 1\n')
    of = quotas(clock, file, connection_calls_per_s=3)
    callers = Callers(of)
    assert [await callers.begin() for _ in range(2)] == [None, Quota.OPEN_CALLS]
    assert taken(lambda: of.take_of_groups(Quota.COMMITS, "a1", 1)) == BURST_S
    assert not await of.renew()

    file.write_text(
        '[[quota]]\ncaller = "10."\nopen_calls = 2\nconnection_calls_per_s = 0\n'
        '[[quota]]\ngroups = "a"\ncommits_per_s = 2\n[[quota]]\ngroups = "b"\ncommits_per_s = 1\n'
    )
    assert await of.renew()
    assert [await callers.begin() for _ in range(2)] == [None, Quota.OPEN_CALLS]
    assert taken(lambda: of.take_of_groups(Quota.COMMITS, "a1", 1)) == 0, "what was used up is used up"
    clock.s += 1
    assert taken(lambda: of.take_of_groups(Quota.COMMITS, "a1", 1)) == 2
    assert taken(lambda: of.take_of_groups(Quota.COMMITS, "b1", 1)) == BURST_S

    file.write_text("[[quota]]\ncalls = 1")
    assert not await of.renew()
    assert await callers.begin() is Quota.OPEN_CALLS

    file.write_text("")
    assert await of.renew()
    assert [await callers.begin() for _ in range(3)] == [None] * 3
    assert taken(lambda: of.take_of_groups(Quota.COMMITS, "a1", 1)) == 10_000
    await callers.end()
    of.close()


# --- on a server


class Topics(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    async def ListTopics(
        self, request: discovery_pb2.ListTopicsRequest, context: Any
    ) -> discovery_pb2.ListTopicsResponse:
        return discovery_pb2.ListTopicsResponse()


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[str]:
    server = RpcServer(ServerSettings(), quotas=QuotaSettings.model_validate({**OFF, **limits}))
    server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, Topics())
    port = await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def asked(channel: grpc.aio.Channel, names: int = 0) -> grpc.aio.AioRpcError | None:
    stub: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
    try:
        await stub.ListTopics(discovery_pb2.ListTopicsRequest(names=["n" * 200] * names), timeout=30)
    except grpc.aio.AioRpcError as error:
        return error
    return None


@pytest.mark.cluster
async def test_a_call_above_a_quota_is_told_when_to_try_again() -> None:
    async with served(calls_per_s=1) as address, grpc.aio.insecure_channel(address) as channel:
        answers = [await asked(channel) for _ in range(BURST_S + 3)]
        assert answers[:BURST_S] == [None] * BURST_S
        error = answers[-1]
        assert error is not None
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(error.trailing_metadata())
        status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
        delay = error_details_pb2.RetryInfo()
        assert status.details[0].Unpack(delay)
        assert 0 < delay.retry_delay.ToMilliseconds() <= 2_000
        assert trailers["grpc-retry-pushback-ms"] == str(delay.retry_delay.ToMilliseconds())


@pytest.mark.cluster
async def test_a_server_reads_the_file_again_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text("")

    async def is_refused() -> bool:
        return await asked(channel) is not None

    async with served(file=file) as address, grpc.aio.insecure_channel(address) as channel:
        assert not await is_refused()
        file.write_text('[[quota]]\ncaller = "127."\nconnection_calls_per_s = 1\n')
        await until(is_refused, "the new quota")
        file.write_text("[[quota]]\ncaller = '127.'\nconnection_calls_per_s = 0\n")

        async def is_free() -> bool:
            return not any([await is_refused() for _ in range(2 * BURST_S)])

        await until(is_free, "no quota any more")


@pytest.mark.cluster
async def test_bytes_of_requests_count_and_are_shown() -> None:
    async with served(connection_bytes_per_s=1_000) as address, grpc.aio.insecure_channel(address) as channel:
        assert await asked(channel, names=100) is None, "a request that is larger than the burst"
        assert await asked(channel) is not None
        async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as other:
            assert await asked(other) is None
            stub: Any = quotas_pb2_grpc.QuotaServiceStub(other)
            shown = await stub.DescribeQuotas(quotas_pb2.DescribeQuotasRequest(), timeout=30)
            with pytest.raises(grpc.aio.AioRpcError, match="at most 1,000"):
                await stub.DescribeQuotas(quotas_pb2.DescribeQuotasRequest(limit=1_001), timeout=30)
        (caller,) = shown.callers
        use = {one.quota: one for one in caller.uses}
        assert (caller.name, shown.known, caller.HasField("refused_ago_ms")) == ("127.0.0.1", 1, True)
        assert (use["connection_bytes_per_s"].limit, use["connection_bytes_per_s"].refused) == (1_000, 1)
        assert use["connections"].used == 1
        assert use["bytes_per_s"].used > 20_000
        assert {one.quota: one.limit for one in shown.defaults} == {**OFF, "connection_bytes_per_s": 1_000}


def test_a_connection_ends_once_its_caller_gives_up_too_many_calls_and_it_many_of_them() -> None:
    clock = Clock()
    one = party(clock, resets_per_s=100)
    first, second = Connection(one), Connection(one)
    assert not any(first.reset() for _ in range(100 * BURST_S)), "within the quota"
    assert first.reset()
    assert not any(second.reset() for _ in range(99)), "a worker that was not answered in time"
    assert second.reset()
    clock.s += 10
    assert not first.reset()
    free = Connection(party(clock))
    assert not any(free.reset() for _ in range(10_000)), "0 is no limit"


def test_a_connection_that_gives_up_a_call_now_and_then_outlives_others_that_give_up_many() -> None:
    """One that has been open for weeks has given up its hundred at some time."""
    clock = Clock()
    one = party(clock, resets_per_s=100)
    old, broken = Connection(one), Connection(one)
    for _ in range(200):
        clock.s += 60
        assert not old.reset()
    ended = 0
    for _ in range(60):
        clock.s += 1
        ended += [broken.reset() for _ in range(500)].count(True)
        assert not old.reset()
    assert ended > 20_000


async def test_calls_that_wait_on_a_connection_that_is_being_ended_are_not_looked_at() -> None:
    named: list[str] = []

    class Named(Cuts):
        def soon(self, peer: str, **why: int) -> None:
            named.append(peer)

    settings = QuotaSettings.model_validate({**OFF, "resets_per_s": 10})
    here = Quotas(settings, Clock(), cuts=Named())
    broken, other = Call("ipv4:10.0.0.1:1"), Call("ipv4:10.0.0.1:2")
    for _ in range(100):
        here.given_up(broken)
    assert named == [broken.peer()]
    for _ in range(100):
        with pytest.raises(Unavailable, match="being ended"):
            here.enter(broken)
        here.given_up(broken)
    assert named == [broken.peer()] * 2, "should it not have been found"
    here.given_up(other)
    assert taken(lambda: here.enter(other), 1) == 1


async def test_another_connection_with_the_port_of_one_that_was_ended_is_served() -> None:
    """Its calls got no answer for a minute, and it was ended for the first one that it gave up."""
    clock, named = Clock(), list[str]()

    class Named(Cuts):
        def soon(self, peer: str, **why: int) -> None:
            named.append(peer)

    here = Quotas(QuotaSettings.model_validate({**OFF, "resets_per_s": 10}), clock, cuts=Named())
    one, other = Call("ipv4:10.0.0.1:1"), Call("ipv4:10.0.0.1:2")
    for call in (one, other):
        for _ in range(100):
            here.given_up(call)
    clock.s += 4.9
    with pytest.raises(Unavailable, match="being ended"):
        here.enter(one)
    clock.s += 0.2
    assert taken(lambda: here.enter(one), 1) == 1
    for _ in range(99):
        here.given_up(one)
    assert named == [one.peer(), other.peer()]
    here.given_up(one)
    assert named == [one.peer(), other.peer(), one.peer()]


@pytest.mark.cluster
async def test_pings_are_answered_however_many_come() -> None:
    """gRPC spends more on each ping of a connection that it ends for them than on the one before."""
    async with served() as address:
        pinged = http2.Connection(address)

        def answered() -> int:
            for _ in range(10):
                pinged.ping(1_000)
                pinged.poll(0.1)
            for _ in range(100):
                if pinged.frames.get(http2.PING, 0) == 10_000 or pinged.dead:
                    break
                pinged.poll(0.1)
            return pinged.frames.get(http2.PING, 0)

        assert await asyncio.to_thread(answered) == 10_000
        assert (pinged.dead, pinged.goaway) == (False, "")
        pinged.close()


@pytest.mark.cluster
@pytest.mark.parametrize("path", [HEALTH + "Check", "/no.such.Service/Method", TOPICS + "ListTopics"])
async def test_who_gives_up_calls_without_end_loses_the_connection(path: str) -> None:
    """Rapid reset (CVE-2023-44487)."""
    async with served(resets_per_s=20) as address, grpc.aio.insecure_channel(address) as channel:
        assert await asked(channel) is None
        async with asyncio.timeout(120):
            await asyncio.to_thread(given_up_until_cut, address, path)
        assert await asked(channel) is None, "who gives up nothing keeps its connection"


def given_up_until_cut(address: str, path: str) -> int:
    """A connection that gives up calls until it is ended; returns the port that it came from."""
    attacker = http2.Connection(address)
    block, cancelled = http2.headers(path), struct.pack(">I", 8)
    for stream in range(1, 20_000, 2):
        attacker.send(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block))
        attacker.send(http2.frame(http2.RESET, 0, stream, cancelled))
        attacker.poll(0.001)
        if attacker.dead:
            break
    attacker.close()
    assert attacker.dead
    return attacker.port


@pytest.mark.cluster
async def test_a_call_on_a_connection_with_the_port_of_one_that_was_ended_has_an_answer() -> None:
    """It had none, not even a status: its caller waited as long as it would."""
    path = TOPICS + "ListTopics"
    async with served(resets_per_s=20) as address:

        def has_answer() -> bool:
            other = http2.Connection(address, port=given_up_until_cut(address, path))
            call = other.open(path, b"")
            for _ in range(300):
                other.poll(0.1)
                if call in other.ended or other.dead:
                    break
            other.close()
            return call in other.ended

        async with asyncio.timeout(120):
            assert await asyncio.to_thread(has_answer)


async def test_calls_that_were_given_up_on_a_connection_that_is_being_ended_are_not_answered() -> None:
    statuses: list[grpc.StatusCode] = []

    class Open(Call):
        async def abort(self, status: grpc.StatusCode, *_: object) -> None:
            statuses.append(status)

    class Unfound(Cuts):
        def soon(self, peer: str, **why: int) -> None:
            pass

    async def looked_at(_: object, __: object) -> None:
        raise AssertionError

    here = Quotas(QuotaSettings.model_validate({**OFF, "resets_per_s": 10}), Clock(), cuts=Unfound())
    call = Open("ipv4:10.0.0.1:1")
    for _ in range(100):
        here.given_up(call)
    serve = _rationed("Method", looked_at, here)
    given_up = asyncio.ensure_future(serve(None, call))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert not statuses
    await serve(None, call)
    assert statuses == [grpc.StatusCode.UNAVAILABLE]
