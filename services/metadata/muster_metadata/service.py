"""The RPCs of metadata: validates requests, calls the other modules, builds answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from muster_core.features import lacking
from muster_core.log.topics.topics import CHANGE_ID_BYTES, name_of
from muster_core.position import Position
from muster_core.record_bounds import APPEND_MAX_BYTES
from muster_protos.limits import ID_MAX_BYTES, TOPIC_PARTITIONS_MAX
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.v1 import common_pb2
from muster_runtime.rpc.refusals import FailedPrecondition, InvalidArgument, Unavailable, Violation
from muster_runtime.turns import Turns

from muster_metadata.catalog.catalog import name_problem
from muster_metadata.cluster import trail
from muster_metadata.cluster.lease_stream import MAX_FEATURE_LENGTH, MAX_FEATURES, lacks
from muster_metadata.log import verdicts
from muster_metadata.log.reading import MAX_PAGE, ReadPage, Wanted
from muster_metadata.log.runs import Run
from muster_metadata.log.states import Inspected
from muster_metadata.log_stream import MAX_CALLS, LogStream
from muster_metadata.metadata import Metadata
from muster_metadata.nodes.entries import NodeEntry
from muster_metadata.nodes.reply import NodeReply, Status
from muster_metadata.readers import Readers

METHOD_LIMITS = {"Log": 4 * APPEND_MAX_BYTES}
"""Largest request in bytes, where it is not the server's default."""

_MESSAGE_BYTES = 8 << 20
_TRAIL_BYTES = 32 << 20
"""About what the audit trail takes while it is read."""
_EVENT_BYTES = 256
"""What an event of it takes besides its text."""
_NAME_FIELDS = {
    "create": "create.name",
    "alter": "alter.name",
    "alter_partitions": "alter_partitions.topic",
    "delete": "delete",
}
"""Where each change names its topic."""


class MetadataServicer(metadata_pb2_grpc.MetadataServiceServicer):
    """Implements `muster.internal.v1.MetadataService` on top of a `Metadata`.

    Args:
        metadata: carries out the calls.
        readers: what is sent to those who read.
    """

    def __init__(self, metadata: Metadata, readers: Readers) -> None:
        self._metadata = metadata
        self._readers = readers
        self._large_messages = Turns()

    async def Log(  # type: ignore[override]  # the stubs know no servicers that are async
        self, request_iterator: AsyncIterator[metadata_pb2.LogRequest], context: Any
    ) -> None:
        """Serves the stream on which a coordinator claims, appends, checks, stores snapshots and trims."""
        metadata = self._metadata
        with self._readers.reading(context) as reader:
            stream = LogStream(
                metadata.logs,
                metadata.snapshots,
                self._shard_count() + 1,
                reader,
                self._large_messages,
                metadata.measures,
            )
            metadata.measures.log_streams += 1
            try:
                if not await stream.serve(request_iterator, metadata.stopping):
                    raise InvalidArgument([Violation("calls", f"must be at most {MAX_CALLS:,}")])
            finally:
                metadata.measures.log_streams -= 1

    async def Lease(  # type: ignore[override]  # the stubs know no servicers that are async
        self, request_iterator: AsyncIterator[metadata_pb2.LeaseRequest], context: Any
    ) -> None:
        """Serves the lease stream of one coordinator."""
        shard_count = self._shard_count()
        with self._readers.reading(context) as reader:
            serving = asyncio.create_task(
                self._metadata.leases.serve(request_iterator, reader.write, shard_count, context.peer()),
                name="lease-stream",
            )
            halt = asyncio.create_task(self._metadata.stopping.wait(), name="lease-stream-halt")
            try:
                await asyncio.wait((serving, halt), return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
            finally:
                for task in (serving, halt):
                    task.cancel()
                await asyncio.gather(serving, halt, return_exceptions=True)

    async def ReadLog(  # type: ignore[override]  # the stubs know no servicers that are async
        self, request: metadata_pb2.ReadLogRequest, context: Any
    ) -> None:
        """Streams the pages of one log."""
        self._check_shard(request.shard, catalog=True)
        if request.page_size > MAX_PAGE:
            raise InvalidArgument([Violation("page_size", f"must be at most {MAX_PAGE}")])
        if request.epoch and len(request.claim_nonce) != 16:
            raise InvalidArgument([Violation("claim_nonce", "must have 16 bytes when an epoch is given")])
        if request.after_hash and len(request.after_hash) != 32:
            raise InvalidArgument([Violation("after_hash", "must have 32 bytes or none")])
        wanted = Wanted(
            shard=request.shard,
            first=Position.from_proto(getattr(request, "from")),
            epoch=request.epoch,
            nonce=request.claim_nonce,
            page_size=request.page_size,
            snapshot=request.snapshot,
            without=frozenset(map(Position.from_proto, request.without_snapshots)),
            after_hash=request.after_hash,
        )
        with self._readers.reading(context) as reader:
            async with aclosing(self._metadata.reader.read(wanted, reader)) as pages:
                async for page in pages:
                    reader.has_page(page)
                    for message in _messages(page, packed=request.packed):
                        await reader.write(message)
                    del page, message  # they are not in memory while the next one waits for room

    async def Watch(  # type: ignore[override]  # the stubs know no servicers that are async
        self, request: metadata_pb2.WatchRequest, context: Any
    ) -> None:
        """Streams the view, now and after every change, to a watcher that knows every enabled feature.

        It ends when no majority of the nodes has been read for a lease time.
        """
        metadata = self._metadata
        await metadata.ready.wait()
        self._shard_count()
        with metadata.servers.watching(_watcher(request, context)), self._readers.reading(context) as reader:
            async for message in metadata.view.watch(last_known=request.last_known):
                if missing := lacking(metadata.catalog.features, request.watcher.features):
                    raise FailedPrecondition(lacks(missing, request.watcher.version))
                await reader.write(message)

    async def ChangeTopic(
        self, request: metadata_pb2.ChangeTopicRequest, context: Any
    ) -> metadata_pb2.ChangeTopicResponse:
        """Creates, changes or removes a topic."""
        self._shard_count()
        kind = request.WhichOneof("change")
        if kind is None:
            raise InvalidArgument(
                [Violation("change", "must be one of create, alter, alter_partitions and delete")]
            )
        name = name_of(request)
        if len(request.change_id) not in (0, CHANGE_ID_BYTES):
            raise InvalidArgument([Violation("change_id", f"must have {CHANGE_ID_BYTES} bytes or none")])
        problem = name_problem(name)
        if problem:
            raise InvalidArgument([Violation(_NAME_FIELDS[kind], problem)])
        if kind in ("create", "alter") and not 1 <= getattr(request, kind).partitions <= TOPIC_PARTITIONS_MAX:
            return metadata_pb2.ChangeTopicResponse(
                error_code=common_pb2.ERROR_CODE_INVALID_PARTITIONS,
                error_message=f"a topic has 1 to {TOPIC_PARTITIONS_MAX} partitions",
            )
        return await self._metadata.catalog.change(request, context.time_remaining())

    async def ReportExported(
        self, request: metadata_pb2.ReportExportedRequest, context: Any
    ) -> metadata_pb2.ReportExportedResponse:
        """Stores how far the audit has exported a log."""
        self._check_shard(request.shard, catalog=True)
        position = Position.from_proto(request.position)
        if len(request.hash) != 32 or not position.offset:
            return _exported(
                metadata_pb2.LOG_OUTCOME_INVALID, "the report needs a position and its 32-byte hash"
            )
        majority = self._metadata.quorum.majority

        def decide(replies: Any, final: bool) -> "metadata_pb2.LogOutcome.ValueType | None":
            if verdicts.count_status(replies, Status.OK) >= majority:
                return metadata_pb2.LOG_OUTCOME_OK
            if verdicts.count_status(replies, Status.MISMATCH, Status.NOLOG) >= majority:
                return metadata_pb2.LOG_OUTCOME_INVALID
            return metadata_pb2.LOG_OUTCOME_UNKNOWN if final else None

        outcome, _ = await self._metadata.quorum.ask(
            lambda node: node.exported(request.shard, position.stream_id, request.hash), decide
        )
        messages = {
            metadata_pb2.LOG_OUTCOME_OK: "",
            metadata_pb2.LOG_OUTCOME_INVALID: "there is no such entry on a majority of the log's nodes",
        }
        known = metadata_pb2.LOG_OUTCOME_UNKNOWN if outcome is None else outcome
        return _exported(known, messages.get(known, verdicts.UNKNOWN.message))

    async def DescribeLog(
        self, request: metadata_pb2.DescribeLogRequest, context: Any
    ) -> metadata_pb2.DescribeLogResponse:
        """Describes the named logs, or all of them, on every node."""
        shards = sorted(set(request.shards)) or range(self._shard_count() + 1)
        for shard in shards:
            self._check_shard(shard, catalog=True)
        nodes = self._metadata.quorum.nodes
        places = [(shard, node) for shard in shards for node in nodes]
        answers = [node.inspect(shard) for shard, node in places]
        await asyncio.wait(answers, timeout=self._metadata.quorum.step_timeout_ms / 1000)
        return metadata_pb2.DescribeLogResponse(
            replicas=[
                _replica(shard, node.index, answer.result() if answer.done() else None)
                for (shard, node), answer in zip(places, answers, strict=True)
            ]
        )

    async def ListFeatures(
        self, request: metadata_pb2.ListFeaturesRequest, context: Any
    ) -> metadata_pb2.ListFeaturesResponse:
        """Lists the enabled features, those that this instance knows, and the servers that are alive."""
        self._shard_count()
        return await self._metadata.features.list()

    async def EnableFeature(
        self, request: metadata_pb2.EnableFeatureRequest, context: Any
    ) -> metadata_pb2.EnableFeatureResponse:
        """Enables a feature for good."""
        self._shard_count()
        return await self._metadata.features.enable(request.name)

    async def RecordTrail(
        self, request: metadata_pb2.RecordTrailRequest, context: Any
    ) -> metadata_pb2.RecordTrailResponse:
        """Keeps events of the audit trail."""
        self._shard_count()
        if not 1 <= len(request.events) <= trail.EVENTS_MAX or any(
            len(event.event_id) != 16 or event.ByteSize() > trail.EVENT_MAX_BYTES for event in request.events
        ):
            return metadata_pb2.RecordTrailResponse(
                outcome=metadata_pb2.LOG_OUTCOME_INVALID, message="too many events, or one that is too large"
            )
        if await self._metadata.trail.record(request.events):
            return metadata_pb2.RecordTrailResponse(outcome=metadata_pb2.LOG_OUTCOME_OK)
        return metadata_pb2.RecordTrailResponse(
            outcome=metadata_pb2.LOG_OUTCOME_UNKNOWN, message=verdicts.UNKNOWN.message
        )

    async def ReadTrail(  # type: ignore[override]  # the stubs know no servicers that are async
        self, request: metadata_pb2.ReadTrailRequest, context: Any
    ) -> None:
        """Streams the audit trail."""
        self._shard_count()
        with self._readers.reading(context) as reader:
            await reader.room(_TRAIL_BYTES)
            events = await self._metadata.trail.read(request.since_ms, reader.host)
            if events is None:
                await reader.write(
                    metadata_pb2.ReadTrailResponse(
                        outcome=metadata_pb2.LOG_OUTCOME_UNKNOWN, message=verdicts.UNKNOWN.message
                    )
                )
                return
            reader.has(sum(map(len, events)) + _EVENT_BYTES * len(events))
            for first in range(0, max(len(events), 1), trail.EVENTS_MAX):
                message = metadata_pb2.ReadTrailResponse(
                    events=map(trail.TrailEvent.FromString, events[first : first + trail.EVENTS_MAX]),
                    outcome=metadata_pb2.LOG_OUTCOME_OK,
                )
                await reader.write(message)
                await asyncio.sleep(0)  # others have their turn, however fast it is read

    def _shard_count(self) -> int:
        if not self._metadata.shard_count:
            raise Unavailable(self._metadata.problem, 200)
        return self._metadata.shard_count

    def _check_shard(self, shard: int, *, catalog: bool) -> None:
        count = self._shard_count() + catalog
        if shard >= count:
            raise InvalidArgument([Violation("shard", f"must be below {count}")])


def _watcher(request: metadata_pb2.WatchRequest, context: Any) -> metadata_pb2.Server:
    """The watcher as it names itself; one that is older than features does not."""
    server = request.watcher
    problem = (
        max(len(server.role), len(server.name), len(server.version)) > ID_MAX_BYTES
        or len(server.features) > MAX_FEATURES
        or any(len(name) > MAX_FEATURE_LENGTH for name in server.features)
    )
    if problem:
        raise InvalidArgument([Violation("watcher", "its names are too long, or too many")])
    return server if server.role else metadata_pb2.Server(role="older", name=context.peer())


def _exported(
    outcome: "metadata_pb2.LogOutcome.ValueType", message: str
) -> metadata_pb2.ReportExportedResponse:
    return metadata_pb2.ReportExportedResponse(outcome=outcome, message=message)


def _messages(page: ReadPage, *, packed: bool) -> Iterator[bytes]:
    """A page as encoded messages that are not too large for a channel."""
    upto = page.snapshot_upto
    head = metadata_pb2.ReadLogResponse(
        acknowledged=page.acknowledged.to_proto(),
        outcome=page.verdict.outcome,
        message=page.verdict.message,
        snapshot_part=page.part,
        snapshot_upto=None if upto is None else upto.to_proto(),
    )
    runs: list[Run] = []
    size = 0
    for run in (part for whole in page.runs for part in whole.cut(_MESSAGE_BYTES)):
        if size and size + run.size_bytes > _MESSAGE_BYTES:
            yield _encoded(head, runs, packed=packed)
            head = metadata_pb2.ReadLogResponse(acknowledged=head.acknowledged, outcome=head.outcome)
            runs, size = [], 0
        size += run.size_bytes
        runs.append(run)
    yield _encoded(head, runs, packed=packed)


def _encoded(head: metadata_pb2.ReadLogResponse, runs: Sequence[Run], *, packed: bool) -> bytes:
    message = metadata_pb2.ReadLogResponse()
    message.CopyFrom(head)
    for run in runs:
        if packed:
            message.runs.append(run.to_proto().SerializeToString())
        else:
            message.entries.extend(map(_entry, run.entries()))
    return message.SerializeToString()


def _entry(entry: NodeEntry) -> metadata_pb2.LogEntry:
    return metadata_pb2.LogEntry(
        position=entry.position.to_proto(), record=entry.record, nonce=entry.nonce, hash=entry.hash
    )


def _replica(shard: int, index: int, reply: NodeReply | None) -> metadata_pb2.DescribeLogResponse.Replica:
    replica = metadata_pb2.DescribeLogResponse.Replica(
        shard=shard, node=index, outcome=metadata_pb2.LOG_OUTCOME_UNKNOWN
    )
    if reply is not None and reply.status is Status.NOLOG:
        replica.outcome = metadata_pb2.LOG_OUTCOME_NO_LOG
    elif reply is not None and reply.status is Status.OK:
        state = Inspected.read(reply)
        replica.outcome = metadata_pb2.LOG_OUTCOME_OK
        replica.end.CopyFrom(state.end.position.to_proto())
        replica.promised_epoch = state.epoch
        replica.acknowledged.CopyFrom(state.acknowledged.to_proto())
        replica.entries = state.entries
    return replica
