"""Metrics of single groups: some have a name, all others are told together, and never more than that."""

import pytest
from muster_coordinator.telemetry import by_group, metrics
from muster_coordinator.telemetry.by_group import NamedGroups
from muster_core.position import Position
from muster_core.state.group import Group
from muster_core.state.members.member import Member
from muster_core.state.offsets.offset_store import CommittedOffset
from muster_runtime.telemetry import Metric

NOW_MS = 10_000_000


def group_of(name: str, members: int = 0, committed_at_ms: int = 0) -> Group:
    group = Group(name, 0, 10)
    for number in range(members):
        group.add(Member(f"{name}-{number}"))
    if committed_at_ms:
        group.offsets.put(("t", 0), CommittedOffset(4, -1, "", committed_at_ms, 0))
    return group


async def told(named: NamedGroups, groups: list[Group]) -> dict[Metric, dict[str, float]]:
    """One reading: metric → label → value."""
    one = named.round()
    for group in groups:
        await one.see(group)
    found: dict[Metric, dict[str, float]] = {}
    for sample in one.samples(NOW_MS):
        assert sample.labels[0] not in found.setdefault(sample.metric, {}), "a series is told once"
        found[sample.metric][sample.labels[0]] = sample.value
    return found


async def names(named: NamedGroups, groups: list[Group]) -> set[str]:
    return set((await told(named, groups)).get(metrics.GROUP_MEMBERS, {}))


async def test_there_are_never_more_names_than_the_setting_says() -> None:
    named = NamedGroups(2)
    groups = [group_of(name, members=1) for name in "abc"]
    assert await names(named, groups[:2]) == {"a", "b"}
    assert await names(named, groups) == {"a", "b", "other"}
    assert await names(named, [group_of(str(number), members=1) for number in range(1_000)]) == {
        "0",
        "1",
        "other",
    }


async def test_a_group_keeps_its_name_and_frees_it_when_it_goes() -> None:
    named = NamedGroups(2)
    a, b, c = (group_of(name, members=1) for name in "abc")
    await told(named, [a, b])
    assert await names(named, [c, b, a]) == {"a", "b", "other"}
    assert await names(named, [c, b]) == {"b", "c"}
    assert await names(named, []) == set()


async def test_groups_at_work_have_names_before_those_without_members() -> None:
    named = NamedGroups(2)
    idle = [group_of(name) for name in "ab"]
    assert await names(named, idle) == {"a", "b"}
    working = group_of("w", members=3)
    assert await names(named, [*idle, working]) == {"a", "w", "other"}
    assert await names(named, [*idle, working, group_of("v", members=1)]) == {"v", "w", "other"}
    assert await names(named, [*idle, working]) == {"w", "a", "other"}


async def test_all_others_are_told_together() -> None:
    named = NamedGroups(1)
    groups = [
        group_of("a", members=1, committed_at_ms=NOW_MS - 1_000),
        group_of("b", members=2, committed_at_ms=NOW_MS - 5_000),
        group_of("c", members=3, committed_at_ms=NOW_MS - 3_000),
    ]
    for group in groups[1:]:
        group.owners = {("t", number): ("m", Position(1, 1)) for number in range(2)}
        group.ends.put(("t", 0), 10)
    found = await told(named, groups)
    assert found[metrics.GROUP_MEMBERS] == {"a": 1, "other": 5}
    assert found[metrics.GROUP_PARTITIONS] == {"a": 0, "other": 4}
    assert found[metrics.GROUP_GENERATION] == {"a": 0}
    assert found[metrics.GROUP_LAST_COMMIT_AGE] == {"a": 1, "other": 5}
    assert found[metrics.GROUP_LAG] == {"other": 12}


async def test_a_group_that_is_called_other_is_among_the_others() -> None:
    named = NamedGroups(5)
    groups = [group_of("other", members=1), group_of("a", members=1)]
    assert (await told(named, groups))[metrics.GROUP_MEMBERS] == {"a": 1, "other": 1}


async def test_without_places_nothing_is_told() -> None:
    assert await told(NamedGroups(0), [group_of("a", members=1)]) == {}


async def test_lag_counts_from_zero_without_a_commit_and_is_never_negative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_group, "ENDS_AT_ONCE", 2)
    group = group_of("a", committed_at_ms=1)
    for number, end in enumerate((3, 7, 100, 0, 5)):  # 4 is committed of the first
        group.ends.put(("t", number), end)
    assert (await told(NamedGroups(1), [group]))[metrics.GROUP_LAG] == {"a": 112}
