"""Rules of docs/safety.md about nodes and leases, each at the place where it matters most."""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.metadata_instances import FAST, eventually, metadata_cluster
from metadata.test_metadata_leases import Holder, Watcher
from muster_metadata.lease_stream import probe
from muster_metadata.leases import DEAD, LIVE


@pytest.mark.parametrize("count", [1, 2])
async def test_one_node_of_three_neither_renews_nor_judges(tmp_path: Path, count: int) -> None:
    """With one node away all goes on; with two nothing is renewed, and nobody is dead for that."""
    async with metadata_cluster(tmp_path, 3, instances=2) as cluster:
        holder, watcher = Holder(cluster[0], "c-1"), Watcher(cluster[1])
        await holder.renew()
        await eventually(lambda: watcher.state("c-1") == LIVE, "seen")
        for index in range(count):
            cluster.nodes[index].pause()
        await eventually(
            lambda: sum(not node.available for node in watcher.messages[-1].cluster.log_nodes) == count,
            "the nodes are away",
        )
        keeping = asyncio.get_running_loop().time() + 2.5 * FAST["lease_ms"] / 1000
        renewed = set()
        while asyncio.get_running_loop().time() < keeping:
            renewed.add((await holder.renew()).renewed)
        assert renewed == {count == 1}
        seen = {node.state for m in watcher.messages for node in m.cluster.coordinators}
        assert DEAD not in seen
        for index in range(count):
            cluster.nodes[index].resume()
        await watcher.stop()
        holder.close()


async def verdict(server: socket.socket) -> str:
    host, port = server.getsockname()
    return await probe(host, port, 300)


async def test_what_an_address_says_about_its_process() -> None:
    with (
        socket.socket() as listening,
        socket.socket() as full,
        socket.socket() as closed,
        ExitStack() as stack,
    ):
        for server in (listening, full, closed):
            server.bind(("127.0.0.1", 0))
        listening.listen()
        assert await verdict(listening) == ""
        assert await verdict(closed) == "refused"
        assert await probe("255.255.255.255", 1, 300) == "unreachable"
        full.listen(0)
        while await verdict(full) == "":
            # Nobody accepts: when its queue is full the kernel answers no more, as a machine that is gone.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        assert await verdict(full) == "silent"
