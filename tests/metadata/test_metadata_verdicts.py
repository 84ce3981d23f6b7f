"""Verdicts on coordinators: none before its time, none on who lives, and at once on who is gone."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from kit.links import TO_SOURCE, Links
from kit.metadata.metadata_instances import metadata_cluster
from kit.waiting import until, until_equal
from metadata.test_metadata_leases import Holder, Watcher, counters_of, told_states
from muster_coordinator.ownership.lease import Holder as LeaseHolder
from muster_coordinator.ownership.lease import LeaseCallbacks, LeaseKeeper, LeasePace
from muster_coordinator.ownership.lease_line import LeaseThread
from muster_metadata.cluster.leases import DEAD, LIVE, LeaseObserver, LeaseRow
from muster_metadata.cluster.monitor import Monitor
from muster_metadata.cluster.publisher import ViewPublisher
from muster_metadata.cluster.tables import NodeTables
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_runtime.addresses import Address
from muster_runtime.clock import boot_ms
from safety.early_death import dead_after_ms
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster


def test_silence_counts_to_what_a_majority_was_read_by() -> None:
    """The newest read is of the node that the last renewal did not come to; those of the others are late."""
    now_ms = 10_000
    nodes = [Node(index, f"redis://n{index}", 1_000) for index in (1, 2, 3)]
    view = ViewPublisher(LeaseObserver(2_000), lambda: now_ms)
    view.known("cluster", 1)
    monitor = Monitor(
        Quorum(nodes, 1_000), cast(Any, None), view, 600, lambda: now_ms,
        on_catalog=lambda _: None, on_empty=lambda _: None, on_foreign=lambda: None,
    )  # fmt: skip

    def heard(node: int, counter: int, sent_ms: int) -> None:
        row = LeaseRow("c-1", "s", 1, counter, host="h", port=1)
        monitor._heard(nodes[node], sent_ms, NodeTables(leases={"c-1": row}, owners={}))

    for node in range(3):
        heard(node, 5, 10_000)
    for now_ms in range(10_000, 12_300, 100):  # the clock
        heard(2, 5, now_ms)
        monitor.judge()
        assert [state for _, state in view.observer.rows()] == [LIVE], now_ms
    now_ms = 12_350
    for node in (0, 1):  # sent at 10,550, after the renewal of 10,400 was stored at these two
        heard(node, 6, 10_550)
    monitor.judge()
    assert [row.counter for row, _ in view.observer.rows()] == [6]


@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_dead_before_the_lease_time_has_passed(seed: int) -> None:
    assert dead_after_ms(2_000, 600, seed) >= 2_000
    assert dead_after_ms(1_000, 100, seed) >= 1_000
    assert 2_000 <= dead_after_ms(2_000, 600, seed, slow=False) <= 2_000 + 4 * 600


@asynccontextmanager
async def kept_lease(targets: list[str], port: int) -> AsyncIterator[LeaseKeeper]:
    """A coordinator's real lease, renewed by its thread."""
    nobody = LeaseCallbacks(lambda: None, lambda: None, lambda: None)
    keeper = LeaseKeeper(
        targets, LeaseThread(grpc.insecure_channel),
        LeaseHolder("c-1", "s-1", Address("127.0.0.1", port), "test"),
        LeasePace(lease_ms=60_000), nobody, boot_ms,
    )  # fmt: skip
    keeper.start(asyncio.get_running_loop())
    try:
        yield keeper
    finally:
        await keeper.stop(release=False)


def ever_dead(*watchers: Watcher) -> bool:
    """Whether a watcher was ever told that the coordinator c-1 is dead."""
    return any(
        node.node_id == "c-1" and node.state == DEAD
        for watcher in watchers
        for message in watcher.messages
        for node in message.cluster.coordinators
    )


async def accepted(listening: socket.socket) -> None:
    """Somebody has connected, and was accepted."""
    listening.setblocking(False)
    asked, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(listening), 10)
    asked.close()


async def test_a_holder_that_leaves_a_slow_instance_is_not_buried(tmp_path: Path) -> None:
    """Answers of the first instance do not come, so the holder goes to the second one.

    Who looked at its address then would find nobody there.
    """
    async with metadata_cluster(tmp_path, 3, instances=2, lease_ms=60_000) as cluster, Links() as links:
        watchers = [Watcher(cluster[0]), Watcher(cluster[1])]
        link = await links.add("lease", int(cluster[0].address.rpartition(":")[2]))
        listening = socket.create_server(("127.0.0.1", 0))
        targets = [f"127.0.0.1:{link}", cluster[1].address]
        async with kept_lease(targets, listening.getsockname()[1]) as keeper:
            await accepted(listening)
            await until_equal(lambda: told_states(watchers), [LIVE, LIVE], "seen")
            listening.close()
            await links.hold("lease", [TO_SOURCE])
            await until(lambda: keeper.failed_renewals, "a renewal was not answered in time")
            (left,) = await counters_of(cluster, 0)

            async def renewed() -> bool:
                return (await counters_of(cluster, 0))[0] > left + 5

            await until(renewed, "the second instance renews")
            await links.release("lease")
            assert not ever_dead(*watchers)
        for watcher in watchers:
            await watcher.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", f"{'a' * 64}.example"], ids=["refuses", "is-no-name"])
async def test_an_address_that_was_never_reached_says_nothing(tmp_path: Path, host: str) -> None:
    """Metadata may not be let through to it: that nobody answers there is no news."""
    async with metadata_cluster(tmp_path, 1, lease_ms=60_000) as cluster:
        watcher, control = Watcher(cluster[0]), Holder(cluster[0], "c-2")
        with capture_logs() as logs:
            holder = Holder(cluster[0], "c-1", listening=False)
            holder.host = host
            await holder.renew()
            await until(
                lambda: any(line["event"] == "coordinator_address_not_reached" for line in logs), "told"
            )
        await control.renew()
        await accepted(control.socket)
        holder.call.cancel()
        control.close()
        await until_equal(lambda: watcher.state("c-2"), DEAD, "the one that is gone is dead")
        assert not ever_dead(watcher)
        await watcher.stop()
        holder.close()


async def test_who_renewed_elsewhere_since_is_not_buried(tmp_path: Path) -> None:
    """The verdict would be about the renewal of the stream that broke."""
    async with metadata_cluster(tmp_path, 3, instances=2, lease_ms=60_000) as cluster:
        watcher, control = Watcher(cluster[0]), Holder(cluster[0], "c-2")
        first, second = Holder(cluster[0], "c-1"), Holder(cluster[1], "c-1")
        await control.renew()
        await accepted(control.socket)
        await first.renew()
        await accepted(first.socket)
        await until_equal(lambda: watcher.state("c-1"), LIVE, "seen")
        second.port = first.port
        assert (await second.renew()).renewed
        first.close()
        control.close()
        await until_equal(lambda: watcher.state("c-2"), DEAD, "the one that is gone is dead")
        assert not ever_dead(watcher)
        await watcher.stop()
        second.close()


async def test_a_silent_address_is_death(tmp_path: Path) -> None:
    """The queue of its socket is full: a connection is neither accepted nor refused, as at a dead machine."""
    async with metadata_cluster(tmp_path, 1, lease_ms=60_000, probe_timeout_ms=300) as cluster:
        holder, watcher = Holder(cluster[0], "c-1", listening=False), Watcher(cluster[0])
        holder.socket.listen(0)
        await holder.renew()
        await accepted(holder.socket)
        await until_equal(lambda: watcher.state("c-1"), LIVE, "seen")
        waiting = await fill(holder.socket)
        with capture_logs() as logs:
            holder.call.cancel()
            await until_equal(
                lambda: watcher.state("c-1"), DEAD, "declared dead by the silence of its address"
            )
        (told,) = [line for line in logs if line["event"] == "coordinator_died"]
        assert told["reason"] == "silent"
        for connection in waiting:
            connection.close()
        await watcher.stop()
        holder.close()


async def fill(listening: socket.socket) -> list[socket.socket]:
    """Connections that fill the queue of a listening socket."""
    waiting: list[socket.socket] = []
    for _ in range(16):
        connection = socket.socket()
        connection.setblocking(False)
        waiting.append(connection)
        try:
            async with asyncio.timeout(0.5):
                await asyncio.get_running_loop().sock_connect(connection, listening.getsockname())
        except TimeoutError:
            return waiting
    raise AssertionError("its queue has no end")
