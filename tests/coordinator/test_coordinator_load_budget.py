"""A shard that would take more memory than a process may have is refused, and ends no process (LIM-50)."""

import pytest
from coordinator.coordinator_cluster import MemoryCluster, group_of, owns
from coordinator.test_coordinator_answers import commit
from kit.waiting import until_equal
from muster_coordinator.log.load_budget import LoadBudget
from muster_coordinator.log.log_image import LoadFailed, LogImage
from muster_coordinator.settings import CoordinatorSettings, GroupSettings
from muster_coordinator.shard.phase import Phase
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_runtime import memory
from muster_runtime.addresses import Address, parse_addresses

MIB = 1 << 20
LARGE, OTHERS = 1, (0, 2, 3)


async def with_a_large_shard(cluster: MemoryCluster) -> None:
    """A coordinator that fills one shard and is gone."""
    before = await cluster.add("a", join_delay_ms=0)
    await owns(before, 4)
    caller = cluster.caller(before)
    for first in range(0, 4_000, 1_000):
        await commit(caller, group_of(LARGE), "t", range(first, first + 1_000), "m" * 1_000)
    for shard in OTHERS:
        await commit(caller, group_of(shard), "t", range(1))
    assert sum(shard.core.held_bytes for shard in before.shards.values() if shard.core) > 4 * MIB
    cluster.running.remove(before)
    await before.drain_and_stop()


@pytest.mark.cluster
async def test_a_shard_above_the_budget_is_refused_and_the_others_are_served(cluster: MemoryCluster) -> None:
    await with_a_large_shard(cluster)
    after = await cluster.add("b", join_delay_ms=0, max_load_bytes=2 * MIB)
    await owns(after, 3)
    await until_equal(lambda: after.shards[LARGE].phase, Phase.FAILED)
    caller = cluster.caller(after)
    for shard in OTHERS:
        assert await caller.commit(group_of(shard), 5) == error_code.NONE
    assert await caller.commit(group_of(LARGE), 5) == error_code.COORDINATOR_NOT_AVAILABLE
    assert after.shards[LARGE].core is None, "what was read of it is let go"


@pytest.mark.cluster
async def test_a_shard_above_the_budget_stays_with_an_owner_that_has_room(cluster: MemoryCluster) -> None:
    """Who may not load it does not ask for it, and takes the others."""
    await with_a_large_shard(cluster)
    roomy = await cluster.add("c", join_delay_ms=0)
    await owns(roomy, 4)
    small = await cluster.add("b", join_delay_ms=0, max_load_bytes=2 * MIB)
    await until_equal(lambda: len(roomy.serving) + len(small.serving), 4)
    await until_equal(lambda: LARGE in roomy.serving, True)
    caller = cluster.caller(roomy)
    await until_equal(lambda: caller.commit(group_of(LARGE), 5), error_code.NONE)


def image(held_bytes: int) -> LogImage:
    made = LogImage(1, GroupConfig())
    made.core._context.holdings.bytes = held_bytes
    return made


def test_all_that_is_read_and_served_counts_once() -> None:
    served, first, second = image(300), image(500), image(300)
    budget = LoadBudget(1_000, lambda: [served.core, first.core])
    budget.took(first, MIB)
    with pytest.raises(LoadFailed, match=r"come to 300 bytes .* all shards here to 1,100, above the 1,000"):
        budget.took(second, MIB)
    del second
    budget.took(first, MIB)


def test_a_shard_that_brings_little_is_not_refused_for_what_others_hold() -> None:
    full = image(5_000)
    budget = LoadBudget(1_000, lambda: [full.core])
    budget.took(image(3), MIB)
    with pytest.raises(LoadFailed):
        budget.took(image(300), MIB)


def test_without_a_limit_everything_is_loaded() -> None:
    LoadBudget().took(image(1 << 50), 1 << 40)


def settings() -> CoordinatorSettings:
    return CoordinatorSettings(
        listen=Address("127.0.0.1", 0), node_id="a", metadata=parse_addresses("127.0.0.1:1")
    )


@pytest.mark.parametrize(
    ("memory_bytes", "group", "shard", "load"),
    [
        (128 * MIB, 32 * MIB * 2 // 5, 32 * MIB // 5, 32 * MIB * 3 // 5),
        (256 * MIB, 128 * MIB * 2 // 5, 128 * MIB // 5, 128 * MIB * 3 // 5),
        (1 << 30, 896 * MIB * 2 // 5, 896 * MIB // 5, 896 * MIB * 3 // 5),
        (1 << 40, 1 << 30, 512 * MIB, ((1 << 40) - 128 * MIB) * 3 // 5),
        (None, 1 << 30, 512 * MIB, None),
    ],
)
def test_limits_follow_from_the_memory_that_a_process_may_have(
    memory_bytes: int | None,
    group: int,
    shard: int,
    load: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-51."""
    monkeypatch.setattr(memory, "limit_bytes", lambda: memory_bytes)
    config = GroupSettings().to_config()
    assert (config.max_bytes, config.max_bytes_per_shard) == (group, shard)
    assert settings().load_bytes() == load


def test_limits_that_are_set_hold_whatever_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limit_bytes", lambda: 256 * MIB)
    assert GroupSettings(max_bytes=8 * MIB).to_config().max_bytes_per_shard == 128 * MIB // 5
    config = GroupSettings(max_bytes=900 * MIB, max_bytes_per_shard=700 * MIB).to_config()
    assert (config.max_bytes, config.max_bytes_per_shard) == (900 * MIB, 700 * MIB)
