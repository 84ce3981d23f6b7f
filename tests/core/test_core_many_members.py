"""What one call costs that concerns all members of a large group (docs/safety.md, LIM-69, LIM-70)."""

from collections.abc import Callable
from types import ModuleType

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.events import Resume, Suspend
from muster_core.protocol.generations import rebalance
from muster_core.protocol.membership import syncs
from muster_core.protocol.room import Room
from muster_core.state import plan
from muster_core.state.members import claims

MEMBERS = 12
STEP = 4
LONG_MS = 600_000
TIME_MS = 1_000
"""For how long a join phase waits for members."""


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rebalance, syncs):
        monkeypatch.setattr(module, "STEP_MEMBERS", STEP)
    monkeypatch.setattr(rebalance, "_MANY_MEMBERS", MEMBERS)


class Group(list[VirtualMember]):
    """Static members of a group that is stable; the first one leads."""

    def __init__(self, *, room: Room | None = None, members: int = MEMBERS, join: bool = True) -> None:
        self.cluster = VirtualShard(GroupConfig(initial_rebalance_delay_ms=10))
        if room is not None:
            self.cluster.shard.live_in(room)
        super().__init__(VirtualMember(self.cluster, f"m{n}", instance=f"i{n}") for n in range(members))
        for member in self:
            member.session_timeout_ms, member.rebalance_timeout_ms = LONG_MS, TIME_MS
            member.join()
        self.go_on()
        for member in self:
            member.joined()
        if join:
            self.sync()

    @property
    def waiting(self) -> int:
        """How many calls are parked."""
        return sum(member.is_parked for member in self)

    def sync(self) -> None:
        """All sync."""
        for member in (*self[1:], self[0]):
            member.sync({one.member_id: b"x" for one in self} if member is self[0] else None)
        self.go_on()
        for member in self:
            member.synced()

    def go_on(self, ms: int = 200) -> None:
        """Lets as much time pass as what is done in steps takes."""
        for _ in range(ms):
            self.cluster.advance(1)

    def begin(self) -> None:
        """The leader alone comes back, with something new, and its time is up."""
        self[0].protocols = [("range", f"new in {self.cluster.now_ms}".encode())]
        self[0].join()
        self.cluster.advance(TIME_MS)


def answered_of(group: Group, go_on: Callable[[], None]) -> list[int]:
    """How many calls are answered in each turn in which any is."""
    found: list[int] = []
    while before := group.waiting:
        go_on()
        if (now := group.waiting) != before:
            found.append(before - now)
    return found


class Turns:
    """Who asked for a turn, with how much; each waits for `wait_ms`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.wait_ms = 0
        self.room = Room(turn_ms=self._turn_ms)

    def _turn_ms(self, group_id: str, size: int) -> int:
        self.asked.append((group_id, size))
        return self.wait_ms


def test_a_generation_with_many_absent_members_waits_for_one_turn_and_comes_then() -> None:
    """LIM-69."""
    turns = Turns()
    group = Group(room=turns.room)
    assert turns.asked == [], "all came"
    turns.wait_ms = 5_000
    group.begin()
    assert turns.asked == [("g", MEMBERS)]
    group.cluster.advance(4_999)
    assert group[0].is_parked
    group.cluster.advance(1)
    group.go_on()
    assert len(group[0].joined().members) == MEMBERS
    assert turns.asked == [("g", MEMBERS)], "it has its turn once it has waited"
    group.begin()
    assert turns.asked == [("g", MEMBERS)] * 2, "and one for each generation"


def test_a_generation_that_waits_for_its_turn_begins_once_all_are_there() -> None:
    turns = Turns()
    group = Group(room=turns.room)
    turns.wait_ms = 5_000
    group.begin()
    for member in group[1:]:
        member.join()
    group.go_on()
    assert [member.joined().error_code for member in group] == [error_code.NONE] * MEMBERS


def test_a_generation_of_few_waits_for_no_turn() -> None:
    turns = Turns()
    group = Group(room=turns.room, members=3)
    turns.wait_ms = 5_000
    group.begin()
    assert not group[0].is_parked
    assert turns.asked == []


def test_members_are_answered_some_at_a_time() -> None:
    """LIM-70."""
    group = Group()
    for member in group:
        member.join()
    joins = answered_of(group, lambda: group.cluster.advance(1))
    assert sum(joins) == MEMBERS
    assert max(joins) <= STEP
    assert [member.joined().generation for member in group] == [2] * MEMBERS
    for member in (*group[1:], group[0]):
        member.sync({one.member_id: b"y" for one in group} if member is group[0] else None)
    assert max(answered_of(group, lambda: group.cluster.advance(1)) or [MEMBERS]) <= STEP
    assert [member.synced().assignment for member in group] == [b"y"] * MEMBERS


def test_what_comes_while_members_are_answered_waits_until_all_are() -> None:
    group = Group()
    for member in group:
        member.join()
    while group.waiting == MEMBERS:
        group.cluster.advance(1)
    group[0].joined()
    left = group.waiting
    assert left > 0, "others have no answer yet"
    group[0].sync({one.member_id: b"y" for one in group})
    assert group.waiting == left + 1
    assert group.cluster.state() == "CompletingRebalance"
    group.go_on()
    assert group.waiting == 0
    assert group[0].synced().assignment == b"y"


def test_a_suspension_while_members_are_answered_loses_none() -> None:
    group = Group()
    for member in group:
        member.join()
    group.cluster.advance(5)
    assert group.waiting > 0
    group.cluster.feed(Suspend())
    group.cluster.feed(Resume())
    group.go_on()
    codes = {member.joined().error_code for member in group}
    assert codes <= {error_code.NONE, error_code.COORDINATOR_NOT_AVAILABLE}
    for member in group:
        member.join()
    group.go_on()
    assert {member.joined().error_code for member in group} == {error_code.NONE}


@pytest.mark.parametrize("taken", [False, True])
def test_a_leader_that_asks_again_is_told_of_some_members_at_a_time(taken: bool) -> None:
    """Also another process in its place, which is told once the log has it."""
    group = Group(join=False)
    if taken:
        group[0].member_id = ""
    group[0].join()
    turns = 0
    while group[0].is_parked:
        group.cluster.advance(4)
        turns += 1
    assert turns >= MEMBERS // STEP - 1
    assert len(group[0].joined().members) == MEMBERS


@pytest.mark.parametrize("alone", [plan, claims, syncs])
def test_a_plan_for_many_members_is_gone_through_some_at_a_time(
    alone: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIM-17."""
    group = Group(join=False)
    monkeypatch.setattr(alone, "TURN_TOPICS", 4 * STEP)
    group[0].sync({one.member_id: b"x" for one in group})
    turns = 0
    while group[0].is_parked:
        group.cluster.advance(4)
        turns += 1
    assert turns == MEMBERS // (STEP + 1)
    assert group[0].synced().assignment == b"x"


def test_members_that_do_not_sync_go_some_at_a_time() -> None:
    group = Group(join=False)
    group[0].sync({})
    group.go_on()
    group[0].synced()
    before = len(group.cluster.log)
    sizes: list[int] = []
    for _ in range(4 * TIME_MS):
        group.cluster.advance(1)
        if new := [one for _, one in group.cluster.log[before:] if one.HasField("member_left")]:
            sizes.append(len(new))
            before = len(group.cluster.log)
    assert sizes == [STEP, STEP, MEMBERS - 1 - 2 * STEP]
    assert len(group.cluster.shard.groups["g"].members) == 1
    assert group.cluster.state() == "PreparingRebalance", "and a rebalance follows the last of them"


@pytest.mark.parametrize("stored", ["before", "meanwhile", "after"])
def test_who_has_not_gone_at_a_suspension_stays(stored: str) -> None:
    """OWN-12: it may have heard that it works on for as long as nobody knows.

    The records of those who go first are stored before the suspension, during it or after it.
    """
    group = Group(join=False)
    cluster, left = group.cluster, MEMBERS - STEP
    cluster.auto_ack = stored == "before"
    while not cluster.waiting and len(cluster.shard.groups["g"].members) == MEMBERS:
        cluster.advance(1)
    cluster.suspend()
    if stored == "meanwhile":
        cluster.acknowledge()
    group.go_on(20)
    cluster.resume()
    if stored == "after":
        cluster.acknowledge()
    cluster.auto_ack = True
    group.go_on(20)
    assert len(cluster.shard.groups["g"].members) == left
    assert group.cluster.state() == "PreparingRebalance", "what those had who are gone is nobody's"


def test_histories_show_members_as_they_were() -> None:
    group = Group()
    first = group[1].member_id
    group[1].member_id = ""
    group[1].join()
    group.go_on()
    taken = group[1].joined().member_id
    group[2].name = "another"
    for member in group:
        member.join()
    group[0].protocols = [("range", b"new")]
    group[0].join()
    group.go_on()
    before, now = ([*entry.members] for entry in tuple(group.cluster.shard.groups["g"].history)[-2:])
    assert (before[1].member_id, now[1].member_id) == (first, taken)
    assert (before[2].client_id, now[2].client_id) == ("m2", "another")
    assert [a is b for a, b in zip(before[3:], now[3:], strict=True)] == [True] * (MEMBERS - 3)
