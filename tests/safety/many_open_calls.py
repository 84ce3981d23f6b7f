"""More shards ask the log at once than a stream has open calls: none of them is given up (LIM-05).

A coordinator of many shards that had no lease for a moment asks for each whether its claim stands, in one
turn of its loop. What is too much at that moment is no mistake of the caller.

What must hold: every question gets its answer in the end.
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import grpc.aio
from kit.metadata.metadata_instances import Writer, metadata_cluster
from kit.programs import Broken, report, run
from muster_coordinator.log.log_client import LogClient
from muster_metadata.log_stream import MAX_OPEN_CALLS
from muster_protos.muster.internal.v1 import metadata_pb2

CALLS = MAX_OPEN_CALLS + 200
WITHIN_S = 120.0


async def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="muster-open-calls-"))
    async with metadata_cluster(folder, 1, shards=1) as cluster:
        writer = Writer(0, "c-1")
        await writer.own(cluster[0])
        client = LogClient([cluster[0].address], grpc.aio.insecure_channel)
        client.start()
        try:
            step = metadata_pb2.CheckStep(epoch=writer.epoch, claim_nonce=writer.nonce)
            answers = [client.submit(0, step) for _ in range(CALLS)]
            try:
                results = await asyncio.wait_for(asyncio.gather(*answers), WITHIN_S)
            except TimeoutError as error:
                missing = sum(not answer.done() or answer.cancelled() for answer in answers)
                raise Broken(f"{missing} of {CALLS} questions have no answer after {WITHIN_S:g} s") from error
        finally:
            await client.stop()
    counts = Counter(metadata_pb2.LogOutcome.Name(result.outcome) for result in results)
    if counts != {metadata_pb2.LogOutcome.Name(metadata_pb2.LOG_OUTCOME_OK): CALLS}:
        raise Broken(f"the claim stands, and the answers were {dict(counts)}")
    report(f"{CALLS} questions at once were all answered; {client.repeats} were asked again")


if __name__ == "__main__":
    run(main)
