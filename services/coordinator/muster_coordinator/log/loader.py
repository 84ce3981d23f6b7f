"""Reads a shard's log into a fresh core, page by page, without blocking the loop."""

import asyncio
from collections.abc import Callable, Generator

import grpc
import structlog
from muster_core.config import GroupConfig
from muster_core.log.replay import LogDamaged
from muster_core.log.snapshot import SnapshotUnusable
from muster_core.position import Position
from muster_core.state.quarantine import NOBODY, Quarantine
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_runtime.garbage import COLLECTOR
from muster_runtime.logs import alarm
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.reads import read_within

from muster_coordinator.log.load_budget import LoadBudget
from muster_coordinator.log.log_image import LoadFailed, LogImage
from muster_coordinator.log.shard_log import LogStopped

log = structlog.get_logger()

PAGE_RECORDS = 1_000
PAGE_LIMIT_MS = 2_000
SHORT_READS_MAX = 20
_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 1.0
_BEYOND = Position((1 << 53) - 1, (1 << 53) - 1)
"""A position beyond every log's end."""


class _NotKnown(Exception):
    """An instance of metadata does not know; another one may, or this one later."""


class Loader:
    """Reads logs through metadata; goes on with the next instance, where the last one failed.

    Args:
        channels: channels to the metadata instances, by number; the number wraps around.
        instances: how many there are.
        config: for the cores that are made.
        limit_ms: an instance that gives no page for so long is given up for the next one.
        budget: how much memory loads may take; any if absent.
    """

    def __init__(
        self,
        channels: Callable[[int], grpc.aio.Channel],
        instances: int,
        config: GroupConfig,
        limit_ms: int = PAGE_LIMIT_MS,
        budget: LoadBudget | None = None,
    ) -> None:
        self._budget = LoadBudget() if budget is None else budget
        self._limit_ms = limit_ms
        self._channels = channels
        self._instances = instances
        self._config = config
        self._current = 0
        self._line = asyncio.Lock()
        """Who takes in a part of what was read: one load at a time, and one part in a turn of the loop."""

    def image(self, shard: int, quarantine: Quarantine = NOBODY) -> LogImage:
        """An image of nothing; of groups in quarantine it will only have the offsets."""
        return LogImage(shard, self._config, quarantine)

    async def acknowledged(self, shard: int) -> Position:
        """How far a log is acknowledged now, as a majority of its nodes says; asks until it is known."""
        pause_s = _PAUSE_FIRST_S
        request = metadata_pb2.ReadLogRequest(shard=shard, page_size=1)
        getattr(request, "from").CopyFrom(_BEYOND.to_proto())
        while True:
            try:
                return await self._acknowledged(request)
            except _NotKnown as reason:
                log.debug("acknowledged_not_read", shard=shard, reason=str(reason))
            except Exception:  # who waits for this serves nobody before
                log.exception("acknowledged_not_read", shard=shard)
            self._current = (self._current + 1) % self._instances
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _acknowledged(self, request: metadata_pb2.ReadLogRequest) -> Position:
        call = metadata_pb2_grpc.MetadataServiceStub(self._channels(self._current)).ReadLog(request)
        try:
            page = await read_within(call, self._limit_ms / 1000)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            raise _NotKnown(repr(error)) from error
        finally:
            call.cancel()
        if isinstance(page, metadata_pb2.ReadLogResponse) and page.outcome == metadata_pb2.LOG_OUTCOME_OK:
            return Position.from_proto(page.acknowledged)
        raise _NotKnown(str(page))

    async def preload(self, image: LogImage, *, gently: bool = False) -> None:
        """Reads up to the acknowledged position, before the shard is claimed.

        What is acknowledged is in every later log, so nothing of it is read again after the claim.

        Args:
            image: gets what is read.
            gently: whether nobody waits for it: then others have the loop for as long as each part takes.

        Raises:
            LoadFailed: see `LogImage.take`.
            LogStopped: there is no such log.
        """
        await self._read(image, 0, b"", None, gently=gently)

    async def load(self, image: LogImage, epoch: int, claim_nonce: bytes, end: metadata_pb2.LogEnd) -> None:
        """Reads on up to the reader's own Claim.

        Raises:
            LoadFailed: see `LogImage.take`; or another Claim, or no entry, is in the place of the Claim.
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

    async def _read(
        self,
        image: LogImage,
        epoch: int,
        nonce: bytes,
        end: metadata_pb2.LogEnd | None,
        *,
        gently: bool = False,
    ) -> None:
        pause_s, short_reads = _PAUSE_FIRST_S, 0
        careful = False
        while True:
            before, instance = image.chain.end, self._current
            try:
                problem = await self._read_once(image, epoch, nonce, instance, careful=careful, gently=gently)
            except LogDamaged as error:
                if careful:
                    raise LoadFailed(str(error)) from error
                # Another node may have it as it was written: now metadata looks before it answers.
                careful, problem = True, str(error)
                alarm("log_damaged", shard=image.shard, reason=problem)
            complete = end is None or image.chain.end.offset >= end.position.offset
            if not problem and complete:
                break
            if image.chain.end != before:
                pause_s = _PAUSE_FIRST_S
            if not problem:
                short_reads += 1
                problem = f"the log was read up to {image.chain.end.stream_id} only"
                if short_reads >= SHORT_READS_MAX:
                    break
            log.warning("log_read_repeated", shard=image.shard, reason=problem)
            if self._current == instance:  # else another load has gone on already
                self._current = (instance + 1) % self._instances
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        if image.base.upto.offset and image.base_marker is None:
            raise LoadFailed(
                f"the snapshot up to {image.base.upto.stream_id} was read, and no marker after it in the "
                "log says that it is the one"
            )

    async def _read_once(
        self, image: LogImage, epoch: int, nonce: bytes, instance: int, *, careful: bool, gently: bool
    ) -> str:
        """Reads as far as one instance gives; returns why it ended early, empty if it did not."""
        if image.fresh is False and image.chain.end.offset == 0:
            image.restart()  # a snapshot that was not read to its end
        call = metadata_pb2_grpc.MetadataServiceStub(self._channels(instance)).ReadLog(
            _request(image, epoch, nonce, careful=careful)
        )
        try:
            with COLLECTOR.left_alone():
                while True:
                    page = await read_within(call, self._limit_ms / 1000)
                    if not isinstance(page, metadata_pb2.ReadLogResponse):
                        return ""
                    problem = await self._take(image, page, gently=gently)
                    if problem:
                        return problem
                    self._budget.took(image, len(page.snapshot_part) + sum(map(len, page.runs)))
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except TimeoutError:
            return f"no page for {self._limit_ms} ms"
        finally:
            call.cancel()

    async def _take(self, image: LogImage, page: metadata_pb2.ReadLogResponse, *, gently: bool) -> str:
        """Takes a page part by part; returns why the read has to begin anew, empty if it has not.

        Raises:
            LogDamaged, LoadFailed, LogStopped: see `_parts`.
        """
        parts = _parts(image, page)
        while True:
            async with self._line:
                share = LoopShare(others=3)
                try:
                    next(parts)
                except StopIteration as end:
                    return str(end.value)
                await asyncio.sleep(0)
            if gently:
                await share.rest()


def _request(image: LogImage, epoch: int, nonce: bytes, *, careful: bool) -> metadata_pb2.ReadLogRequest:
    request = metadata_pb2.ReadLogRequest(
        shard=image.shard,
        epoch=epoch,
        claim_nonce=nonce,
        page_size=PAGE_RECORDS,
        packed=True,
        snapshot=image.fresh,
        without_snapshots=[upto.to_proto() for upto in sorted(image.unusable)],
    )
    end = image.chain.end
    if end.offset:
        getattr(request, "from").CopyFrom(end.after(1).to_proto())
        if careful:
            request.after_hash = image.chain.end_hash
    return request


def _parts(image: LogImage, page: metadata_pb2.ReadLogResponse) -> Generator[None, None, str]:
    """Takes a page, some at a time; returns why the read has to begin anew, empty if it has not.

    Yields:
        After each part.

    Raises:
        LogDamaged, LoadFailed: see `LogImage.take_in_parts`; or every node says that the log is damaged.
        LogStopped: somebody else claimed the shard, or there is no such log.
    """
    if page.outcome in (
        metadata_pb2.LOG_OUTCOME_FENCED,
        metadata_pb2.LOG_OUTCOME_NO_LOG,
        metadata_pb2.LOG_OUTCOME_TRUNCATED,
    ):
        raise LogStopped(page.outcome, page.message)
    if page.outcome == metadata_pb2.LOG_OUTCOME_TRIMMED:
        image.restart()
        return page.message
    if page.outcome == metadata_pb2.LOG_OUTCOME_DAMAGED:
        if not page.HasField("snapshot_upto"):
            raise LoadFailed(page.message)
        return _without(image, page, page.message)
    if page.outcome != metadata_pb2.LOG_OUTCOME_OK:
        return page.message or metadata_pb2.LogOutcome.Name(page.outcome)
    try:
        if page.snapshot_part:
            image.take_part(page.snapshot_part)
            yield
        for run in page.runs:
            yield from image.take_in_parts(run)
    except SnapshotUnusable as error:
        return _without(image, page, str(error))
    return ""


def _without(image: LogImage, page: metadata_pb2.ReadLogResponse, reason: str) -> str:
    """Goes on without a snapshot: with an older one, or with the log from its beginning."""
    upto = Position.from_proto(page.snapshot_upto)
    alarm("snapshot_unusable", shard=image.shard, upto=upto.stream_id, reason=reason)
    image.unusable.add(upto)
    image.restart()
    return reason
