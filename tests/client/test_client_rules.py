"""Rules of docs/safety.md that the client keeps, each at the place where it matters most."""

import time
from typing import Any, cast

import muster
import pytest
from muster import _clock
from muster._cluster.discovery import FoundCoordinator
from muster._cluster.link import GroupLink, address_of
from muster_protos.muster.v1 import common_pb2, discovery_pb2


class Discovery:
    """Names the owners that the test says, and remembers what was asked."""

    def __init__(self, *owners: tuple[int, int]) -> None:
        self.owners = list(owners)
        self.seen_epochs: list[int] = []

    async def find(self, group_id: str, seen_epoch: int) -> FoundCoordinator:
        self.seen_epochs.append(seen_epoch)
        port, epoch = self.owners.pop(0)
        coordinator = common_pb2.Coordinator(node_id="c", host="10.0.0.1", port=port, shard_epoch=epoch)
        result = discovery_pb2.FindCoordinatorResponse.Result(group_id=group_id, coordinator=coordinator)
        return FoundCoordinator(result, "discovery:1")

    def doubt(self, server: str) -> None:
        assert server == "discovery:1"


def link_with(discovery: Discovery) -> GroupLink:
    return GroupLink("g", cast(Any, discovery), cast(Any, None))


async def test_an_earlier_owner_is_not_followed() -> None:
    link = link_with(Discovery((1, 7), (2, 6), (3, 8)))
    assert await link.locate() == "10.0.0.1:1"
    assert not link.follow(common_pb2.Coordinator(host="10.0.0.1", port=4, shard_epoch=6))
    assert link.address == "10.0.0.1:1"
    link.forget("10.0.0.1:1")
    assert await link.locate() == "10.0.0.1:3", "the second one is an earlier owner: asked again"


async def test_a_lookup_says_which_epoch_was_seen() -> None:
    discovery = Discovery((1, 7), (2, 9))
    link = link_with(discovery)
    await link.locate()
    assert link.accept(8)
    assert not link.accept(7)
    link.forget("10.0.0.1:1")
    await link.locate()
    assert discovery.seen_epochs == [0, 8]


def test_a_life_is_measured_by_the_clock_that_counts_sleep() -> None:
    assert getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) == _clock._CLOCK
    before_ms = time.clock_gettime_ns(_clock._CLOCK) // 1_000_000
    assert 0 <= _clock.boot_ms() - before_ms < 60_000


def test_the_defaults_find_a_crashed_member_in_three_seconds() -> None:
    config = muster.MemberConfig()
    assert (config.disconnect_grace_ms, config.beat_interval_ms) == (3_000, 500)


@pytest.mark.parametrize(("host", "address"), [("10.0.0.7", "10.0.0.7:7410"), ("fd00::7", "[fd00::7]:7410")])
def test_an_address_of_any_kind_can_be_connected_to(host: str, address: str) -> None:
    assert address_of(host, 7410) == address
