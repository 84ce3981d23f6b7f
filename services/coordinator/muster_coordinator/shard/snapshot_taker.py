"""Takes snapshots of the logs that this process owns, and trims them: few at a time, after the calls."""

import asyncio
from collections.abc import Callable, Mapping

import structlog
from muster_core.clock import Now
from muster_core.log.snapshot import Covered, digest_of, part_hash, parts
from muster_core.position import Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_runtime.logs import alarm
from muster_runtime.loop_share import LoopShare

from muster_coordinator.log.kept_snapshots import KeptSnapshots
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_client import Log, Step
from muster_coordinator.log.log_image import LoadFailed, LogImage
from muster_coordinator.log.shard_log import LogStopped
from muster_coordinator.shard.owned_shard import OwnedShard
from muster_coordinator.shard.snapshot_pace import SnapshotPace

log = structlog.get_logger()


class _GivenUp(Exception):
    """The shard is not served here any more, or a step came to nothing."""


class SnapshotTaker:
    """Looks after the logs of the served shards.

    A snapshot is made of the log alone: it is read again, from the newest snapshot on, into a state that
    nobody serves. So it holds what a load would make of the log, the calls do not wait for it, and a damaged
    log is found before anything of it is removed (docs/safety.md, "Snapshots and trimming").

    Args:
        shards: the shards of this process.
        loader: reads logs.
        steps: the log client.
        now: both clocks.
        pace: when, and how far.
    """

    def __init__(
        self,
        shards: Callable[[], Mapping[int, OwnedShard]],
        loader: Loader,
        steps: Log,
        now: Callable[[], Now],
        pace: SnapshotPace,
    ) -> None:
        self._shards = shards
        self._loader = loader
        self._steps = steps
        self._now = now
        self._pace = pace
        self._trim_at_ms: dict[int, int] = {}
        self._not_before_ms: dict[int, int] = {}
        self._runner: asyncio.Task[None] | None = None
        self._visits: dict[int, asyncio.Task[None]] = {}
        self._free = asyncio.Semaphore(pace.at_once)

    def start(self) -> None:
        """Begins."""
        self._runner = asyncio.get_running_loop().create_task(self._run(), name="snapshot-taker")

    async def stop(self) -> None:
        """Ends at once: a snapshot without its marker is none."""
        tasks = [task for task in (self._runner, *self._visits.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pace.tick_ms / 1000)
            for shard in tuple(self._shards().values()):
                if shard.number not in self._visits and self._wanted(shard):
                    visit = asyncio.get_running_loop().create_task(self._visit(shard))
                    self._visits[shard.number] = visit

    def _wanted(self, shard: OwnedShard) -> bool:
        kept = shard.kept
        return kept is not None and (self._due(shard, kept) or self._may_trim(shard))

    async def _visit(self, shard: OwnedShard) -> None:
        """Looks after a shard once there is room, and no longer than the limit: another one may hang."""
        try:
            async with self._free, asyncio.timeout(self._pace.limit_ms / 1000):
                await self._look_after(shard)
        except TimeoutError:
            self._pause(shard, self._pace.limit_ms)
            log.warning("snapshot_hangs", shard=shard.number, limit_ms=self._pace.limit_ms)
        except (_GivenUp, LogStopped) as reason:
            self._pause(shard, self._pace.retry_ms)
            log.info("snapshot_given_up", shard=shard.number, reason=str(reason))
        except LoadFailed as error:
            self._pause(shard, self._pace.damaged_ms)
            if error.failure is None:
                alarm("log_not_readable", shard=shard.number, reason=str(error))
            else:
                # A snapshot would hold the group without that record, and the next version could not read it.
                group_id = error.failure.group_id
                alarm("snapshot_blocked", shard=shard.number, group_id=group_id, reason=str(error))
        except Exception:
            self._pause(shard, self._pace.retry_ms)
            log.exception("snapshot_failed", shard=shard.number)
        finally:
            del self._visits[shard.number]

    def _pause(self, shard: OwnedShard, pause_ms: int) -> None:
        until_ms = self._now().boot_ms + pause_ms
        self._not_before_ms[shard.number] = until_ms
        self._trim_at_ms[shard.number] = max(until_ms, self._trim_at_ms.get(shard.number, 0))

    async def _look_after(self, shard: OwnedShard) -> None:
        kept = shard.kept
        if kept is None:
            return
        if self._due(shard, kept):
            await self._take(shard, kept)
        if self._may_trim(shard):
            self._trim_at_ms[shard.number] = self._now().boot_ms + self._pace.trim_ms
            await self._trim(shard, kept)

    def _may_trim(self, shard: OwnedShard) -> bool:
        due_ms = self._trim_at_ms.get(shard.number, 0)
        return self._pace.retention_ms > 0 and due_ms <= self._now().boot_ms

    def _due(self, shard: OwnedShard, kept: KeptSnapshots) -> bool:
        pace = self._pace
        if not pace.records or kept.skips:
            return False  # it must not summarise what this version does not understand
        if self._not_before_ms.get(shard.number, 0) > self._now().boot_ms:
            return False
        is_long = kept.records_since >= pace.records or kept.bytes_since >= pace.size_bytes
        return is_long and kept.outweighed

    async def _take(self, shard: OwnedShard, kept: KeptSnapshots) -> None:
        began_ms = self._now().boot_ms
        written_bytes = kept.bytes_since
        image = self._loader.image(shard.number)
        await self._loader.preload(image, gently=True)
        if image.chain.end.epoch != kept.log.epoch or image.core.skipped_records:
            raise _GivenUp("the nodes have not heard yet how far this owner's log is acknowledged")
        upto = image.chain.end
        covered = Covered(
            shard.number,
            upto,
            image.chain.end_hash,
            catalog_place=image.core.catalog_place,
            incarnations=image.core.incarnations,
            removed=image.core.removed,
        ).following(image.base, image.written_at_ms)
        hashes, size_bytes = await self._store_parts(shard, kept, image, covered)
        snapshot = records_pb2.Snapshot(
            upto=upto.to_proto(),
            hash=covered.hash,
            parts=len(hashes),
            digest=digest_of(hashes),
            groups=len(image.core.groups),
        )
        marker = await shard.store_marker(snapshot)
        if marker is None:
            return  # the shard is given up
        kept.taken(covered, marker, size_bytes, max(0, kept.bytes_since - written_bytes))
        await self._trim(shard, kept)
        log.info(
            "snapshot_taken",
            shard=shard.number,
            upto=upto.stream_id,
            groups=snapshot.groups,
            parts=snapshot.parts,
            replayed=image.records,
            took_ms=self._now().boot_ms - began_ms,
        )

    async def _store_parts(
        self, shard: OwnedShard, kept: KeptSnapshots, image: LogImage, covered: Covered
    ) -> tuple[list[bytes], int]:
        """Stores the parts one by one, and what says that they are all; gives their hashes and size."""
        hashes: list[bytes] = []
        size_bytes = 0
        making = parts(image.core.groups.values(), covered)
        while True:
            share = LoopShare(others=3)
            part = next(making, None)
            if part is None:
                break
            hashes.append(part_hash(part))
            size_bytes += len(part)
            step = _part_step(kept, covered)
            step.part, step.data = len(hashes) - 1, part
            await share.rest()
            await self._submit(shard, kept, step)
        step = _part_step(kept, covered)
        step.part_hashes = b"".join(hashes)
        await self._submit(shard, kept, step)
        return hashes, size_bytes

    async def _trim(self, shard: OwnedShard, kept: KeptSnapshots) -> None:
        """Writes the snapshot's marker to the nodes, and removes what is old enough."""
        if kept.marker is None:
            return
        step = metadata_pb2.TrimStep(
            epoch=kept.log.epoch,
            claim_nonce=kept.log.claim_nonce,
            marker=kept.marker,
            upto=kept.newest.upto.to_proto(),
            only_exported=self._pace.only_exported,
        )
        if kept.newest.previous_upto.offset:
            step.previous_upto.CopyFrom(kept.newest.previous_upto.to_proto())
        before = self._old_enough(kept)
        if before.offset:
            # Again and again: a node may have missed it, and the audit may have reported more.
            step.before.CopyFrom(before.to_proto())
        await self._submit(shard, kept, step)
        if before > kept.trimmed:
            kept.trimmed = before
            log.info("log_trimmed", shard=shard.number, before=before.stream_id)

    def _old_enough(self, kept: KeptSnapshots) -> Position:
        now = self._now()
        if not self._pace.retention_ms or not now.wall_trusted:
            return Position(0, 0)
        return kept.trimmable(now.wall_ms - self._pace.retention_ms)

    async def _submit(self, shard: OwnedShard, kept: KeptSnapshots, step: Step) -> None:
        """Carries out a step, as long as the shard is served here.

        Raises:
            _GivenUp: it is not any more, or the step came to nothing.
        """
        future = self._steps.submit(shard.number, step)
        try:
            while not future.done():
                if shard.kept is not kept:
                    raise _GivenUp("the shard is not served here any more")
                await asyncio.wait({future}, timeout=0.2)
        finally:
            future.cancel()
        result = future.result()
        if result.outcome != metadata_pb2.LOG_OUTCOME_OK:
            raise _GivenUp(result.message or metadata_pb2.LogOutcome.Name(result.outcome))


def _part_step(kept: KeptSnapshots, covered: Covered) -> metadata_pb2.SnapshotStep:
    return metadata_pb2.SnapshotStep(
        epoch=kept.log.epoch, claim_nonce=kept.log.claim_nonce, upto=covered.upto.to_proto()
    )
