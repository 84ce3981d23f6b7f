"""Leadership among real processes: one leads, whoever comes and goes, and hands over when it goes."""

import asyncio
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import muster
import pytest
import pytest_asyncio
from kit.clusters.server_cluster import all_served, find, running
from kit.forked import Program, started
from kit.waiting import killed, until
from muster.sinks import SqlFence
from muster_server.dev.cluster import DevCluster

pytestmark = pytest.mark.cluster

CANDIDATE = str(Path(__file__).parents[1] / "kit" / "started" / "candidate.py")
NAME = "nightly-report"
COMINGS = 20
Protocol: TypeAlias = Literal["classic", "incremental"]


@pytest.fixture(params=["classic", "incremental"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    found: Protocol = request.param
    return found


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[DevCluster]:
    async with running(tmp_path / "cluster", redis_nodes=1, coordinators=2) as cluster:
        await all_served(cluster.servers)
        yield cluster


@asynccontextmanager
async def candidate(
    servers: DevCluster, protocol: Protocol, shape: str, *arguments: str | Path
) -> AsyncIterator[Program]:
    process = await started(
        [sys.executable, CANDIDATE, servers.servers, NAME, protocol, shape, *map(str, arguments)]
    )
    try:
        yield process
    finally:
        await killed(process)


async def said(process: Program) -> str:
    """The next line of a candidate; empty: it has ended."""
    return (await asyncio.wait_for(process.stdout.readline(), 60)).decode().rstrip()


async def leads(process: Program) -> str:
    """Waits until a candidate leads, which is the next that it says; returns its token."""
    line = await said(process)
    assert line.startswith("leads "), line
    return line.removeprefix("leads ")


async def stands_by(connection: muster.Cluster, count: int) -> None:
    """Waits until so many candidates take part in a group that is settled."""

    async def settled() -> bool:
        group = await connection.describe_group(f"lead/{NAME}")
        return bool(group.protocol_name) and len(group.members) == count

    await until(settled, f"{count} candidates")


@pytest.mark.parametrize("shape", ["waits", "blocking"])
async def test_a_leader_that_is_stopped_in_order_ends_its_work_and_then_another_leads(
    servers: DevCluster, protocol: Protocol, shape: str
) -> None:
    async with candidate(servers, protocol, shape) as first, muster.Cluster(servers.servers) as connection:
        token = await leads(first)
        async with candidate(servers, protocol, shape) as second:
            await stands_by(connection, 2)
            first.send_signal(signal.SIGTERM)
            assert await leads(second) > token
            assert [await said(first), await said(first)] == ["ended", "returned"]
            assert await first.wait() == 0


async def test_when_a_leader_is_killed_another_leads(servers: DevCluster, protocol: Protocol) -> None:
    async with candidate(servers, protocol, "waits") as first, muster.Cluster(servers.servers) as connection:
        token = await leads(first)
        async with (
            candidate(servers, protocol, "waits") as second,
            candidate(servers, protocol, "waits") as third,
        ):
            await stands_by(connection, 3)
            first.kill()
            heirs = [asyncio.create_task(leads(process)) for process in (second, third)]
            done, standby = await asyncio.wait(heirs, return_when=asyncio.FIRST_COMPLETED)
            assert [heir.result() > token for heir in done] == [True]
            await stands_by(connection, 2)
            assert not any(heir.done() for heir in standby)
            for heir in standby:
                heir.cancel()
            await asyncio.wait(standby)


async def test_candidates_that_come_and_go_disturb_no_leader(servers: DevCluster, protocol: Protocol) -> None:
    async with muster.Cluster(servers.servers) as connection:
        leadership = muster.lead(NAME, protocol=protocol, cluster=connection)
        async with leadership as term:
            token, before = term.token, len(await connection.group_history(f"lead/{NAME}", 100))
            for number in range(COMINGS):
                async with asyncio.timeout(60):
                    standby = muster.lead(
                        NAME, protocol=protocol, servers=servers.servers, client_id=f"{number % 2}-standby"
                    )
                    waits = asyncio.create_task(standby.__aenter__())
                    await stands_by(connection, 2)
                    waits.cancel()
                    await asyncio.wait((waits,))
                    assert waits.cancelled()
                await stands_by(connection, 1)
                assert (term.token, term.is_leader, term.lost.is_set()) == (token, True, False)
            generations = await connection.group_history(f"lead/{NAME}", 100)
            assert len(generations) >= before + 2 * COMINGS
            assert not any(generation.moves for generation in generations[before:])


async def test_a_leader_that_was_stopped_writes_nothing_after_its_successor(
    servers: DevCluster, protocol: Protocol, tmp_path: Path
) -> None:
    database, told = tmp_path / "sink.db", tmp_path / "stop"
    connection = sqlite3.connect(database)
    connection.execute(SqlFence("sqlite").create_table)
    connection.execute("CREATE TABLE reports (writer TEXT)")
    connection.execute("INSERT INTO reports VALUES ('')")
    connection.commit()

    def writer() -> str:
        return str(connection.execute("SELECT writer FROM reports").fetchone()[0])

    async with candidate(servers, protocol, "writes", database, told) as zombie:
        token = await leads(zombie)
        await until(lambda: writer() == token, "the leader has written")
        async with candidate(servers, protocol, "writes", database, told) as heir:
            told.touch()
            assert await said(zombie) == "stops"
            later = await leads(heir)
            assert later > token
            await until(lambda: writer() == later, "its successor has written")
            zombie.send_signal(signal.SIGCONT)
            assert [await said(zombie), await said(zombie)] == ["no leader by its clock", "refused"]
            assert writer() == later
            heir.terminate()
            assert await leads(zombie) > later  # it has lost, and wants to lead again


async def test_a_coordinator_that_is_killed_costs_nobody_the_leadership(
    servers: DevCluster, protocol: Protocol
) -> None:
    async with (
        muster.lead(NAME, protocol=protocol, servers=servers.servers, disconnect_grace_ms=30_000) as term,
        muster.Cluster(servers.servers) as connection,
        candidate(servers, protocol, "waits") as standby,
    ):
        await stands_by(connection, 2)
        before = await find(servers.servers, f"lead/{NAME}")
        owner = next(
            c.node_id for c in (await connection.describe()).coordinators if f"{c.host}:{c.port}" == before
        )
        await servers.coordinator(owner).kill()
        await until(lambda: _moved(servers, before), "another coordinator has the group")
        await stands_by(connection, 2)
        assert term.is_leader
        assert not term.lost.is_set()
        standby.terminate()
        assert await said(standby) == "returned"


async def _moved(servers: DevCluster, before: str) -> bool:
    return await find(servers.servers, f"lead/{NAME}") != before


@pytest.mark.parametrize(("shape", "code"), [("returns", 0), ("raises", 1)])
async def test_work_that_ends_gives_the_leadership_up_in_order(
    servers: DevCluster, protocol: Protocol, tmp_path: Path, shape: str, code: int
) -> None:
    told = tmp_path / "return"
    async with (
        candidate(servers, protocol, shape, told) as first,
        muster.Cluster(servers.servers) as connection,
    ):
        token = await leads(first)
        async with candidate(servers, protocol, "waits") as second:
            await stands_by(connection, 2)
            told.touch()
            assert await leads(second) > token
            assert await said(first) == "ended"
            _, errors = await first.communicate()
            assert first.returncode == code
            assert (b"ValueError: no report today" in errors) == (shape == "raises")
            cause = (await connection.group_history(f"lead/{NAME}"))[-1].cause
            assert re.search("ValueError" if shape == "raises" else "returned", cause.sentence), (
                cause.sentence
            )


async def test_a_block_that_hangs_the_loop_knows_by_the_clock_and_is_then_cancelled(
    servers: DevCluster,
    protocol: Protocol,
) -> None:
    async with candidate(servers, protocol, "block") as hanging:
        token = await leads(hanging)
        async with candidate(servers, protocol, "waits") as heir:
            assert [await said(hanging), await said(hanging)] == ["no leader by its clock", "lost"]
            assert await leads(heir) > token


async def test_one_process_leads_several_things(servers: DevCluster, protocol: Protocol) -> None:
    async with muster.Cluster(servers.servers) as connection, AsyncExitStack() as terms:
        names = ["a", "b", "ünder/ a name"]
        held = [
            await terms.enter_async_context(muster.lead(name, protocol=protocol, cluster=connection))
            for name in names
        ]
        assert [term.name for term in held] == names
        assert all(term.is_leader for term in held)
