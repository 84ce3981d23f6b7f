"""A claim that is overtaken and tried again leaves one Claim of its nonce in the log (LOG-54).

Node 3 has just come back and is behind; another claimant reaches node 2 between the promise and the Claim of
ours, and dies.
"""

import secrets
import tempfile
from pathlib import Path
from typing import Any

from kit.metadata.metadata_instances import Writer, metadata_cluster
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.internal.v1 import metadata_pb2


async def main() -> None:
    """The story, and how often each nonce stands in the log."""
    folder = Path(tempfile.mkdtemp(prefix="muster-nonce-"))
    async with metadata_cluster(folder, 3, shards=1) as cluster:
        await cluster.nodes[2].kill()
        before, writer = Writer(0, "c-0"), Writer(0, "c-1")
        await before.own(cluster[0])
        await before.append(cluster[0], b"w:1")
        await cluster[0].stop()
        await cluster.nodes[2].start()
        mine = await cluster.add_instance()
        nodes = mine.server.metadata.quorum.nodes
        await until(lambda: all(node.steps.connected for node in nodes), "connected")
        node: Any = nodes[1]
        send, overtaking = node.append, list[Any]()

        def append(shard: int, *rest: Any, **options: Any) -> Any:
            if not overtaking:
                overtaking.append(node.prepare(shard, 50, secrets.token_bytes(16), b"other"))
            return send(shard, *rest, **options)

        node.append = append
        result = await writer.claim(mine)
        report(f"the claim: {metadata_pb2.LogOutcome.Name(result.outcome)}, epoch {result.epoch}")

        async def claimed() -> bool:
            if result.outcome == metadata_pb2.LOG_OUTCOME_OK:
                return True
            writer.nonce = secrets.token_bytes(16)
            return (await writer.claim(mine)).outcome == metadata_pb2.LOG_OUTCOME_OK

        await until(claimed, "the log is claimed")
        nonces = [entry.nonce for entry in await mine.read(0, writer)]
        report(f"{len(nonces)} entries, {len(set(nonces))} nonces")
        if len(set(nonces)) != len(nonces):
            raise Broken("one nonce stands in the log twice")


if __name__ == "__main__":
    run(main)
