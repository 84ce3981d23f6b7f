"""A stranger at the port of metadata claims every shard twice a second.

Must hold: only coordinators claim shards; W goes on.
"""

import asyncio
import secrets
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from abuse.internal_ports import REFUSALS, SHARDS
from abuse.lab import GAP_S, Lab
from kit.programs import Broken, report, run
from kit.tokens import token_settings
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc

ROUNDS = 12
PAUSE_S = 0.5


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", token_settings(Path(folder)), with_worker=True) as lab:
            began_s = time.monotonic()
            async with grpc.aio.insecure_channel(lab.cluster.metadata[0].address) as channel:
                try:
                    outcomes = await claim_all(metadata_pb2_grpc.MetadataServiceStub(channel))
                except grpc.aio.AioRpcError as error:
                    if error.code() not in REFUSALS:
                        raise
                    outcomes = Counter()
            window = lab.window(began_s, time.monotonic())
            claimed = outcomes[metadata_pb2.LogOutcome.Name(metadata_pb2.LOG_OUTCOME_OK)]
            report(f"claims: {dict(outcomes)}; W's longest gap {window.gap_s:.1f} s")
            if claimed:
                raise Broken(f"a stranger claimed shards {claimed} times")
            if window.events or window.gap_s > GAP_S:
                raise Broken(f"W was disturbed: {window}")


async def claim_all(stub: Any) -> Counter[str]:
    """Claims all shards again and again; counts the answers."""
    outcomes: Counter[str] = Counter()
    call = stub.Log(timeout=60)
    for _ in range(ROUNDS):
        calls = [
            metadata_pb2.LogCall(
                call_id=shard + 1,
                shard=shard,
                claim=metadata_pb2.ClaimStep(
                    node_id="a-stranger", session="x", nonce=secrets.token_bytes(16)
                ),
            )
            for shard in range(SHARDS)
        ]
        try:
            await call.write(metadata_pb2.LogRequest(calls=calls))
        except grpc.aio.AioRpcError:
            if await call.code() not in REFUSALS:  # what it ended with; the write says only that it has
                raise
            return outcomes
        left = len(calls)
        while left:
            answer = await call.read()
            if answer is grpc.aio.EOF:
                return outcomes
            outcomes.update(metadata_pb2.LogOutcome.Name(result.outcome) for result in answer.results)
            left -= len(answer.results)
        await asyncio.sleep(PAUSE_S)
    call.cancel()
    return outcomes


if __name__ == "__main__":
    run(main)
