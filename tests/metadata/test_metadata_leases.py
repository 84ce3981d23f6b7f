"""Leases: pure observation, and streams over real sockets."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from kit.leases import LASTING_MS
from kit.metadata.metadata_instances import (
    BRIEF_LEASE_MS,
    FAST,
    WATCH,
    Instance,
    MetadataCluster,
    Writer,
    metadata_cluster,
)
from kit.waiting import until, until_equal
from muster_core.features import FEATURE_NAMES
from muster_core.position import Position
from muster_metadata.cluster.followers import Followers
from muster_metadata.cluster.lease_stream import probe
from muster_metadata.cluster.leases import DEAD, DRAINING, LIVE, LeaseObserver, LeaseRow, merged
from muster_metadata.cluster.owners import OwnerRow, owners
from muster_metadata.cluster.tables import next_run
from muster_metadata.nodes import keys
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

LAST_KNOWN = metadata_pb2.WatchRequest(watcher=WATCH.watcher, last_known=True)
ROW = LeaseRow("c-1", "s-1", run=1, counter=5, host="127.0.0.1", port=1)


def states(observer: LeaseObserver) -> dict[str, int]:
    return {row.node_id: state for row, state in observer.rows()}


def observed(observer: LeaseObserver, row: LeaseRow, *times_ms: int) -> dict[str, int]:
    for now_ms in times_ms:
        observer.observe({row.node_id: row}, now_ms, now_ms)
    return states(observer)


def test_silence_for_the_lease_time_is_death() -> None:
    observer = LeaseObserver(1_000)
    assert observed(observer, ROW, *range(0, 1_000, 100)) == {"c-1": LIVE}
    assert observed(observer, ROW, 1_000) == {"c-1": DEAD}
    assert observed(observer, replace(ROW, counter=6), 1_100) == {"c-1": LIVE}


@pytest.mark.parametrize("late_ms", [0, 300, 900])
def test_silence_counts_to_when_the_reads_were_sent(late_ms: int) -> None:
    """A read that came late says nothing about the time since it was sent."""
    observer = LeaseObserver(1_000)
    observer.observe({"c-1": ROW}, 0, 0)
    for now_ms in range(100, 1_000 + late_ms, 100):
        observer.observe({"c-1": ROW}, now_ms - late_ms, now_ms)
        assert states(observer) == {"c-1": LIVE}
    observer.observe({"c-1": ROW}, 1_000, 1_000 + late_ms)
    assert states(observer) == {"c-1": DEAD}


def test_a_change_counts_from_when_it_was_seen() -> None:
    """The read was sent before the renewal and answered after it."""
    observer = LeaseObserver(1_000)
    observer.observe({"c-1": ROW}, 0, 0)
    observer.observe({"c-1": replace(ROW, counter=6)}, 100, 400)
    for now_ms in range(500, 1_400, 100):
        observer.observe({"c-1": replace(ROW, counter=6)}, now_ms, now_ms)
        assert states(observer) == {"c-1": LIVE}
    observer.observe({"c-1": replace(ROW, counter=6)}, 1_400, 1_400)
    assert states(observer) == {"c-1": DEAD}


def test_a_holder_that_counts_with_a_longer_lease_has_it() -> None:
    """While the setting is being changed, holders and observers differ in it."""
    observer, row = LeaseObserver(1_000), replace(ROW, lease_ms=2_000)
    assert observed(observer, row, *range(0, 2_000, 100)) == {"c-1": LIVE}
    assert observed(observer, row, 2_000) == {"c-1": DEAD}
    observer = LeaseObserver(1_000)
    assert observed(observer, replace(ROW, lease_ms=300), *range(0, 1_000, 100)) == {"c-1": LIVE}


def test_a_row_that_is_gone_is_silence_and_no_death() -> None:
    """A node that had it lost its data and was filled, and the others of the majority never had it."""
    observer = LeaseObserver(1_000)
    observed(observer, ROW, 0, 100)
    for now_ms in range(200, 1_000, 100):
        observer.observe({}, now_ms, now_ms)
        assert states(observer) == {"c-1": LIVE}
    observer.read_failed()
    for now_ms in range(1_000, 2_000, 100):
        observer.observe({}, now_ms, now_ms)
        assert states(observer) == {"c-1": LIVE}
    observer.observe({}, 2_000, 2_000)
    assert states(observer) == {}


def test_failed_read_starts_a_new_lease_time_for_every_row() -> None:
    observer = LeaseObserver(1_000)
    observed(observer, ROW, *range(0, 1_000, 100))
    observer.read_failed()
    assert observed(observer, ROW, *range(1_000, 2_000, 100)) == {"c-1": LIVE}
    assert observed(observer, ROW, 2_000) == {"c-1": DEAD}


def test_pause_of_the_observer_starts_a_new_lease_time() -> None:
    observer = LeaseObserver(1_000)
    observed(observer, ROW, 0, 100)
    assert observed(observer, ROW, 5_000) == {"c-1": LIVE}


async def test_leases_that_were_asked_for_before_a_deletion_do_not_show_who_must_carry_it_out() -> None:
    """A coordinator that was silent has its lease back and asked for the catalog's end just before."""
    observer, now_ms, deletion = LeaseObserver(1_000), 0, Position(5, 7)
    old = replace(ROW, catalog=3)
    observed(observer, old, *range(0, 1_100, 100))
    assert states(observer) == {"c-1": DEAD}
    now_ms = 1_500  # it renewed through another instance at 1,450; the deletion is acknowledged
    waiting = asyncio.create_task(Followers(observer, lambda: now_ms).carried_out(deletion))
    await asyncio.sleep(0)
    observer.observe({"c-1": old}, 1_400, 1_501)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.shield(waiting)
    observer.observe({"c-1": replace(old, counter=6)}, 1_600, 1_601)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.shield(waiting)
    observer.observe({"c-1": replace(old, counter=7, catalog=7)}, 1_700, 1_701)
    await waiting


def test_a_coordinator_lags_that_has_applied_what_the_catalog_lost() -> None:
    observer = LeaseObserver(1_000)
    for counter, (place, lagging) in enumerate(
        (
            ((4, 100), ["c-1"]),
            ((5, 90), ["c-1"]),
            ((0, 90), ["c-1"]),
            ((5, 91), []),
            ((6, 95), []),
            ((0, 91), []),
        )
    ):
        row = replace(ROW, counter=ROW.counter + counter, catalog=place[1], catalog_epoch=place[0])
        assert LeaseRow.from_json(row.to_json().encode()) == row
        observer.observe({"c-1": row}, counter, counter)
        assert observer.lagging(Position(5, 91)) == lagging


def test_counter_that_goes_back_only_delays() -> None:
    observer = LeaseObserver(1_000)
    observed(observer, ROW, *range(0, 1_000, 100))
    assert observed(observer, replace(ROW, counter=2), 1_000, 1_400, 1_800) == {"c-1": LIVE}
    assert observed(observer, replace(ROW, counter=2), 2_000) == {"c-1": DEAD}


def test_death_mark_holds_until_the_next_renewal() -> None:
    observer = LeaseObserver(1_000)
    observed(observer, ROW, 0)
    observer.put(replace(ROW, dead=True), 50)
    assert states(observer) == {"c-1": DEAD}
    # A read that was under way when the mark was written.
    assert observed(observer, ROW, 60) == {"c-1": DEAD}
    assert observed(observer, replace(ROW, counter=6), 100) == {"c-1": LIVE}


def test_released_and_draining() -> None:
    observer = LeaseObserver(1_000)
    assert observed(observer, replace(ROW, draining=True), 0) == {"c-1": DRAINING}
    observer.put(replace(ROW, counter=6, released=True), 10)
    assert observed(observer, ROW, 20) == {}


def test_highest_row_of_the_nodes_counts() -> None:
    tables = [
        {"c-1": ROW},
        {"c-1": replace(ROW, counter=7)},
        {"c-1": replace(ROW, session="s-0", run=0, counter=99)},
    ]
    assert merged(tables, 2)["c-1"].counter == 7


def test_a_death_mark_counts_when_a_majority_has_one() -> None:
    """The marks of one verdict may stand beside different counters: a renewal that no majority has."""
    dead, renewing = replace(ROW, dead=True), replace(ROW, counter=6, dead=True)
    assert merged([{"c-1": renewing}, {"c-1": dead}, {"c-1": ROW}], 2)["c-1"].dead
    for alive in (
        [{"c-1": dead}, {"c-1": ROW}],  # what was read of the other node may be older than the mark
        [{"c-1": dead}, {"c-1": dead}, {"c-1": replace(ROW, counter=6)}],
        [{"c-1": dead}, {"c-1": replace(dead, session="s-0", run=0)}],
    ):
        assert not merged(alive, 2)["c-1"].dead


def test_run_of_a_new_process_is_above_the_last_one() -> None:
    fresh = replace(ROW, run=0, counter=0)
    assert next_run(None, fresh).run == 1
    assert (next_run(ROW, fresh).run, next_run(ROW, fresh).counter) == (1, 6)
    assert next_run(ROW, replace(fresh, session="s-2")).run == 2


def test_row_survives_lua() -> None:
    assert (
        LeaseRow.from_json(b'{"node_id":"c","session":"s","run":1,"counter":2,"serving":{},"new":1}').serving
        == ()
    )
    with pytest.raises(ValueError, match="not a lease row"):
        LeaseRow.from_json(b'{"node_id":"c"}')


def test_owner_is_the_highest_epoch_of_a_process_that_lives() -> None:
    serving = replace(ROW, serving=((0, 3), (1, 1)))
    claims = {0: OwnerRow(3, "c-1", "s-1"), 1: OwnerRow(2, "c-2", "s-2"), 2: OwnerRow(4, "c-1", "s-0")}
    rows = owners(4, claims, [(serving, LIVE)])
    assert [(row.node_id, row.shard_epoch, row.serving) for row in rows] == [
        ("c-1", 3, True),
        ("", 2, False),
        ("", 4, False),
        ("", 0, False),
    ]
    assert owners(1, claims, [(serving, DEAD)])[0].node_id == ""


def test_a_read_that_began_before_a_row_was_written_does_not_remove_it() -> None:
    observer = LeaseObserver(2_000)
    observer.observe({}, 0, 0)
    observer.put(ROW, 10)
    observer.observe({}, 60, 60)
    assert states(observer) == {"c-1": LIVE}
    for now_ms in range(1_000, 6_000, 1_000):
        observer.observe({}, now_ms, now_ms)
    assert states(observer) == {}, "a row that stays away was removed"


class Holder:
    """A coordinator's side of the lease stream, with a socket that accepts or not."""

    def __init__(
        self, instance: Instance, name: str, session: str = "s-1", *, listening: bool = True
    ) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        if listening:
            self.socket.listen()
        self.call: Any = instance.stub.Lease()
        self.name, self.session, self.number = name, session, 0
        self.host = "127.0.0.1"
        self.port = self.socket.getsockname()[1]

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def renew(self, **more: Any) -> metadata_pb2.LeaseResponse:
        self.number += 1
        more.setdefault("state", discovery_pb2.COORDINATOR_STATE_LIVE)
        await self.call.write(
            metadata_pb2.LeaseRequest(
                node_id=self.name, session=self.session, host=self.host,
                port=self.port, number=self.number, version="test",
                features=FEATURE_NAMES, **more,
            )
        )  # fmt: skip
        response: metadata_pb2.LeaseResponse = await self.call.read()
        assert response.number == self.number
        return response

    async def keep(self) -> None:
        while True:
            await self.renew()
            await asyncio.sleep(0.1)

    def close(self) -> None:
        self.socket.close()
        self.call.cancel()


class Watcher:
    """Follows one instance's view."""

    def __init__(self, instance: Instance) -> None:
        self.messages: list[metadata_pb2.WatchResponse] = []
        self.ended = 0
        self._task = asyncio.create_task(self._follow(instance))

    async def _follow(self, instance: Instance) -> None:
        while True:
            with suppress(grpc.aio.AioRpcError):  # an instance without a majority ends its watches
                async for message in instance.stub.Watch(LAST_KNOWN):
                    if message.HasField("cluster"):
                        self.messages.append(message)
            self.ended += 1
            await asyncio.sleep(0.02)

    def state(self, name: str) -> int | None:
        nodes = self.messages[-1].cluster.coordinators if self.messages else []
        return next((node.state for node in nodes if node.node_id == name), None)

    def owner(self, shard: int) -> discovery_pb2.ShardOwner:
        shards = self.messages[-1].cluster.shards if self.messages else []
        return shards[shard] if shards else discovery_pb2.ShardOwner()

    def topics(self) -> dict[str, int]:
        catalogs = [message.catalog for message in self.messages if message.HasField("catalog")]
        return {topic.name: topic.partitions for topic in catalogs[-1].topics} if catalogs else {}

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture(params=[1, 3], ids=["1-node", "3-nodes"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataCluster]:
    async with metadata_cluster(tmp_path, request.param, instances=2) as running:
        yield running


def told_states(watchers: list[Watcher]) -> list[int | None]:
    """What each watcher was told of the coordinator c-1."""
    return [watcher.state("c-1") for watcher in watchers]


def told_owners(watchers: list[Watcher]) -> list[str]:
    """Whom each watcher was told as the owner of shard 2."""
    return [watcher.owner(2).node_id for watcher in watchers]


async def test_leases_are_renewed_while_the_nodes_are_out_of_memory(cluster: MetadataCluster) -> None:
    """Else workers would lose their partitions, because of commits that nobody can store."""
    holder, watcher = Holder(cluster[0], "c-1"), Watcher(cluster[1])
    await holder.renew()
    await until_equal(lambda: watcher.state("c-1"), LIVE, "the coordinator is seen")
    for index in range(len(cluster.nodes)):
        async with cluster.client(index) as client:
            await client.config_set("maxmemory", "1")
    for _ in range(20):
        assert (await holder.renew()).renewed
        assert watcher.state("c-1") == LIVE
        await asyncio.sleep(FAST["poll_ms"] / 1000)
    for index in range(len(cluster.nodes)):
        async with cluster.client(index) as client:
            rows = await cast("Any", client.hgetall(keys.LEASES))
            assert b"c-1" in rows
            assert int(json.loads(rows[b"c-1"])["counter"]) > 1
    await watcher.stop()
    holder.close()


async def test_renewal_is_seen_by_every_instance(cluster: MetadataCluster) -> None:
    holder, watchers = Holder(cluster[0], "c-1"), [Watcher(cluster[0]), Watcher(cluster[1])]
    response = await holder.renew()
    assert response.renewed
    assert not response.superseded
    await until_equal(lambda: told_states(watchers), [LIVE, LIVE], "the coordinator is seen")
    assert [watcher.messages[-1].lease_ms for watcher in watchers] == [LASTING_MS, LASTING_MS]
    response = await holder.renew(state=discovery_pb2.COORDINATOR_STATE_DRAINING)
    await until_equal(lambda: told_states(watchers), [DRAINING, DRAINING], "draining is seen")
    assert (await holder.renew(release=True)).renewed
    await until_equal(lambda: told_states(watchers), [None, None], "the lease was given up")
    for watcher in watchers:
        await watcher.stop()
    holder.close()


@pytest.mark.parametrize("failing", [False, True], ids=["ended", "failing once"])
async def test_an_instance_reads_on_whatever_ends_its_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        watcher = Watcher(cluster[0])
        await until_equal(lambda: bool(watcher.messages), True, "the instance tells of the cluster")
        metadata = cluster[0].server.metadata
        with capture_logs() as logs:
            if failing:
                read, failures = metadata.tables.read, [ValueError("odd")] * 3

                async def fail_first(*arguments: Any) -> Any:
                    if failures:
                        raise failures.pop()
                    return await read(*arguments)

                monkeypatch.setattr(metadata.tables, "read", fail_first)
                await until_equal(lambda: len(failures), 0, "every read failed once")
            else:
                for task in tuple(metadata._monitor._tasks):
                    task.cancel()
            holder = Holder(cluster[1], "c-1")  # so that only reads tell this instance
            await holder.renew()
            await until_equal(lambda: watcher.state("c-1"), LIVE, "seen")
        told = [entry["event"] for entry in logs if entry["log_level"] == "error"]
        assert told == (["tables_not_read"] * 3 if failing else ["table_reads_ended"] * 4)
        await watcher.stop()
        holder.close()


async def counters_of(cluster: MetadataCluster, *nodes: int) -> list[int]:
    """What some nodes store of the coordinator c-1."""
    found = []
    for index in nodes:
        async with cluster.client(index) as client:
            stored: Any = await client.hget(keys.LEASES, "c-1")
            found.append(LeaseRow.from_json(stored).counter if stored else 0)
    return found


async def test_a_renewal_behind_one_that_no_majority_got_goes_past_it(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        holder = Holder(cluster[0], "c-1")
        await holder.renew()
        await until_equal(
            lambda: counters_of(cluster, 0, 1, 2), [1, 1, 1], "all nodes have the first renewal"
        )
        async with cluster.client(1) as client:
            stored: Any = await client.hget(keys.LEASES, "c-1")
            ahead = replace(LeaseRow.from_json(stored), counter=50)
            await client.hset(keys.LEASES, "c-1", ahead.to_json())
        cluster.nodes[2].pause()  # so that the node that is ahead is needed for a majority
        try:
            assert (await holder.renew()).renewed
            assert await counters_of(cluster, 0, 1) == [51, 51]
        finally:
            cluster.nodes[2].resume()
        holder.close()


@pytest.mark.brief_lease
async def test_silent_coordinator_dies_and_lives_again(cluster: MetadataCluster) -> None:
    holder, watcher = Holder(cluster[0], "c-1"), Watcher(cluster[1])
    await holder.renew()
    await until_equal(lambda: watcher.state("c-1"), LIVE, "seen")
    await until_equal(lambda: watcher.state("c-1"), DEAD, "silence is death")
    await holder.renew()
    await until_equal(lambda: watcher.state("c-1"), LIVE, "renewed")
    await watcher.stop()
    holder.close()


async def test_broken_stream_and_refused_address_are_death_at_once(tmp_path: Path) -> None:
    # With a lease of a minute only the broken stream can tell.
    async with metadata_cluster(tmp_path, 3, instances=2, lease_ms=60_000) as cluster:
        holder, watchers = Holder(cluster[0], "c-1"), [Watcher(cluster[0]), Watcher(cluster[1])]
        await holder.renew()
        await until_equal(lambda: told_states(watchers), [LIVE, LIVE], "seen")
        holder.close()
        await until_equal(lambda: told_states(watchers), [DEAD, DEAD], "declared dead by the broken stream")
        for watcher in watchers:
            await watcher.stop()


async def test_a_process_that_dies_in_the_middle_of_a_renewal_is_dead_at_once(tmp_path: Path) -> None:
    """The renewal is stored and never answered: the verdict is about that one, not about the one before."""
    async with metadata_cluster(tmp_path, 3, instances=2, lease_ms=60_000) as cluster:
        holder, watchers = Holder(cluster[0], "c-1"), [Watcher(cluster[0]), Watcher(cluster[1])]
        await holder.renew()
        await until_equal(lambda: told_states(watchers), [LIVE, LIVE], "seen")
        for index in (1, 2):  # no majority, so the renewal stays on its way
            cluster.nodes[index].pause()
        try:
            unanswered = asyncio.create_task(holder.renew())
            await until_equal(lambda: counters_of(cluster, 0), [2], "a node has the second renewal")
            with capture_logs() as logs:
                holder.close()
                await until(
                    lambda: any(line["event"] == "coordinator_not_there" for line in logs),
                    "the broken stream was looked into",
                )
            assert told_states(watchers) == [LIVE, LIVE], "no majority has the verdict yet"
        finally:
            for index in (1, 2):
                cluster.nodes[index].resume()
        await until_equal(lambda: counters_of(cluster, 0, 1, 2), [2, 2, 2], "all nodes have it in the end")
        await until_equal(lambda: told_states(watchers), [DEAD, DEAD], "declared dead by the broken stream")
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await unanswered
        for watcher in watchers:
            await watcher.stop()


async def test_a_process_that_dies_slowly_is_dead_when_its_address_refuses(tmp_path: Path) -> None:
    """Its stream breaks before its listening socket is closed."""
    async with metadata_cluster(tmp_path, 1, lease_ms=60_000) as cluster:
        holder, watcher = Holder(cluster[0], "c-1"), Watcher(cluster[0])
        await holder.renew()
        await until_equal(lambda: watcher.state("c-1"), LIVE, "seen")
        holder.socket.setblocking(False)
        holder.call.cancel()
        asked, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(holder.socket), 10)
        asked.close()
        holder.socket.close()
        await until_equal(lambda: watcher.state("c-1"), DEAD, "declared dead once nobody listens")
        await watcher.stop()
        holder.close()


async def test_an_attempt_that_never_left_the_machine_says_nothing() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert await probe(host, port, 1_000) == ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    server.close()
    await server.wait_closed()
    assert await probe(host, port, 1_000) == "refused"


@pytest.mark.parametrize(("code", "verdict"), [(socket.EAI_NONAME, "unreachable"), (socket.EAI_AGAIN, "")])
async def test_a_name_that_is_gone_is_a_verdict_and_a_resolver_that_fails_is_none(
    monkeypatch: pytest.MonkeyPatch, code: int, verdict: str
) -> None:
    async def looked_up(*_: object, **__: object) -> Any:
        raise socket.gaierror(code, "as the resolver says it")

    monkeypatch.setattr(asyncio, "open_connection", looked_up)
    assert await probe("c-1.example", 1, 1_000) == verdict


async def test_broken_stream_of_a_process_that_listens_is_no_death(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, instances=2, lease_ms=60_000) as cluster:
        holder, other, watcher = Holder(cluster[0], "c-1"), Holder(cluster[0], "c-2"), Watcher(cluster[1])
        await holder.renew()
        await other.renew()
        for name in ("c-1", "c-2"):
            await until_equal(partial(watcher.state, name), LIVE, f"{name} is there")
        holder.call.cancel()
        other.close()
        await until_equal(lambda: watcher.state("c-2"), DEAD, "the one that is gone is dead")
        assert watcher.state("c-1") == LIVE
        await watcher.stop()
        holder.close()


async def test_later_process_of_a_name_supersedes_the_earlier_one(cluster: MetadataCluster) -> None:
    first, second = Holder(cluster[0], "c-1", "s-1"), Holder(cluster[1], "c-1", "s-2")
    assert (await first.renew()).renewed
    with capture_logs() as lines:
        assert (await second.renew()).renewed
        assert (await second.renew()).renewed
    (taken,) = [line for line in lines if line["event"] == "lease_taken"]
    assert (taken["node_id"], taken["address"], taken["before"]) == ("c-1", second.address, first.address)
    assert taken["peer"].startswith("ipv4:127.0.0.1:")
    response = await first.renew()
    assert response.superseded
    assert not response.renewed
    assert (await second.renew()).renewed
    third = Holder(cluster[1], "c-1", "s-3")
    assert (await third.renew()).renewed
    assert (
        await second.renew()
    ).message == f"another process of this name, at {third.address}, took the lease"
    for holder in (first, second, third):
        holder.close()


async def test_a_run_of_a_process_keeps_its_addresses(cluster: MetadataCluster) -> None:
    """Who reads its session in the log has no clients sent elsewhere in its name, unheard by it."""
    inside = {"internal_host": "10.0.0.1", "internal_port": 7480}
    holder = Holder(cluster[0], "c-1")
    assert (await holder.renew()).renewed, "an instance of an older version has left the internal address out"
    assert (await holder.renew(**inside)).renewed
    for instance in cluster.instances:
        for more in (inside, {"internal_host": "10.0.0.2", "internal_port": 7480}, {}):
            other = Holder(instance, "c-1")
            if more is not inside:
                other.port = holder.port
            with capture_logs() as lines:
                response = await other.renew(**more)
            assert (response.renewed, response.superseded) == (False, False)
            assert response.message == "this run of the process has named another address before"
            (refused,) = [line for line in lines if line["event"] == "lease_refused"]
            assert (refused["node_id"], refused["before"]) == ("c-1", holder.address)
            other.close()
    assert (await holder.renew(**inside)).renewed
    holder.close()


async def test_of_a_lease_that_nobody_holds_none_is_told_to_have_taken_it(cluster: MetadataCluster) -> None:
    first, second = Holder(cluster[0], "c-1", "s-1"), Holder(cluster[1], "c-1", "s-2")
    assert (await first.renew()).renewed
    assert (await first.renew(release=True)).renewed
    with capture_logs() as lines:
        assert (await second.renew()).renewed
    assert not [line for line in lines if line["event"] == "lease_taken"]
    for holder in (first, second):
        holder.close()


async def test_who_lost_its_stream_does_not_take_the_lease_back_from_a_later_process(
    cluster: MetadataCluster,
) -> None:
    first, second = Holder(cluster[0], "c-1", "s-1"), Holder(cluster[1], "c-1", "s-2")
    runs = [(await holder.renew()).run for holder in (first, second)]
    assert runs == [1, 2]
    first.close()
    for instance in cluster.instances:
        for release in (False, True):
            again = Holder(instance, "c-1", "s-1")
            response = await again.renew(run=runs[0], release=release)
            assert (response.superseded, response.renewed) == (True, False)
            assert f", at {second.address}, took the lease" in response.message
            again.close()
    for _ in range(2):
        assert (await second.renew(run=2)).run == 2
    unknown = Holder(cluster[0], "c-1", "s-3")
    assert (await unknown.renew()).run == 3, "who never had it comes later"
    for holder in (second, unknown):
        holder.close()


@pytest.mark.brief_lease
async def test_a_node_that_was_away_kills_no_later_process_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the row of the process before still, which had renewed it more often."""
    async with metadata_cluster(tmp_path, 3) as cluster:
        before, watcher = Holder(cluster[0], "c-1"), Watcher(cluster[0])
        for _ in range(30):
            await before.renew()
        before.close()
        await until_equal(lambda: watcher.state("c-1"), DEAD, "the process before ended")
        await cluster.nodes[2].kill()
        await until(lambda: not watcher.messages[-1].cluster.log_nodes[2].available, "a node is away")
        monkeypatch.setattr("muster_metadata.cluster.monitor._FORGET_MS", 0)
        await asyncio.sleep(0.5)  # what ended long ago is looked for ten times
        after = Holder(cluster[0], "c-1", "s-2")
        keeping = asyncio.create_task(after.keep())
        await until_equal(lambda: watcher.state("c-1"), LIVE, "there is another one")
        seen = len(watcher.messages)
        await cluster.nodes[2].start()
        await until(lambda: watcher.messages[-1].cluster.log_nodes[2].available, "the node is back")
        await asyncio.sleep(2 * BRIEF_LEASE_MS / 1000)
        told = [message.cluster.coordinators for message in watcher.messages[seen:]]
        assert all([node.state for node in nodes] == [LIVE] for nodes in told)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await watcher.stop()
        after.close()


@pytest.mark.brief_lease
async def test_outage_of_the_log_costs_nobody_the_lease(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        holder, watcher = Holder(cluster[0], "c-1"), Watcher(cluster[1])
        await holder.renew()
        await until_equal(lambda: watcher.state("c-1"), LIVE, "seen")
        keeping = asyncio.create_task(holder.keep())
        for index in range(3):
            cluster.nodes[index].pause()
        await until_equal(
            lambda: sum(node.available for node in watcher.messages[-1].cluster.log_nodes),
            0,
            "nodes are away",
        )
        await asyncio.sleep(1.5)
        for index in range(3):
            cluster.nodes[index].resume()
        await until(
            lambda: all(node.available for node in watcher.messages[-1].cluster.log_nodes), "nodes are back"
        )
        await asyncio.sleep(0.5)
        seen = [
            node.state
            for message in watcher.messages
            for node in message.cluster.coordinators
            if node.node_id == "c-1"
        ]
        assert DEAD not in seen
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await watcher.stop()
        holder.close()


@pytest.mark.brief_lease
async def test_a_watch_ends_with_the_majority_behind_it(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        holder, stub = Holder(cluster[0], "c-1"), cluster[0].stub
        await holder.renew()
        watch = stub.Watch(WATCH)
        message = await watch.read()
        assert message.beat_ms
        while not message.cluster.coordinators:
            message = await watch.read()
        for index in (0, 1):
            cluster.nodes[index].pause()
        ages = [message.majority_age_ms]

        async def read_on() -> None:
            while (message := await watch.read()) is not grpc.aio.EOF:
                ages.append(message.majority_age_ms)

        with pytest.raises(grpc.aio.AioRpcError, match="no majority of the log's nodes") as ended:
            await asyncio.wait_for(read_on(), 30)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        assert ages[-1] > 0, "it said beforehand how old it was"
        with pytest.raises(grpc.aio.AioRpcError, match="no majority of the log's nodes"):
            await stub.Watch(WATCH).read()
        last = await stub.Watch(LAST_KNOWN).read()
        assert [node.node_id for node in last.cluster.coordinators] == ["c-1"]
        assert last.majority_age_ms >= last.lease_ms
        for index in (0, 1):
            cluster.nodes[index].resume()

        async def watched() -> bool:
            with suppress(grpc.aio.AioRpcError):
                return bool((await stub.Watch(WATCH).read()).cluster.coordinators)
            return False

        await until(watched, "a majority stands behind it again")
        holder.close()


async def test_a_watch_without_news_beats(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        watch = cluster[0].stub.Watch(WATCH)
        while (await watch.read()).HasField("cluster"):
            pass
        watch.cancel()


async def test_owner_is_pushed_and_serving_follows_the_lease(cluster: MetadataCluster) -> None:
    holder, watchers = Holder(cluster[0], "c-1"), [Watcher(cluster[0]), Watcher(cluster[1])]
    holder.session = "session-of-c-1"
    await holder.renew()
    writer = Writer(2)
    await writer.own(cluster[0])
    await until_equal(lambda: told_owners(watchers), ["c-1", "c-1"], "the owner is pushed")
    assert not any(watcher.owner(2).serving for watcher in watchers)
    await holder.renew(serving=[metadata_pb2.ServedShard(shard=2, epoch=writer.epoch)])
    await until(lambda: all(watcher.owner(2).serving for watcher in watchers), "serving is pushed")
    holder.close()
    await until_equal(lambda: told_owners(watchers), ["", ""], "a dead owner owns nothing")
    for watcher in watchers:
        assert watcher.owner(2).shard_epoch == writer.epoch
        await watcher.stop()


async def test_problem_of_a_node_is_a_sentence_without_addresses(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        watcher = Watcher(cluster[0])
        await until(lambda: bool(watcher.messages), "the view")
        await cluster.nodes[1].kill()
        await until(lambda: not watcher.messages[-1].cluster.log_nodes[1].available, "node 2 is away")
        problem = watcher.messages[-1].cluster.log_nodes[1].problem
        assert problem
        assert "127.0.0.1" not in problem
        assert str(cluster.nodes[1].url.rpartition(":")[2]) not in problem
        await cluster.nodes[1].start()
        await until(lambda: watcher.messages[-1].cluster.log_nodes[1].available, "node 2 is back")
        await watcher.stop()


async def test_loss_and_return_of_a_node_are_logged_once(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 3) as cluster:
        watcher = Watcher(cluster[0])
        await until(lambda: bool(watcher.messages), "the view")
        address = cluster.nodes[1].url.removeprefix("redis://")
        with capture_logs() as logs:
            await cluster.nodes[1].kill()
            await until(lambda: not watcher.messages[-1].cluster.log_nodes[1].available, "away")
            await cluster.nodes[1].start()
            await until(lambda: watcher.messages[-1].cluster.log_nodes[1].available, "back")
        told = [
            (line["event"], line["node"], line["address"])
            for line in logs
            if line["event"] in ("log_node_lost", "log_node_back")
        ]
        assert told[0] == ("log_node_lost", 2, address)
        assert told[-1] == ("log_node_back", 2, address)
        assert len(told) <= 4  # the reason may change once: unreachable, silent, loading
        await watcher.stop()


@pytest.mark.parametrize("change", [{"node_id": ""}, {"session": ""}, {"host": ""}, {"port": 0}])
async def test_senseless_renewal_is_not_renewed(tmp_path: Path, change: dict[str, Any]) -> None:
    async with metadata_cluster(tmp_path, 1) as cluster:
        request: dict[str, Any] = {
            "node_id": "c",
            "session": "s",
            "host": "h",
            "port": 1,
            "number": 3,
        } | change
        call = cluster[0].stub.Lease()
        await call.write(metadata_pb2.LeaseRequest(**request))
        response = await call.read()
        assert response.number == 3
        assert not response.renewed
        assert response.message
        call.cancel()
