import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kit.metadata.metadata_stand_in import DEAD, LIVE, MetadataStandIn, catalog, cluster
from kit.waiting import until, until_equal
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime import clock
from muster_runtime.addresses import Address
from muster_runtime.cluster.merge import ForeignClusterError, merge_catalog, merge_cluster
from muster_runtime.cluster.view import ClusterView, Watcher
from muster_runtime.rpc.channels import Channels
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.rpc.trust.trust import Trust
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

WATCHER = Watcher("discovery", "d1", ("one",))


@pytest.fixture
async def pair() -> AsyncIterator[tuple[MetadataStandIn, MetadataStandIn]]:
    first, second = await MetadataStandIn().start(), await MetadataStandIn().start()
    yield first, second
    await first.stop()
    await second.stop()


class Watching:
    """A view of some instances, stopped at the end."""

    def __init__(self, *instances: MetadataStandIn, first_view_timeout_ms: int = 3_000) -> None:
        self.channels = Channels([Address("127.0.0.1", instance.port) for instance in instances])
        self.view = ClusterView(self.channels, WATCHER, first=0, first_view_timeout_ms=first_view_timeout_ms)

    async def __aenter__(self) -> ClusterView:
        await self.view.start()
        return self.view

    async def __aexit__(self, *_: object) -> None:
        await self.view.stop()
        await self.channels.close()


async def test_holds_what_is_pushed_and_tells_of_changes(
    pair: tuple[MetadataStandIn, MetadataStandIn],
) -> None:
    first, _ = pair
    async with Watching(first) as view:
        assert view.cluster is None
        assert view.age_ms() is None
        seen: list[int] = []
        end = view.subscribe(lambda: seen.append(view.changes))
        first.push(cluster({0: (1, "a")}), catalog({"t": 3}, 2))
        async with asyncio.timeout(60):
            await view.wait_change(0)
        assert view.connected
        assert view.age_ms() == 0
        assert view.lease_ms == 2_000
        assert view.catalog is not None
        assert view.catalog.topics[0].partitions == 3
        first.push(cluster({0: (2, "b")}))
        async with asyncio.timeout(60):
            await view.wait_change(1)
        owner = view.owner(0)
        assert owner is not None
        assert owner.node_id == "b"
        assert view.node("b") is not None
        assert view.node("a") is None
        assert view.catalog.topics[0].name == "t"
        assert seen == [1, 2]
        end()
        first.push(cluster({0: (3, "c")}))
        await until_equal(lambda: view.changes, 3)
        assert seen == [1, 2]


async def test_equal_news_is_no_change(pair: tuple[MetadataStandIn, MetadataStandIn]) -> None:
    first, _ = pair
    async with Watching(first) as view:
        first.push(cluster({0: (1, "a")}))
        await until_equal(lambda: view.changes, 1)
        first.push(cluster({0: (1, "a")}))
        first.push(cluster({0: (1, "a")}, {"a": DEAD}))
        await until(lambda: view.changes > 1)
        assert view.changes == 2


async def test_goes_on_with_the_next_instance(pair: tuple[MetadataStandIn, MetadataStandIn]) -> None:
    first, second = pair
    first.push(cluster({0: (1, "a")}))
    second.push(cluster({0: (2, "b")}))
    async with Watching(first, second) as view:
        await until(lambda: view.connected)
        await first.stop()
        await until_equal(lambda: view.changes, 2)
        owner = view.owner(0)
        assert owner is not None
        assert owner.shard_epoch == 2


async def test_leaves_an_instance_that_lacks_what_is_enabled(
    pair: tuple[MetadataStandIn, MetadataStandIn],
) -> None:
    """One of an older version pushes what it sees, and sees no leases any more."""
    first, second = pair
    first.push(cluster({0: (1, "a")}), metadata_pb2.TopicCatalog(features=["one"]))
    second.push(cluster({0: (2, "old")}), catalog({}, 9))
    async with Watching(first, second) as view:
        await until(lambda: view.connected)
        assert view.features == {"one"}
        await first.stop()
        await until(lambda: second.watches > 1, "it was asked, and left")
        assert view.changes == 1
        second.push(cluster({0: (3, "new")}), metadata_pb2.TopicCatalog(features=["one"]))
        await until_equal(lambda: view.changes, 2)


async def test_comes_back_to_a_restarted_instance(pair: tuple[MetadataStandIn, MetadataStandIn]) -> None:
    first, _ = pair
    first.push(cluster({0: (1, "a")}))
    async with Watching(first) as view:
        await until(lambda: view.connected)
        await first.stop()
        await until(lambda: not view.connected)
        age = view.age_ms()
        assert age is not None
        assert age >= 0
        assert view.cluster is not None
        again = await MetadataStandIn().start(first.port)
        again.push(cluster({0: (5, "z")}))
        await until_equal(lambda: view.changes, 2)
        assert view.connected
        await again.stop()


async def test_leaves_an_instance_that_says_nothing(pair: tuple[MetadataStandIn, MetadataStandIn]) -> None:
    first, second = pair
    first.silent = True
    second.push(cluster({0: (1, "a")}))
    async with Watching(first, second, first_view_timeout_ms=200) as view:
        await until(lambda: view.connected)
        assert first.watches == 1


@pytest.mark.row("LD-23")
async def test_never_goes_back_to_a_lower_epoch(pair: tuple[MetadataStandIn, MetadataStandIn]) -> None:
    first, second = pair
    first.push(cluster({0: (5, "a"), 1: (1, "a")}), catalog({"t": 2}, 9))
    second.push(cluster({0: (4, "b"), 1: (2, "b")}), catalog({"t": 1}, 8))
    async with Watching(first, second) as view:
        await until(lambda: view.connected)
        await first.stop()
        await until_equal(lambda: view.changes, 2)
        rows = [] if view.cluster is None else [(row.shard_epoch, row.node_id) for row in view.cluster.shards]
        assert rows == [(5, "a"), (2, "b")]
        assert view.catalog is not None
        assert view.catalog.topics[0].partitions == 2


async def test_refuses_another_cluster(pair: tuple[MetadataStandIn, MetadataStandIn]) -> None:
    first, second = pair
    first.push(cluster({0: (1, "a")}))
    second.push(cluster({0: (9, "x")}, cluster_id="other"))
    with capture_logs() as logs:
        async with Watching(first, second) as view:
            await until(lambda: view.connected)
            await first.stop()
            await until(lambda: any(entry.get("problem") == "it serves another cluster" for entry in logs))
            owner = view.owner(0)
            assert owner is not None
            assert owner.shard_epoch == 1
            assert not view.connected


async def test_a_subscriber_that_fails_hurts_nobody(pair: tuple[MetadataStandIn, MetadataStandIn]) -> None:
    first, _ = pair
    async with Watching(first) as view:
        seen: list[int] = []

        def fail() -> None:
            raise ValueError("as the test wants it")

        view.subscribe(fail)
        view.subscribe(lambda: seen.append(1))
        with capture_logs() as logs:
            first.push(cluster({0: (1, "a")}))
            await until_equal(lambda: seen, [1])
        assert "view_subscriber_failed" in [entry["event"] for entry in logs]


async def test_an_error_that_nobody_foresaw_ends_the_watch_and_not_the_view(
    pair: tuple[MetadataStandIn, MetadataStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    merges = []

    def fail_once(*arguments: Any) -> Any:
        merges.append(arguments)
        if len(merges) == 1:
            raise RuntimeError("unforeseen")
        return merge_cluster(*arguments)

    monkeypatch.setattr("muster_runtime.cluster.view.merge_cluster", fail_once)
    for instance in pair:
        instance.push(cluster({0: (1, "a")}))
    with capture_logs() as logs:
        async with Watching(*pair) as view, asyncio.timeout(60):
            await view.wait_change(0)
            assert view.connected
    assert "metadata_watch_failed" in [entry["event"] for entry in logs]


async def test_a_connection_that_cannot_be_made_now_ends_the_attempt_and_not_the_view(
    pair: tuple[MetadataStandIn, MetadataStandIn], tmp_path: Path
) -> None:
    """Its certificate is being replaced, say, or the process has no file left to read it."""
    for instance in pair:
        instance.push(cluster({0: (1, "a")}))
    watching = Watching(*pair)
    watching.channels._open._trust = Trust(TlsSettings(ca_file=tmp_path / "absent.pem"))
    with capture_logs() as logs:
        async with watching as view, asyncio.timeout(60):
            await until(lambda: "metadata_watch_failed" in [entry["event"] for entry in logs])
            watching.channels._open._trust = None
            await view.wait_change(0)


async def test_stops_while_nobody_answers() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        channels = Channels([Address("127.0.0.1", deaf.getsockname()[1])])
        view = ClusterView(channels, WATCHER)
        with capture_logs() as logs:
            await view.start()
            await until(lambda: bool(logs))
        async with asyncio.timeout(60):
            await view.stop()
            await channels.close()
        assert view.cluster is None


def beat(lease_ms: int = 200, **more: Any) -> metadata_pb2.WatchResponse:
    return metadata_pb2.WatchResponse(lease_ms=lease_ms, beat_ms=50, **more)


async def test_leaves_an_instance_that_promised_beats_and_fell_silent(
    pair: tuple[MetadataStandIn, MetadataStandIn],
) -> None:
    first, second = pair
    first.send(beat(cluster=cluster({0: (1, "a")})))
    second.push(cluster({0: (2, "b")}))
    async with Watching(first, second) as view:
        await until_equal(lambda: view.changes, 2)
        owner = view.owner(0)
        assert owner is not None
        assert owner.node_id == "b"


async def test_a_view_is_as_old_as_the_majority_behind_it(
    pair: tuple[MetadataStandIn, MetadataStandIn],
) -> None:
    first, _ = pair
    async with Watching(first) as view:
        first.send(beat(60_000, cluster=cluster({0: (1, "a")}), majority_age_ms=30_000))
        await until(lambda: view.connected)
        age_ms = view.age_ms()
        assert age_ms is not None
        assert 30_000 <= age_ms < 60_000
        first.send(beat(60_000))
        await until(lambda: (view.age_ms() or 0) < 30_000, "a beat says that it is up to date")
        assert view.changes == 1


async def test_a_picture_without_a_majority_behind_it_is_taken_by_who_has_none(
    pair: tuple[MetadataStandIn, MetadataStandIn],
) -> None:
    first, second = pair
    second.refuses = True
    first.send(beat(cluster=cluster({0: (1, "a")}), majority_age_ms=90_000))
    async with Watching(first, second) as view:
        await until_equal(lambda: view.changes, 1)
        assert not view.connected
        assert (view.age_ms() or 0) >= 90_000
        first.send(beat(cluster=cluster({0: (2, "b")}), majority_age_ms=90_000))
        asked = first.watches
        await until(lambda: first.watches > asked + 1, "it is asked again and again")
        assert view.changes == 1, "who has a picture does not change it for one that nobody stands behind"


async def test_the_only_instance_without_a_majority_is_left_once_and_asked_seldom(
    pair: tuple[MetadataStandIn, MetadataStandIn],
) -> None:
    first, _ = pair
    first.push(cluster({0: (1, "a")}))
    with capture_logs() as logs:
        async with Watching(first) as view:
            await until(lambda: view.connected)
            first.refuses = True
            first.end_watches()
            await until(lambda: first.watches > 4, "it is asked again")
            assert view.cluster is not None, "what is known stays known"
            assert not view.connected
            first.refuses = False
            await until(lambda: view.connected, "the same instance again")
    seen = [entry["event"] for entry in logs]
    assert seen.count("metadata_watch_began") == 2
    assert seen.count("metadata_watch_ended") == 1, "its end is told; that it refuses again and again is not"


@pytest.mark.parametrize("off_ms", [7 * 86_400_000, -7 * 86_400_000], ids=["ahead", "behind"])
async def test_a_wall_clock_far_from_the_logs_is_told_once(
    pair: tuple[MetadataStandIn, MetadataStandIn], monkeypatch: pytest.MonkeyPatch, off_ms: int
) -> None:
    first, _ = pair
    now_ms = clock.wall_ms()
    lease_ms = 60_000
    with capture_logs() as logs:
        async with Watching(first) as view:
            first.send(beat(lease_ms, cluster=cluster({0: (1, "a")})))
            await until(lambda: view.connected)
            assert view.wall_clock_off_ms() is None, "an instance that does not know it says nothing"
            for step, log_time_ms in enumerate((now_ms, now_ms - off_ms, now_ms - off_ms, now_ms), 1):
                news = cluster({0: (step + 1, "a")})
                first.send(beat(lease_ms, cluster=news, log_time_ms=log_time_ms))
                await until_equal(lambda: view.changes, step + 1)
    seen = [(entry["event"], entry["log_level"]) for entry in logs if "wall_clock" in entry["event"]]
    assert seen == [("wall_clock_wrong", "error"), ("wall_clock_right", "info")]


def test_merge_keeps_rows_that_the_news_lacks_and_takes_equal_epochs() -> None:
    known = merge_cluster(None, cluster({0: (5, "a"), 1: (3, "a")}))
    merged = merge_cluster(known, cluster({1: (3, "")}, {"a": LIVE}))
    assert [(row.shard, row.shard_epoch, row.node_id) for row in merged.shards] == [(0, 5, "a"), (1, 3, "")]
    assert (known.version, merged.version) == (1, 2)
    assert merge_cluster(merged, cluster({1: (3, "")}, {"a": LIVE})).version == 2


def test_merge_refuses_another_number_of_shards() -> None:
    with pytest.raises(ForeignClusterError, match="8 shards instead of 4"):
        merge_cluster(cluster({}), cluster({}, shard_count=8))


def test_catalogs_go_by_epoch_then_offset() -> None:
    old, new = catalog({"t": 1}, 4), catalog({"t": 2}, 5)
    assert merge_catalog(new, old) is new
    assert merge_catalog(old, new) is new
    assert merge_catalog(new, catalog({"t": 2}, 5)) is new, "nobody is told that nothing changed"
