"""Large groups are described some members at a time, and as of one generation (LIM-68)."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from coordinator.test_coordinator_answers import MIB, Scripted
from kit.lives.incremental_shard import incremental_of, incremental_shard, joined, settle
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_coordinator.api import answers as module
from muster_coordinator.api import steps
from muster_coordinator.api.answers import Answers
from muster_coordinator.api.rights import Rights
from muster_core import error_code
from muster_core.events import GroupRequest, MemberRange, Request
from muster_core.protocol.incremental.descriptions import TOLD_AS_MEMBER
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    GROUP_STATE_COMPLETING_REBALANCE,
    GROUP_STATE_PREPARING_REBALANCE,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.refusals import InvalidArgument

Describe: TypeAlias = DescribeGroupsRequest | ConsumerGroupDescribeRequest

STEP = 5
CLASSIC = DescribeGroupsRequest(group_ids=["g"])
INCREMENTAL = ConsumerGroupDescribeRequest(group_ids=["g"])
BOTH = [CLASSIC, INCREMENTAL]
LAST_CALL = 1 << 40


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP_MEMBERS", STEP)


class Described:
    """A shard that describes, and what happens between its answers."""

    def __init__(self, members: int, *, incremental: bool = False) -> None:
        self.cluster = incremental_shard(12) if incremental else VirtualShard()
        if incremental:
            settle(*joined(self.cluster, *(f"m{number}" for number in range(members))))
        else:
            for number in range(members):
                VirtualMember(self.cluster, f"m{number}").join()
        self.sizes: list[int] = []
        self.between: Callable[[], object] = lambda: None

    def answer(self, request: GroupRequest, _: str = "", shown: MemberRange | None = None) -> Any:
        call_id = LAST_CALL + len(self.sizes)
        self.cluster.feed(Request(call_id, request, shown=shown))
        answer = self.cluster.answer(call_id)
        assert isinstance(answer, DescribeGroupsResponse | ConsumerGroupDescribeResponse)
        self.sizes.append(len(answer.groups[0].members))
        return answer

    async def described(self, request: Describe = CLASSIC, rights: Rights | None = None) -> Any:
        owned: Any = {0: SimpleNamespace(core=self.cluster.shard, epoch=1)}
        answers = Answers(Scripted(self.answer), owned, MIB, rights or Rights(Access()))
        (group,) = (await answers.describe(request, 1, "")).groups
        return group

    def whole(self, request: Describe = CLASSIC) -> Any:
        return self.answer(request).groups[0]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens when the loop is left to others, once each."""
    happens: list[Callable[[], object]] = []

    async def rest(_: LoopShare) -> None:
        if happens:
            happens.pop(0)()

    monkeypatch.setattr(LoopShare, "rest", rest)
    return happens


@pytest.mark.parametrize(
    ("members", "sizes"), [(0, [0]), (1, [1]), (4, [4]), (5, [5]), (6, [5, 1, 0]), (12, [5, 5, 2, 0])]
)
async def test_it_is_all_there_in_order_whatever_the_steps(members: int, sizes: list[int]) -> None:
    shard = Described(members)
    group = await shard.described()
    assert shard.sizes == sizes
    assert group == shard.whole()
    assert len({member.member_id for member in group.members}) == members


async def test_where_a_generation_ends_meanwhile_it_is_described_once_more(
    between: list[Callable[[], object]],
) -> None:
    shard = Described(12)
    shard.cluster.advance(10_000)
    before = shard.whole()
    assert before.state == GROUP_STATE_COMPLETING_REBALANCE
    between += [lambda: None, lambda: VirtualMember(shard.cluster, "late").join()]
    group = await shard.described()
    assert group == shard.whole()
    assert group.state == GROUP_STATE_PREPARING_REBALANCE
    assert len(group.members) == 13


async def test_a_static_member_that_takes_a_place_is_shown_once(
    between: list[Callable[[], object]],
) -> None:
    """Its new id may come after those that were described already; generation and state stay."""
    shard = Described(12)
    group = shard.cluster.shard.groups["g"]
    between.append(lambda: group.replace(min(group.members), "~new"))
    described = await shard.described()
    assert described == shard.whole()
    assert len(described.members) == 12
    assert described.members[-1].member_id == "~new"


async def test_where_it_never_keeps_still_it_is_described_at_a_stretch(
    between: list[Callable[[], object]],
) -> None:
    shard = Described(12)
    group = shard.cluster.shard.groups["g"]

    def another() -> None:
        group.generation += 1

    between += [another] * 100
    described = await shard.described()
    assert len(described.members) == 12
    assert shard.sizes[-1] == 12
    assert len(shard.sizes) == 2 * module._BEGUN_MOST + 1


async def test_a_shard_that_is_lost_meanwhile_answers_so(between: list[Callable[[], object]]) -> None:
    shard = Described(12)
    lost = DescribeGroupsResponse()
    lost.groups.add(group_id="g", error_code=error_code.NOT_COORDINATOR)

    told: list[Callable[..., Any]] = [shard.answer]
    between.append(lambda: told.append(lambda *_: lost))
    answers = Answers(Scripted(lambda *asked: told[-1](*asked)), {}, MIB, Rights(Access()))
    assert await answers.describe(DescribeGroupsRequest(group_ids=["g"]), 1, "") == lost
    assert shard.sizes == [STEP]


@pytest.mark.parametrize("request_", BOTH)
@pytest.mark.parametrize(("members", "sizes"), [(5, [5]), (12, [5, 5, 2, 0])])
async def test_an_incremental_group_is_all_there_too(
    members: int, sizes: list[int], request_: Describe
) -> None:
    shard = Described(members, incremental=True)
    group = await shard.described(request_)
    assert shard.sizes == sizes
    assert group == shard.whole(request_)
    assert len({member.member_id for member in group.members}) == members


@pytest.mark.parametrize("request_", BOTH)
async def test_no_two_members_of_a_description_have_a_partition(
    request_: Describe, between: list[Callable[[], object]]
) -> None:
    """One is given to somebody else between two steps: all are shown as they were."""
    shard = Described(12, incremental=True)
    before = shard.whole(request_)
    group = incremental_of(shard.cluster)
    first, last = group.members["m0"], group.members["m9"]
    moved = next(iter(first.held))

    def move() -> None:
        kept = {partition: held for partition, held in first.held.items() if partition != moved}
        group.put(replace(first, held=kept))
        group.put(replace(last, held={**last.held, moved: first.held[moved]}))

    between += [lambda: None, move]
    assert await shard.described(request_) == before
    assert group.owners[moved] == "m9"
    assert shard.sizes == [12, 5, 5, 2, 0]


@pytest.mark.parametrize("request_", BOTH)
async def test_an_incremental_group_that_never_keeps_still_is_described_in_steps(
    request_: Describe, between: list[Callable[[], object]]
) -> None:
    """At a stretch one with 500 members that name a thousand topics each held the loop for 170 ms."""
    shard = Described(12, incremental=True)
    before = shard.whole(request_)
    group = incremental_of(shard.cluster)

    def another() -> None:
        member = group.members[max(group.members)]
        group.remove(member.member_id)
        group.epoch += 1
        group.target_epoch += 1

    between += [another] * 100
    described = await shard.described(request_)
    assert shard.sizes == [12, 5, 5, 2, 0]
    assert [one.member_id for one in described.members] == [one.member_id for one in before.members]
    if request_ is not CLASSIC:
        assert {one.member_epoch for one in described.members} == {described.assignment_epoch}


@pytest.mark.parametrize("request_", BOTH)
async def test_an_incremental_group_that_is_another_one_meanwhile_is_described_once_more(
    request_: Describe, between: list[Callable[[], object]]
) -> None:
    shard = Described(12, incremental=True)
    groups = shard.cluster.shard.groups

    def another() -> None:
        group = incremental_of(shard.cluster).as_of_now()
        for member_id in ("m0", "m1"):
            group.remove(member_id)
        groups["g"].incremental = group

    between += [another]
    described = await shard.described(request_)
    assert described == shard.whole(request_)
    assert len(described.members) == 10


@pytest.mark.parametrize("request_", BOTH)
async def test_of_members_that_name_much_fewer_are_described_at_a_time(request_: Describe) -> None:
    """500 that name a thousand topics each held the loop for 170 ms."""
    shard = Described(6, incremental=True)
    group = incremental_of(shard.cluster)
    for member_id in ("m0", "m3"):
        member = group.members[member_id]
        topics = frozenset(f"t{number}" for number in range(STEP * TOLD_AS_MEMBER))
        group.put(replace(member, told=replace(member.told, topics=topics)))
    described = await shard.described(request_)
    assert shard.sizes == [1, 3, 2, 0]
    assert described == shard.whole(request_)


async def test_of_members_that_keep_many_tokens_fewer_are_described_at_a_time() -> None:
    shard = Described(6)
    members = shard.cluster.shard.groups["g"].members
    first = members[min(members)]
    kept = records_pb2.KeptToken(topic="t", partition=1)
    first.kept_tokens = (kept,) * (STEP * TOLD_AS_MEMBER)
    described = await shard.described()
    assert shard.sizes == [1, 5, 0]
    assert described == shard.whole()


@pytest.mark.parametrize(("hides", "sizes"), [("m1", [5]), ("m9", [5, 5, 2]), ("", [5, 5, 2, 0])])
async def test_a_topic_that_the_caller_must_not_see_hides_the_group_whatever_step_it_is_in(
    hides: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-68: to look at the topics of 5,000 members at a stretch held the loop for 50 ms."""
    shard = Described(12, incremental=True)
    rights = Rights(Access())
    monkeypatch.setattr(rights, "sees_member", lambda _: lambda member: member.member_id != hides)
    described = await shard.described(INCREMENTAL, rights)
    assert shard.sizes == sizes
    if hides:
        assert described.error_code == error_code.TOPIC_AUTHORIZATION_FAILED
        assert (described.group_id, described.shard_epoch) == ("g", 1)
        assert not described.members
    else:
        assert described == shard.whole(INCREMENTAL)


async def test_of_members_that_have_many_bytes_fewer_are_described_at_a_time() -> None:
    shard = Described(6)
    members = shard.cluster.shard.groups["g"].members
    members[min(members)].assignment = bytes(STEP << 12)
    described = await shard.described()
    assert shard.sizes == [1, 5, 0]
    assert described == shard.whole()


@pytest.mark.parametrize("room", [-1, 0])
async def test_of_several_groups_each_is_counted_member_by_member(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask 17 MB for their size held the loop for 40 ms."""
    shard = Described(12)
    rests: list[float] = []

    async def rest(share: LoopShare) -> None:
        rests.append(share.taken_s)

    monkeypatch.setattr(LoopShare, "rest", rest)
    monkeypatch.setattr(LoopShare, "taken_s", steps.CUT_S * 2)
    members_bytes = sum(member.ByteSize() for member in shard.whole().members)
    answers = Answers(Scripted(shard.answer), {}, 2 * members_bytes + room, Rights(Access()))
    describing = answers.describe(DescribeGroupsRequest(group_ids=["g", "g"]), 1, "")
    if room < 0:
        with pytest.raises(InvalidArgument):
            await describing
    else:
        assert len((await describing).groups) == 2
        assert len(rests) == 2 * (4 + 12)
