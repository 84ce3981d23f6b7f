"""A node loses its data a second time: the delay before it votes is waited for again (LOG-49, LOG-48).

One instance of metadata saw it empty the first time and another one filled it. The second time a claim still
counts what the node promised before; it must not vote under the old owner's claim meanwhile.
"""

import asyncio
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from kit.metadata.metadata_instances import Instance, Writer, metadata_cluster, records
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.internal.v1 import metadata_pb2
from safety.forgotten_promise import slow_once

DELAY_S = 2.0


async def won(writer: Writer, instance: Instance) -> metadata_pb2.LogResult:
    """Claims until the outcome is known, as a coordinator does: on a slow machine one attempt may run out."""
    while True:
        result = await writer.claim(instance)
        if result.outcome != metadata_pb2.LOG_OUTCOME_UNKNOWN:
            return result


async def main() -> None:
    """The story, and whether the commit that was acknowledged meanwhile is still there."""
    folder = Path(tempfile.mkdtemp(prefix="muster-wipe-"))
    times: dict[str, Any] = {
        "step_timeout_ms": 1_000,
        "claim_timeout_ms": 5_000,
        "rebuild_delay_ms": int(1_000 * DELAY_S),
    }
    async with metadata_cluster(folder, 3, instances=2, shards=1, **times) as cluster:
        first, second = cluster[0], cluster[1]
        one, two, owner = Writer(0, "c-1"), Writer(0, "c-2"), Writer(0, "c-3")
        await one.own(first)
        await one.append(first, b"w:1")
        async with cluster.client(2) as client:
            await client.flushall()

            async def marked() -> bool:
                return bool(await client.exists("muster:{0}:vacant"))

            await until(marked, "somebody saw it empty")
            await two.own(second)
            await until(lambda: cluster.level(0), "it is filled")
            await owner.own(first)
            await owner.append(first, b"w:2")
            await until(lambda: cluster.level(0), "level")
            await asyncio.sleep(DELAY_S)

            to_claimant = second.server.metadata.quorum.nodes
            slow_once(to_claimant[0], "prepare", ask_s=0.5)
            slow_once(to_claimant[1], "prepare", ask_s=2.5)
            slow_once(to_claimant[2], "append", answer_s=3)
            claimant = Writer(0, "c-4")
            claiming = asyncio.create_task(won(claimant, second))

            async def promised() -> bool:
                return await client.hget("muster:{0}:promise", "epoch") == b"%d" % (owner.epoch + 1)

            await until(promised, "node 3 promised")
            await client.flushall()
            wiped_s = time.monotonic()
            slow_once(first.server.metadata.quorum.nodes[0], "append", ask_s=2.0)

            async def back() -> bool:
                return bool(await client.exists("muster:{0}:promise"))

            appending = asyncio.create_task(owner.send(first, owner.batch(b"w:3")))
            await until(back, "node 3 is filled again")
            away_s = time.monotonic() - wiped_s
        report(f"node 3 votes again {away_s:.2f} s after its second loss; the delay is {DELAY_S:.0f} s")
        report(f"the owner's append: {metadata_pb2.LogOutcome.Name((await appending).outcome)}")
        report(f"the claim: {metadata_pb2.LogOutcome.Name((await claiming).outcome)}")
        successor = Writer(0, "c-5")

        async def claimed() -> bool:
            successor.nonce = secrets.token_bytes(16)
            return (await successor.claim(second)).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(claimed, "the log is claimed")
        left = records(await second.read(0, successor))
        lost = [record for record in owner.acknowledged if record not in left]
        if lost:
            raise Broken(f"acknowledged commits are gone: {lost}")
        if away_s < DELAY_S:
            raise Broken(f"the node was filled {away_s:.2f} s after it lost its data")


if __name__ == "__main__":
    run(main)
