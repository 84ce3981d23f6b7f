"""A coordinator is stopped while a stranger asks for all its shards, to be sent its callers.

Internal calls are answered where clients connect, as they are for coordinators of the version before.

Must hold: callers are sent to coordinators of the cluster, nothing of theirs reaches the stranger, and W goes
on at the next owner.
"""

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from abuse.asked_handoffs import OLD_PLACE, ask_for_all, described
from abuse.caller import connection
from abuse.lab import Lab, Target
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2

ASKS_S = 1.0
PAUSE_S = 0.002
BACK_S = 20.0
QUIET_S = 2.0
LATE = "AioRpcError"
GIVEN = peer_pb2.HandoffOutcome.Name(peer_pb2.HANDOFF_OUTCOME_HANDED_OVER)


class Stranger(grpc.GenericRpcHandler):
    """Takes every call that comes, and answers none of them."""

    def __init__(self) -> None:
        self.called: Counter[str] = Counter()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Notes a call."""
        self.called[details.method] += 1
        return None


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", OLD_PLACE, with_worker=True) as lab:
            target = await Target.at(lab.cluster.servers)
            stranger = Stranger()
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((stranger,))
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            asking = asyncio.create_task(ask(target, port))
            await asyncio.sleep(ASKS_S)
            began_s = time.monotonic()
            process = next(one for one in lab.cluster.coordinators if one.address == target.owner)
            await process.terminate()
            outcomes = await asking
            await until(lambda: lab.window(began_s, time.monotonic()).commits > 1, "W to go on", BACK_S)
            await asyncio.sleep(QUIET_S)
            window = lab.window(began_s, time.monotonic())
            await server.stop(None)
            report(f"asked: {dict(outcomes)}; W's longest gap {window.gap_s:.2f} s")
            if stranger.called:
                raise Broken(f"a stranger was called: {dict(stranger.called)}")
            if window.events:
                raise Broken(f"W was disturbed: {'; '.join(window.events)}")
            if not outcomes[GIVEN]:
                raise RuntimeError("the stranger was never first to ask, so nothing was shown")


async def ask(target: Target, port: int) -> Counter[str]:
    """Asks for the shards of W's owner until that is gone."""
    cluster = await described(target.servers)
    others = [one for one in cluster.coordinators if f"{one.host}:{one.port}" != target.owner]
    outcomes: Counter[str] = Counter()
    async with connection(target.owner) as channel:
        while not outcomes[LATE]:
            outcomes += await ask_for_all(channel, others, "127.0.0.1", port, cluster.shard_count)
            await asyncio.sleep(PAUSE_S)
    return outcomes


if __name__ == "__main__":
    run(main)
