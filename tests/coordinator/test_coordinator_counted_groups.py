"""Whom groups of a process count for while they come and go (LIM-61)."""

import asyncio

import pytest
from muster_coordinator.api.counted_groups import CountedGroups
from muster_core.config import GroupConfig
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.members.member import Member
from muster_runtime.rpc.quotas import Quotas, QuotaSettings

GONE_S = 0.2


class Here:
    """A process with one shard, whose groups a test puts there and takes away."""

    def __init__(self) -> None:
        self.quotas = Quotas(QuotaSettings())
        self._core = Shard(0, GroupConfig())
        self.counted = CountedGroups(self.quotas, lambda: [self._core], lambda _: self._core)

    def stored(self, group_id: str) -> Group:
        """The log has a group."""
        group = self._core.groups[group_id] = Group(group_id, 0, 0)
        return group

    def deleted(self, group: Group) -> None:
        """The log has removed it."""
        del self._core.groups[group.group_id]
        self.counted.ended(group)

    def groups_of(self, *names: str) -> list[int]:
        """How many groups count for each."""
        return [self.quotas.of_callers.of(name).groups for name in names]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setattr("muster_coordinator.api.counted_groups._GONE_S", GONE_S)
    return Here()


async def test_a_group_that_is_made_again_counts_for_who_made_it_last(here: Here) -> None:
    here.counted.begun("one", "g")
    here.deleted(here.stored("g"))
    here.counted.begun("other", "g")
    here.stored("g")
    await here.counted.look()
    assert here.groups_of("one", "other") == [0, 1]


async def test_a_group_is_gone_when_nobody_has_begun_it_anew_for_long(here: Here) -> None:
    """Also if the log has not stored it yet by when it would have been gone."""
    here.counted.begun("one", "g")
    here.deleted(here.stored("g"))
    here.counted.begun("one", "g")
    await asyncio.sleep(1.5 * GONE_S)
    await here.counted.look()
    assert here.groups_of("one") == [1], "it is on its way"
    here.deleted(here.stored("g"))
    await asyncio.sleep(1.5 * GONE_S)
    await here.counted.look()
    assert here.groups_of("one") == [0]


async def test_it_is_known_at_once_whose_a_loaded_group_is(here: Here) -> None:
    """For a second after each load the assignments of all callers waited for each other (LIM-69)."""
    member = Member("m")
    member.host = "10.0.0.1"
    here.stored("g").add(member)
    here.stored("nobody's")
    assert [here.counted.whose(one) for one in ("g", "nobody's", "none")] == ["10.0.0.1", "", ""]
    here.counted.begun("one", "g")
    assert here.counted.whose("g") == "one"
