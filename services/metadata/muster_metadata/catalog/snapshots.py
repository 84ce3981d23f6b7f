"""Takes snapshots of the catalog's log and trims it, at the instance that writes it."""

import asyncio

import structlog
from muster_core.features import Feature
from muster_core.log.snapshot import Covered, digest_of, part_hash, parts
from muster_core.log.topics.topics import NotUnderstood
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2

from muster_metadata.catalog.catalog import CatalogLog
from muster_metadata.catalog.reading import CatalogImage, CatalogReader
from muster_metadata.log.snapshots import Snapshots
from muster_metadata.log.states import Held
from muster_metadata.log.verdicts import Verdict
from muster_metadata.nodes.entries import LogEnd

log = structlog.get_logger()

_SETTLE_S = 1.0
"""How long after a claim what the writer before it left undone is looked for."""
_RETRY_S = 5.0
_LIMIT_S = 60.0


class _GivenUp(Exception):
    """Another instance holds the log, or a step failed."""


class CatalogSnapshots:
    """Takes snapshots of the catalog's log, while this instance holds it and the feature is enabled.

    A snapshot is made from the log, which is read again for it, under the rules of a shard's snapshots
    (docs/safety.md, "Snapshots and trimming"). Entries that both kept snapshots cover are removed at once,
    however recent they are: the catalog is small, and each snapshot has all of it.

    Args:
        catalog: the log's writer.
        reader: reads the log.
        steps: carries out steps on snapshots.
        version: of this software.
        records: a snapshot is due when a load would replay this many records; 0: never.
        only_exported: whether only entries are removed that the audit has exported.
    """

    def __init__(
        self,
        catalog: CatalogLog,
        reader: CatalogReader,
        steps: Snapshots,
        version: str,
        records: int,
        *,
        only_exported: bool,
    ) -> None:
        self._catalog = catalog
        self._reader = reader
        self._steps = steps
        self._version = version
        self._records = records
        self._only_exported = only_exported
        self._shard = -1
        self._written = asyncio.Event()
        self._trimmed_under: Held | None = None
        self._runner: asyncio.Task[None] | None = None

    def start(self, shard: int) -> None:
        """Starts to take snapshots.

        Args:
            shard: number of the catalog's log.
        """
        self._shard = shard
        self._catalog.on_written = self._written.set
        if self._records:
            self._runner = asyncio.create_task(self._run(), name="catalog-snapshots")

    async def stop(self) -> None:
        """Stops; the instance that writes next resumes what is unfinished."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)

    @property
    def _is_due(self) -> bool:
        return self._catalog.written.records_since >= self._records

    async def _run(self) -> None:
        while True:
            await self._written.wait()
            self._written.clear()
            if not self._is_due:
                if self._catalog.held == self._trimmed_under:
                    continue
                await self._settle()
            if not await self._attempt():
                await asyncio.sleep(_RETRY_S)
                self._written.set()

    async def _settle(self) -> None:
        """Waits for `_SETTLE_S`, or until a snapshot is due."""
        try:
            async with asyncio.timeout(_SETTLE_S):
                while not self._is_due:
                    await self._written.wait()
                    self._written.clear()
        except TimeoutError:
            pass

    async def _attempt(self) -> bool:
        """Takes a snapshot or trims if that is due; returns whether nothing is left to do for now."""
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._look_after()
        except TimeoutError:
            log.warning("snapshot_hangs", shard=self._shard, limit_ms=int(_LIMIT_S * 1000))
        except _GivenUp as reason:
            log.info("snapshot_given_up", shard=self._shard, reason=str(reason))
        except NotUnderstood as reason:
            log.warning("snapshot_given_up", shard=self._shard, reason=str(reason))
        except Exception:
            log.exception("snapshot_failed", shard=self._shard)
        else:
            return True
        return False

    async def _look_after(self) -> None:
        held, written = self._catalog.held, self._catalog.written
        if held is None or Feature.CATALOG_SNAPSHOTS not in written.features:
            return
        begun = written.snapshot_upto.offset > 0 and held != self._trimmed_under
        if not self._is_due and not begun:
            return
        image = await self._reader.read(self._shard)
        if image is None:
            raise _GivenUp("the log cannot be read now")
        base, marker = image.base, image.marker
        if self._is_due:
            base, marker = await self._take(held, image)
        if marker is not None:
            await self._trim(held, base, marker)
        self._trimmed_under = held

    async def _take(self, held: Held, image: CatalogImage) -> tuple[Covered, LogEnd]:
        topics = image.topics
        if topics.version.epoch != held.epoch:
            # Two claimants never store a snapshot of the same place.
            raise _GivenUp("the nodes have not heard yet how far the log is acknowledged under this claim")
        covered = Covered(self._shard, topics.version, topics.end_hash, previous_upto=image.base.upto)
        hashes: list[bytes] = []
        for part in parts((), covered, catalog=topics.to_states()):
            step = _step(held, covered)
            step.part, step.data = len(hashes), part
            _check(await self._steps.store(self._shard, step))
            hashes.append(part_hash(part))
        step = _step(held, covered)
        step.part_hashes = b"".join(hashes)
        _check(await self._steps.store(self._shard, step))
        snapshot = records_pb2.Snapshot(
            upto=covered.upto.to_proto(), hash=covered.hash, parts=len(hashes), digest=digest_of(hashes)
        )
        marker = await self._catalog.store_marker(held, snapshot, self._version)
        if marker is None:
            raise _GivenUp("the log is not held by that claim any more")
        log.info(
            "snapshot_taken",
            shard=self._shard,
            upto=covered.upto.stream_id,
            topics=len(topics.by_name),
            parts=len(hashes),
            replayed=covered.upto.offset - image.base.upto.offset,
        )
        return covered, marker

    async def _trim(self, held: Held, covered: Covered, marker: LogEnd) -> None:
        """Stores which snapshot counts, and removes what both it and the one before cover."""
        step = metadata_pb2.TrimStep(
            epoch=held.epoch,
            claim_nonce=held.nonce,
            marker=marker.to_proto(),
            upto=covered.upto.to_proto(),
            only_exported=self._only_exported,
        )
        before = covered.previous_upto
        if before.offset:
            step.previous_upto.CopyFrom(before.to_proto())
            step.before.CopyFrom(before.to_proto())
        _check(await self._steps.trim(self._shard, step))
        if before.offset:
            log.info("log_trimmed", shard=self._shard, before=before.stream_id)


def _step(held: Held, covered: Covered) -> metadata_pb2.SnapshotStep:
    return metadata_pb2.SnapshotStep(epoch=held.epoch, claim_nonce=held.nonce, upto=covered.upto.to_proto())


def _check(verdict: Verdict) -> None:
    if verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
        raise _GivenUp(verdict.message or metadata_pb2.LogOutcome.Name(verdict.outcome))
