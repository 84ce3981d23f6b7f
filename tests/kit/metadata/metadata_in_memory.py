"""Metadata with its log in memory, over real gRPC, that fails on command.

Coordinators meet the same messages as from the real one: claims with promises, fenced appends by end and
hash, leases with a verdict on the dead, a pushed view. Several instances may share one store.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any, NoReturn

import grpc
from muster_core.features import FEATURE_NAMES
from muster_core.log.chain import BEFORE_GENESIS, chain_hash
from muster_core.position import GENESIS, Position
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import discovery_pb2

LIVE = discovery_pb2.COORDINATOR_STATE_LIVE
DEAD = discovery_pb2.COORDINATOR_STATE_DEAD


def packed(entries: list[metadata_pb2.LogEntry]) -> list[bytes]:
    """Entries as metadata packs them: one run per epoch."""
    runs = []
    for epoch, group in groupby(entries, key=lambda entry: entry.position.epoch):
        row = list(group)
        run = metadata_pb2.EntryRun(epoch=epoch, first_offset=row[0].position.offset)
        run.records.extend(entry.record for entry in row)
        run.nonces = b"".join(entry.nonce for entry in row)
        run.hashes = b"".join(entry.hash for entry in row)
        runs.append(run.SerializeToString())
    return runs


class MemoryStore:
    """What a quorum would hold.

    Attributes:
        stopped: no node answers: steps end UNKNOWN, leases are not renewed.
        lose_answers: so many appends are carried out and answered UNKNOWN.
        refuse: so many appends are answered REFUSED.
        steps: number of steps by kind.
        batches: number of records of each append.
        run: number that each renewal is answered with.
        runs: those that renewals named as their last one.
    """

    def __init__(self, shard_count: int = 4) -> None:
        self.shard_count = shard_count
        self.stopped = False
        self.lose_answers = 0
        self.refuse = 0
        self.full = False  # takes only what frees
        self.steps: Counter[str] = Counter()
        self.batches: list[int] = []
        self.requests: list[int] = []
        self.run = 1
        self.runs: list[int] = []
        self.logs: list[list[metadata_pb2.LogEntry]] = [[] for _ in range(shard_count)]
        self.promises: list[tuple[int, bytes]] = [(0, b"")] * shard_count
        self.nodes: dict[str, discovery_pb2.CoordinatorNode] = {}
        self.sessions: dict[str, str] = {}
        self.owners: dict[int, discovery_pb2.ShardOwner] = {}
        self.catalog = metadata_pb2.TopicCatalog(features=FEATURE_NAMES)
        self.version = 0
        self.news = asyncio.Event()
        for shard, log in enumerate(self.logs):
            genesis = records_pb2.Record(
                genesis=records_pb2.Genesis(cluster_id="c", shard_count=shard_count, shard=shard)
            )
            self.write(log, GENESIS, genesis.SerializeToString(), os.urandom(16))

    def write(
        self, log: list[metadata_pb2.LogEntry], position: Position, record: bytes, nonce: bytes
    ) -> None:
        before = log[-1].hash if log else BEFORE_GENESIS
        log.append(
            metadata_pb2.LogEntry(
                position=position.to_proto(),
                record=record,
                nonce=nonce,
                hash=chain_hash(before, position, nonce, record),
            )
        )

    def end(self, shard: int) -> metadata_pb2.LogEnd:
        last = self.logs[shard][-1]
        return metadata_pb2.LogEnd(position=last.position, hash=last.hash)

    def records(self, shard: int, kind: str) -> list[Any]:
        """The records of a kind in a shard's log."""
        found = []
        for entry in self.logs[shard]:
            record = records_pb2.Record.FromString(entry.record)
            if record.WhichOneof("kind") == kind:
                found.append(getattr(record, kind))
        return found

    def step(self, call: metadata_pb2.LogCall) -> metadata_pb2.LogResult:
        kind = str(call.WhichOneof("step"))
        self.steps[kind] += 1
        if self.stopped:
            return self.result(call, metadata_pb2.LOG_OUTCOME_UNKNOWN)
        if kind == "claim":
            return self.claim(call)
        held = self.promises[call.shard] == (
            (call.append.epoch, call.append.claim_nonce)
            if kind == "append"
            else (call.check.epoch, call.check.claim_nonce)
        )
        if not held:
            return self.result(call, metadata_pb2.LOG_OUTCOME_FENCED, self.promises[call.shard][0])
        if kind == "check":
            return self.result(call, metadata_pb2.LOG_OUTCOME_OK)
        return self.append(call)

    def claim(self, call: metadata_pb2.LogCall) -> metadata_pb2.LogResult:
        epoch, nonce = self.promises[call.shard]
        if nonce == call.claim.nonce:
            return self.result(call, metadata_pb2.LOG_OUTCOME_OK, epoch)
        epoch = max(epoch, call.claim.above_epoch) + 1
        self.promises[call.shard] = (epoch, call.claim.nonce)
        log = self.logs[call.shard]
        record = records_pb2.Record(
            claim=records_pb2.Claim(node_id=call.claim.node_id, previous=log[-1].position)
        )
        place = Position(epoch, log[-1].position.offset + 1)
        self.write(log, place, record.SerializeToString(), call.claim.nonce)
        self.owners[call.shard] = discovery_pb2.ShardOwner(
            shard=call.shard, shard_epoch=epoch, node_id=call.claim.node_id
        )
        self.changed()
        return self.result(call, metadata_pb2.LOG_OUTCOME_OK, epoch)

    def append(self, call: metadata_pb2.LogCall) -> metadata_pb2.LogResult:
        step, log = call.append, self.logs[call.shard]
        if self.refuse or (self.full and not step.frees):
            self.refuse = max(0, self.refuse - 1)
            return self.result(call, metadata_pb2.LOG_OUTCOME_REFUSED)
        if self.end(call.shard) != step.end:
            tail = [entry.nonce for entry in log[-len(step.records) :]]
            if tail != [record.nonce for record in step.records]:
                return self.result(call, metadata_pb2.LOG_OUTCOME_INVALID)
            return self.result(call, metadata_pb2.LOG_OUTCOME_OK)
        for record in step.records:
            place = Position(step.epoch, log[-1].position.offset + 1)
            self.write(log, place, record.record, record.nonce)
        self.batches.append(len(step.records))
        if self.lose_answers:
            self.lose_answers -= 1
            return self.result(call, metadata_pb2.LOG_OUTCOME_UNKNOWN)
        return self.result(call, metadata_pb2.LOG_OUTCOME_OK)

    def result(
        self, call: metadata_pb2.LogCall, outcome: metadata_pb2.LogOutcome.ValueType, epoch: int = 0
    ) -> metadata_pb2.LogResult:
        end = self.end(call.shard) if outcome == metadata_pb2.LOG_OUTCOME_OK else None
        message = "" if outcome == metadata_pb2.LOG_OUTCOME_OK else "told to"
        return metadata_pb2.LogResult(
            call_id=call.call_id, outcome=outcome, end=end, epoch=epoch, message=message
        )

    def fence(self, shard: int) -> None:
        """A foreign claimant takes the promise."""
        self.promises[shard] = (self.promises[shard][0] + 1, os.urandom(16))

    def changed(self) -> None:
        self.version += 1
        self.news.set()
        self.news = asyncio.Event()

    def cluster(self) -> discovery_pb2.Cluster:
        return discovery_pb2.Cluster(
            cluster_id="c",
            shard_count=self.shard_count,
            coordinators=[self.nodes[name] for name in sorted(self.nodes)],
            shards=[self.owners[shard] for shard in sorted(self.owners)],
        )

    def dead(self, node_id: str) -> None:
        if node_id in self.nodes:
            self.nodes[node_id].state = DEAD
        for owner in self.owners.values():
            if owner.node_id == node_id:
                owner.node_id, owner.serving = "", False
        self.changed()


class MemoryMetadata(metadata_pb2_grpc.MetadataServiceServicer):
    """One instance.

    Attributes:
        silent: it takes steps and leases and answers none.
        cut_off: it reaches no majority of the nodes: it knows the outcome of no step.
    """

    def __init__(self, store: MemoryStore, lease_ms: int = 2_000) -> None:
        self.store = store
        self.lease_ms = lease_ms
        self.silent = False
        self.cut_off = False
        self.port = 0
        self.log_streams = 0
        self._server: grpc.aio.Server | None = None
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> "MemoryMetadata":
        # A server that minds its clients' pings, of which a starved machine sends several at
        # once, ends their connections.
        options = [("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)]
        self._server = grpc.aio.server(options=options)
        metadata_pb2_grpc.add_MetadataServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
        for check in tuple(self._checks):
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def Log(
        self, requests: AsyncIterator[metadata_pb2.LogRequest], context: Any
    ) -> AsyncIterator[metadata_pb2.LogResponse]:
        self.log_streams += 1
        async for request in requests:
            if self.silent:
                continue
            self.store.requests.append(len(request.calls))
            if self.cut_off:
                unknown = metadata_pb2.LOG_OUTCOME_UNKNOWN
                yield metadata_pb2.LogResponse(
                    results=[self.store.result(call, unknown) for call in request.calls]
                )
                continue
            yield metadata_pb2.LogResponse(results=[self.store.step(call) for call in request.calls])

    async def Lease(
        self, requests: AsyncIterator[metadata_pb2.LeaseRequest], context: Any
    ) -> AsyncIterator[metadata_pb2.LeaseResponse]:
        last: metadata_pb2.LeaseRequest | None = None
        try:
            async for request in requests:
                if request.leave:
                    last = None
                    return
                last = request
                if not self.silent:
                    yield self._renew(request)
        finally:
            if last is not None and not last.release:
                task = asyncio.get_running_loop().create_task(self._look_after(last))
                self._checks.add(task)
                task.add_done_callback(self._checks.discard)

    def _renew(self, request: metadata_pb2.LeaseRequest) -> metadata_pb2.LeaseResponse:
        store = self.store
        if store.stopped:
            return metadata_pb2.LeaseResponse(number=request.number, message="no majority")
        if request.release:
            store.dead(request.node_id)
            store.nodes.pop(request.node_id, None)
            store.changed()
            return metadata_pb2.LeaseResponse(number=request.number, renewed=True)
        if store.sessions.get(request.node_id, request.session) != request.session:
            return metadata_pb2.LeaseResponse(
                number=request.number, superseded=True, message="another took it"
            )
        store.sessions[request.node_id] = request.session
        store.runs.append(request.run)
        node = discovery_pb2.CoordinatorNode(
            node_id=request.node_id, host=request.host, port=request.port, state=request.state
        )
        serving = {served.shard: served.epoch for served in request.serving}
        before = (store.nodes.get(request.node_id), [owner.serving for owner in store.owners.values()])
        for owner in store.owners.values():
            if owner.node_id == request.node_id:
                owner.serving = serving.get(owner.shard) == owner.shard_epoch
        store.nodes[request.node_id] = node
        if before != (node, [owner.serving for owner in store.owners.values()]):
            store.changed()
        return metadata_pb2.LeaseResponse(
            number=request.number, renewed=True, features=store.catalog.features, run=store.run
        )

    async def _look_after(self, last: metadata_pb2.LeaseRequest) -> None:
        """The stream broke: the process is dead if its address refuses."""
        try:
            _, writer = await asyncio.open_connection(last.host, last.port)
            writer.close()
        except OSError:
            if self.store.sessions.get(last.node_id) == last.session and not self.store.stopped:
                self.store.dead(last.node_id)

    async def ReadLog(
        self, request: metadata_pb2.ReadLogRequest, context: Any
    ) -> AsyncIterator[metadata_pb2.ReadLogResponse]:
        if self.store.stopped or self.cut_off:
            yield metadata_pb2.ReadLogResponse(
                outcome=metadata_pb2.LOG_OUTCOME_UNKNOWN, message="no majority"
            )
            return
        if request.shard == len(self.store.logs):  # the catalog, which has no log here
            yield metadata_pb2.ReadLogResponse(
                outcome=metadata_pb2.LOG_OUTCOME_OK, acknowledged=self.store.catalog.version
            )
            return
        if request.epoch and self.store.promises[request.shard] != (request.epoch, request.claim_nonce):
            yield metadata_pb2.ReadLogResponse(
                outcome=metadata_pb2.LOG_OUTCOME_FENCED, message="claimed by another"
            )
            return
        first = getattr(request, "from").offset
        entries = [entry for entry in self.store.logs[request.shard] if entry.position.offset >= first]
        size = request.page_size or 1_000
        for start in range(0, len(entries), size):
            yield metadata_pb2.ReadLogResponse(
                outcome=metadata_pb2.LOG_OUTCOME_OK, runs=packed(entries[start : start + size])
            )
        yield metadata_pb2.ReadLogResponse(outcome=metadata_pb2.LOG_OUTCOME_OK)

    async def Watch(
        self, request: metadata_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[metadata_pb2.WatchResponse]:
        while True:
            news = self.store.news
            yield metadata_pb2.WatchResponse(
                cluster=self.store.cluster(),
                catalog=self.store.catalog,
                lease_ms=self.lease_ms,
                log_time_ms=time.time_ns() // 1_000_000,
            )
            await news.wait()

    async def ChangeTopic(
        self, request: metadata_pb2.ChangeTopicRequest, context: Any
    ) -> metadata_pb2.ChangeTopicResponse:
        await _not_here(context)

    async def ReportExported(
        self, request: metadata_pb2.ReportExportedRequest, context: Any
    ) -> metadata_pb2.ReportExportedResponse:
        await _not_here(context)

    async def DescribeLog(
        self, request: metadata_pb2.DescribeLogRequest, context: Any
    ) -> metadata_pb2.DescribeLogResponse:
        await _not_here(context)

    async def RecordTrail(
        self, request: metadata_pb2.RecordTrailRequest, context: Any
    ) -> metadata_pb2.RecordTrailResponse:
        return metadata_pb2.RecordTrailResponse(outcome=metadata_pb2.LOG_OUTCOME_OK)

    async def ReadTrail(
        self, request: metadata_pb2.ReadTrailRequest, context: Any
    ) -> AsyncIterator[metadata_pb2.ReadTrailResponse]:
        yield metadata_pb2.ReadTrailResponse(outcome=metadata_pb2.LOG_OUTCOME_OK)

    async def ListFeatures(
        self, request: metadata_pb2.ListFeaturesRequest, context: Any
    ) -> metadata_pb2.ListFeaturesResponse:
        await _not_here(context)

    async def EnableFeature(
        self, request: metadata_pb2.EnableFeatureRequest, context: Any
    ) -> metadata_pb2.EnableFeatureResponse:
        await _not_here(context)


async def _not_here(context: Any) -> NoReturn:
    """Answers as a server that does not have the call."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the store in memory does not have the call")
    raise AssertionError("abort raises")
