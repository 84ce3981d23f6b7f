"""A node forgets the promise that a claim counts, and is back at once: no commit is cut (LOG-50, LOG-51).

`appendfsync everysec`. The claimant's ways to nodes 1 and 2 are slow, so the promise of node 3 is counted
before theirs; node 3 is killed, loses the end of its file, and is back within a fraction of a second. The
owner, whose way to node 1 is slow as well, goes on.
"""

import asyncio
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.metadata.metadata_instances import Writer, metadata_cluster, records
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_metadata.nodes.node import Node
from muster_protos.muster.internal.v1 import metadata_pb2

Send = Callable[..., "asyncio.Future[Any]"]


def delayed(send: Send, ask_s: float, answer_s: float = 0.0) -> Send:
    """What is sent takes so long to get there, and its answer so long to come back."""

    def later(*arguments: Any, **options: Any) -> "asyncio.Future[Any]":
        async def carry() -> Any:
            await asyncio.sleep(ask_s)
            answer = await send(*arguments, **options)
            await asyncio.sleep(answer_s)
            return answer

        return asyncio.ensure_future(carry())

    return later


def slow_once(node: Node, method: str, ask_s: float = 0.0, answer_s: float = 0.0) -> None:
    """The next command of a kind is slow."""
    real = getattr(node, method)

    def once(*arguments: Any, **options: Any) -> "asyncio.Future[Any]":
        setattr(node, method, real)
        return delayed(real, ask_s, answer_s)(*arguments, **options)

    setattr(node, method, once)


def slow(connection: Any, ask_s: float) -> None:
    """All that is sent by a `NodeConnection` is slow."""
    connection.send = delayed(connection.send, ask_s)


async def main() -> None:
    """The story, and whether the commit that was acknowledged meanwhile is still there."""
    folder = Path(tempfile.mkdtemp(prefix="muster-promise-"))
    times: dict[str, Any] = {"step_timeout_ms": 1_000, "claim_timeout_ms": 5_000, "rebuild_delay_ms": 2_000}
    async with metadata_cluster(folder, 3, instances=2, shards=1, fsync="everysec", **times) as cluster:
        owner, claimant = Writer(0, "c-1"), Writer(0, "c-2")
        await owner.own(cluster[0])
        await owner.append(cluster[0], b"w:1")
        await until(lambda: cluster.level(0), "level")
        node = cluster.nodes[2]
        (aof,) = (node.folder / "appendonlydir").glob("*.incr.aof")
        synced = aof.stat().st_size
        to_owner = cluster[0].server.metadata.quorum.nodes
        to_claimant = cluster[1].server.metadata.quorum.nodes
        slow_once(to_claimant[0], "prepare", ask_s=0.9)
        slow_once(to_claimant[1], "prepare", ask_s=2.5)
        slow_once(to_claimant[2], "append", answer_s=3)
        claiming = asyncio.create_task(claimant.claim(cluster[1]))

        async def promised() -> bool:
            async with cluster.client(2) as client:
                return await client.hget("muster:{0}:promise", "epoch") == b"2"

        await until(promised, "node 3 promised")
        await node.kill()
        with aof.open("r+b") as file:
            file.truncate(synced)
        await node.start()
        await until(lambda: to_owner[2].steps.connected and to_owner[2].bulk.connected, "node 3 is back")
        slow(to_owner[0].steps, 2.0)
        slow(to_owner[0].bulk, 2.0)
        result = await owner.send(cluster[0], owner.batch(b"w:2"))
        report(f"the owner's append: {metadata_pb2.LogOutcome.Name(result.outcome)}")
        report(f"the claim: {metadata_pb2.LogOutcome.Name((await claiming).outcome)}")
        successor = Writer(0, "c-3")

        async def claimed() -> bool:
            successor.nonce = secrets.token_bytes(16)
            return (await successor.claim(cluster[1])).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(claimed, "the log is claimed")
        left = records(await cluster[1].read(0, successor))
        lost = [record for record in owner.acknowledged if record not in left]
        report(f"{len(owner.acknowledged)} commits were acknowledged, {len(lost)} of them are lost")
        if lost:
            raise Broken(f"acknowledged commits are gone: {lost}")


if __name__ == "__main__":
    run(main)
