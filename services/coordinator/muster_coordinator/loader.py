"""Reads a shard's log into a fresh core, page by page, without blocking the loop."""

import asyncio
from collections.abc import Callable, Sequence

import grpc
import structlog
from muster_core.config import GroupConfig
from muster_core.position import Position
from muster_core.replay import ChainReader, Entry, LogDamaged
from muster_core.shard import Shard
from muster_protos.muster.internal.v1 import metadata_pb2 as pb
from muster_protos.muster.internal.v1 import metadata_pb2_grpc as rpc

from muster_coordinator.shard_log import LogStopped

log = structlog.get_logger()

PAGE_RECORDS = 500
PAGE_TIMEOUT_S = 2.0
SHORT_READS_MAX = 20
_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 1.0


class LoadFailed(Exception):
    """The log can be read, but must not be served: it is damaged, shorter than it was, or not understood."""


class LogImage:
    """What was read of a log so far: the state after its last entry, and that entry's place and hash."""

    def __init__(self, shard: int, config: GroupConfig) -> None:
        self.shard = shard
        self.core = Shard(shard, config)
        self.chain = ChainReader()
        self.records = 0

    def take(self, entries: Sequence[pb.LogEntry]) -> None:
        """Checks entries and replays their records.

        Raises:
            LoadFailed: they do not follow what was read before, or this version must not serve them.
        """
        try:
            for entry in entries:
                position = Position.from_proto(entry.position)
                record = self.chain.read(Entry(position, entry.record, entry.nonce, entry.hash))
                self.core.replay(position, record)
        except LogDamaged as error:
            raise LoadFailed(str(error)) from error
        except Exception as error:
            raise LoadFailed(
                f"the record after {self.chain.end.stream_id} cannot be replayed: {error!r}"
            ) from error
        self.records += len(entries)


class Loader:
    """Reads logs through metadata; goes on with the next instance, from where it stood, when one fails.

    Args:
        channels: channels to the metadata instances, by number; the number wraps around.
        instances: how many there are.
        config: for the cores that are made.
    """

    def __init__(
        self, channels: Callable[[int], grpc.aio.Channel], instances: int, config: GroupConfig
    ) -> None:
        self._channels = channels
        self._instances = instances
        self._config = config
        self._current = 0

    def image(self, shard: int) -> LogImage:
        """An image of nothing."""
        return LogImage(shard, self._config)

    async def preload(self, image: LogImage) -> None:
        """Reads up to the acknowledged position, before the shard is claimed.

        What is acknowledged stands in every later log, so nothing of it is read again after the claim.

        Raises:
            LoadFailed: see `LogImage.take`.
            LogStopped: there is no such log.
        """
        await self._read(image, 0, b"", None)

    async def load(self, image: LogImage, epoch: int, claim_nonce: bytes, end: pb.LogEnd) -> None:
        """Reads on up to the reader's own Claim.

        Raises:
            LoadFailed: see `LogImage.take`; or the log ends before the Claim, or another Claim stands there.
            LogStopped: somebody else claimed the shard meanwhile, or there is no such log.
        """
        await self._read(image, epoch, claim_nonce, end)
        chain = image.chain
        if (
            chain.end != Position.from_proto(end.position)
            or chain.end_hash != end.hash
            or chain.nonces_of_claims.get(epoch) != claim_nonce
        ):
            raise LoadFailed(
                f"the log ends at {chain.end.stream_id} and not with this owner's claim at "
                f"{Position.from_proto(end.position).stream_id}"
            )

    async def _read(self, image: LogImage, epoch: int, nonce: bytes, end: pb.LogEnd | None) -> None:
        pause_s, short_reads = _PAUSE_FIRST_S, 0
        while True:
            before = image.chain.end
            problem = await self._read_once(image, epoch, nonce)
            complete = end is None or image.chain.end.offset >= end.position.offset
            if not problem and complete:
                return
            if image.chain.end != before:
                pause_s = _PAUSE_FIRST_S
            if not problem:
                short_reads += 1
                problem = f"the log was read up to {image.chain.end.stream_id} only"
                if short_reads >= SHORT_READS_MAX:
                    return
            log.warning("log_read_repeated", shard=image.shard, reason=problem)
            self._current = (self._current + 1) % self._instances
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _read_once(self, image: LogImage, epoch: int, nonce: bytes) -> str:
        """Reads as far as one instance gives; returns why it ended early, empty if it did not."""
        end = image.chain.end
        request = pb.ReadLogRequest(shard=image.shard, epoch=epoch, claim_nonce=nonce, page_size=PAGE_RECORDS)
        if end.offset:
            getattr(request, "from").CopyFrom(end.after(1).to_proto())
        call = rpc.MetadataServiceStub(self._channels(self._current)).ReadLog(request)
        try:
            while True:
                page = await asyncio.wait_for(call.read(), PAGE_TIMEOUT_S)
                if not isinstance(page, pb.ReadLogResponse):
                    return ""
                if page.outcome in (pb.LOG_OUTCOME_FENCED, pb.LOG_OUTCOME_NO_LOG, pb.LOG_OUTCOME_TRUNCATED):
                    raise LogStopped(page.outcome, page.message)
                if page.outcome != pb.LOG_OUTCOME_OK:
                    return page.message or pb.LogOutcome.Name(page.outcome)
                image.take(page.entries)
                await asyncio.sleep(0)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except TimeoutError:
            return f"no page for {PAGE_TIMEOUT_S} s"
        finally:
            call.cancel()
