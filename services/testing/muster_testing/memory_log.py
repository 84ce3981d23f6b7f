"""A log of one shard in memory: what a quorum of nodes would hold."""

import asyncio

from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_client import Step
from muster_coordinator.log.log_image import LogImage
from muster_core.config import GroupConfig
from muster_core.log.chain import BEFORE_GENESIS, chain_hash
from muster_core.position import GENESIS, Position
from muster_core.state.quarantine import NOBODY, Quarantine
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2

CLUSTER_ID = "in-process"
_FIRST_NONCE = bytes(16)


class MemoryLog:
    """Takes claims, appends and barriers; an append is refused to all but the last claimant."""

    def __init__(self) -> None:
        self._entries: list[metadata_pb2.LogEntry] = []
        self._epoch, self._nonce = 0, b""
        genesis = records_pb2.Genesis(cluster_id=CLUSTER_ID, shard_count=1, shard=0)
        self._write(GENESIS, records_pb2.Record(genesis=genesis).SerializeToString(), _FIRST_NONCE)

    def submit(self, shard: int, step: Step) -> "asyncio.Future[metadata_pb2.LogResult]":
        """See `muster_coordinator.log.log_client.Log`; the outcome comes in the next turn of the loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[metadata_pb2.LogResult] = loop.create_future()
        result = self._claim(step) if isinstance(step, metadata_pb2.ClaimStep) else self._by_owner(step)
        loop.call_soon(_settle, future, result)
        return future

    def runs_after(self, offset: int) -> list[bytes]:
        """The entries after an offset, as metadata packs them: each a run of one."""
        runs = []
        for entry in self._entries[max(0, offset - GENESIS.offset + 1) if offset else 0 :]:
            run = metadata_pb2.EntryRun(
                epoch=entry.position.epoch,
                first_offset=entry.position.offset,
                records=[entry.record],
                nonces=entry.nonce,
                hashes=entry.hash,
            )
            runs.append(run.SerializeToString())
        return runs

    def _claim(self, step: metadata_pb2.ClaimStep) -> metadata_pb2.LogResult:
        last = Position.from_proto(self._entries[-1].position)
        self._epoch, self._nonce = max(self._epoch, step.above_epoch) + 1, step.nonce
        claim = records_pb2.Claim(node_id=step.node_id, previous=last.to_proto())
        record = records_pb2.Record(claim=claim).SerializeToString()
        self._write(Position(self._epoch, last.offset + 1), record, step.nonce)
        return self._done()

    def _by_owner(self, step: Step) -> metadata_pb2.LogResult:
        assert isinstance(step, metadata_pb2.AppendStep | metadata_pb2.CheckStep)
        if (step.epoch, step.claim_nonce) != (self._epoch, self._nonce):
            return metadata_pb2.LogResult(outcome=metadata_pb2.LOG_OUTCOME_FENCED, epoch=self._epoch)
        if isinstance(step, metadata_pb2.AppendStep):
            for new in step.records:
                offset = self._entries[-1].position.offset + 1
                self._write(Position(step.epoch, offset), new.record, new.nonce)
        return self._done()

    def _done(self) -> metadata_pb2.LogResult:
        last = self._entries[-1]
        end = metadata_pb2.LogEnd(position=last.position, hash=last.hash)
        return metadata_pb2.LogResult(outcome=metadata_pb2.LOG_OUTCOME_OK, end=end, epoch=self._epoch)

    def _write(self, position: Position, record: bytes, nonce: bytes) -> None:
        before = self._entries[-1].hash if self._entries else BEFORE_GENESIS
        self._entries.append(
            metadata_pb2.LogEntry(
                position=position.to_proto(),
                record=record,
                nonce=nonce,
                hash=chain_hash(before, position, nonce, record),
            )
        )


class MemoryLoader(Loader):
    """Reads a log in memory into a fresh core.

    Args:
        log: the log.
        config: for the cores that are made.
    """

    def __init__(self, log: MemoryLog, config: GroupConfig) -> None:
        self._log = log
        self._group_config = config

    def image(self, shard: int, quarantine: Quarantine = NOBODY) -> LogImage:
        """See `Loader`."""
        return LogImage(shard, self._group_config, quarantine)

    async def load(self, image: LogImage, epoch: int, claim_nonce: bytes, end: metadata_pb2.LogEnd) -> None:
        """See `Loader`; at once."""
        for run in self._log.runs_after(image.chain.end.offset):
            image.take(run)


def _settle(future: "asyncio.Future[metadata_pb2.LogResult]", result: metadata_pb2.LogResult) -> None:
    if not future.done():
        future.set_result(result)
