#!/usr/bin/env python3
"""What a quorum costs: an append acknowledged by two of three nodes against one to a single node, in one run.

Embedded servers on this machine, `appendfsync everysec`, one append in flight: called in the metadata
instance itself, and through its gRPC stream from the same process. Prints medians and the ratio.

    ./x bench append [--appends 2000] [--record-bytes 300]
"""

import argparse
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import uvloop
from muster_metadata.metadata import Metadata
from muster_metadata.operator.initialise import initialise
from muster_metadata.server import MetadataServer
from muster_metadata.settings import MetadataSettings
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_runtime.settings import load
from muster_server.dev.redis_nodes import RedisNodes

BATCH = 50
ROUND = 100


class Target:
    """One log and a way to append to it: over gRPC, or in the instance itself."""

    def __init__(self, name: str, server: MetadataServer, address: str) -> None:
        self.name = name
        self.metadata: Metadata = server.metadata
        self._channel = grpc.aio.insecure_channel(address)
        self._stream = metadata_pb2_grpc.MetadataServiceStub(self._channel).Log()
        self._nonce = secrets.token_bytes(16)
        self._epoch = 0
        self._end = metadata_pb2.LogEnd()

    async def claim(self) -> None:
        result = await self._call(
            claim=metadata_pb2.ClaimStep(node_id="bench", session="bench", nonce=self._nonce)
        )
        self._epoch, self._end = result.epoch, result.end

    async def _call(self, **step: Any) -> metadata_pb2.LogResult:
        await self._stream.write(
            metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall(call_id=1, shard=0, **step)])
        )
        response = await self._stream.read()
        assert isinstance(response, metadata_pb2.LogResponse)
        result = response.results[0]
        assert result.outcome == metadata_pb2.LOG_OUTCOME_OK, result
        return result

    def _step(self, count: int, record: bytes) -> metadata_pb2.AppendStep:
        return metadata_pb2.AppendStep(
            epoch=self._epoch,
            claim_nonce=self._nonce,
            end=self._end,
            records=[
                metadata_pb2.NewRecord(record=record, nonce=secrets.token_bytes(16)) for _ in range(count)
            ],
        )

    async def over_grpc(self, count: int, record: bytes) -> float:
        step = self._step(count, record)
        began = time.perf_counter()
        result = await self._call(append=step)
        took = time.perf_counter() - began
        self._end = result.end
        return took

    async def in_process(self, count: int, record: bytes) -> float:
        step = self._step(count, record)
        began = time.perf_counter()
        _, end = await self.metadata.logs.append(0, step)
        took = time.perf_counter() - began
        assert end is not None
        self._end = end.to_proto()
        return took

    async def close(self) -> None:
        self._stream.cancel()
        await self._channel.close()


async def measure(appends: int, record_bytes: int, folder: Path) -> None:
    record = secrets.token_bytes(record_bytes)
    nodes = [RedisNodes(folder / "one", 1), RedisNodes(folder / "three", 3)]
    servers, targets = [], []
    for name, group in zip(("1 node", "3 nodes"), nodes, strict=True):
        await group.start()
        await initialise(group.url, 1)
        server = MetadataServer(load(MetadataSettings, redis_url=group.url, listen="127.0.0.1:0"))
        port = await server.start()
        await server.metadata.ready.wait()
        target = Target(name, server, f"127.0.0.1:{port}")
        await target.claim()
        servers.append(server)
        targets.append(target)
    print(f"{'':24}{'1 node':>12}{'3 nodes':>12}{'ratio':>8}   ({record_bytes} bytes per record)")
    for way in ("in_process", "over_grpc"):
        for count in (1, BATCH):
            times: list[list[float]] = [[], []]
            for _ in range(max(1, appends // ROUND)):
                # In turns, so that whatever else the machine does hits both alike.
                for target, kept in zip(targets, times, strict=True):
                    kept += [await getattr(target, way)(count, record) for _ in range(ROUND)]
            one, three = (statistics.median(kept[ROUND // 2 :]) for kept in times)
            label = f"{'single' if count == 1 else f'batch of {count}'}, {way.replace('_', ' ')}"
            print(f"{label:24}{one * 1e3:9.3f} ms{three * 1e3:9.3f} ms{three / one:8.2f}", flush=True)
            if count > 1:
                print(f"{'':24}{count / one:8.0f} r/s{count / three:8.0f} r/s")
    for target, server, group in zip(targets, servers, nodes, strict=True):
        await target.close()
        await server.stop(0)
        await group.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--appends", type=int, default=1_000, help="appends of each kind (default 1,000)")
    parser.add_argument("--record-bytes", type=int, default=300, help="size of a record (default 300)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(options.appends, options.record_bytes, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
