"""A stranger at the port of metadata claims the shard of W's group and writes a commit into its log.

Must hold: only coordinators claim shards and write to their logs.
"""

import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from abuse.caller import stored_offset
from abuse.innocent import TOPIC
from abuse.internal_ports import REFUSALS, SHARDS
from abuse.lab import GROUP, Lab, find
from kit.programs import Broken, report, run
from kit.tokens import token_settings
from kit.waiting import until
from muster_core.sharding import shard_of
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.log.v1 import records_pb2

FORGED = 666_666_666_666
BACK_S = 20.0


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", token_settings(Path(folder)), with_worker=True) as lab:
            async with grpc.aio.insecure_channel(lab.cluster.metadata[0].address) as channel:
                began_s = time.monotonic()
                try:
                    await forge(metadata_pb2_grpc.MetadataServiceStub(channel))
                except grpc.aio.AioRpcError as error:
                    if error.code() in REFUSALS:
                        return
                    raise
            await until(lambda: lab.window(began_s, time.monotonic()).commits > 0, "W to go on", BACK_S)
            window = lab.window(began_s, time.monotonic())
            stored = await stored_offset(await find(lab.cluster.servers, GROUP), GROUP)
            report(f"W's progress is {stored:,} now; its longest gap was {window.gap_s:.1f} s")
            raise Broken("a stranger claimed W's shard and wrote to its log")


async def forge(stub: Any) -> None:
    """Claims the shard of W's group, and writes a commit.

    Raises:
        grpc.aio.AioRpcError: it is not done for a stranger.
    """
    shard, nonce, call = shard_of(GROUP, SHARDS), secrets.token_bytes(16), stub.Log(timeout=20)

    async def ask(**step: Any) -> metadata_pb2.LogResult:
        await call.write(
            metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall(call_id=1, shard=shard, **step)])
        )
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise RuntimeError("metadata ended the stream")
        result: metadata_pb2.LogResult = answer.results[0]
        if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
            raise RuntimeError(f"answered {metadata_pb2.LogOutcome.Name(result.outcome)}")
        return result

    claimed = await ask(claim=metadata_pb2.ClaimStep(node_id="a-stranger", session="x", nonce=nonce))
    record = records_pb2.Record(written_at_ms=time.time_ns() // 1_000_000)
    record.offset_committed.group_id, record.offset_committed.generation = GROUP, -1
    record.offset_committed.offsets.add(topic=TOPIC, offset=FORGED, leader_epoch=-1, metadata="forged")
    new = metadata_pb2.NewRecord(record=record.SerializeToString(), nonce=secrets.token_bytes(16))
    await ask(
        append=metadata_pb2.AppendStep(
            epoch=claimed.epoch, claim_nonce=nonce, end=claimed.end, records=[new], first_attempt=True
        )
    )
    call.cancel()


if __name__ == "__main__":
    run(main)
