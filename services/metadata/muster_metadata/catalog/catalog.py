"""The topic catalog: a log of its own, claimed by the instance that changes it."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass

import structlog
from muster_core.features import Feature
from muster_core.log.topics.topic_changes import decide
from muster_core.log.topics.topics import NotUnderstood, Topics
from muster_core.position import NOWHERE, Position
from muster_protos.limits import NAME_RULE, is_name
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_metadata.catalog.reading import CatalogReader
from muster_metadata.log.logs import Logs
from muster_metadata.log.states import Held
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.nodes.entries import LogEnd, NodeEntry

log = structlog.get_logger()


_PAUSE_S = 0.05


def name_problem(name: str) -> str:
    """Why a topic cannot have this name; empty: it can."""
    return "" if is_name(name) else f"a topic's name must be {NAME_RULE}"


_UNAVAILABLE = metadata_pb2.ChangeTopicResponse(
    error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
    error_message="the catalog cannot be written now; the change may or may not have been stored",
)
_UNSETTLED = metadata_pb2.ChangeTopicResponse(
    error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
    error_message="not every coordinator knows yet what was deleted; try again",
    pending=True,
)
_NOT_WRITER = metadata_pb2.ChangeTopicResponse(
    error_code=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
    error_message="another instance of metadata may hold the catalog's log",
    not_writer=True,
)


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A deletion that some coordinator may not have applied yet.

    Attributes:
        place: of the deletion in the catalog's log, with the epoch of this instance's claim: whoever has not
            heard of that may have applied a history that was lost.
        answer: the answer once all have applied it; None: the change then goes on.
    """

    place: Position
    answer: metadata_pb2.ChangeTopicResponse | None = None


class CatalogLog:
    """Changes the catalog and follows the changes of other instances.

    One instance writes: the last one that claimed the catalog's log. Callers ask it as long as it answers;
    only when no instance holds the log does another one claim it. A change has an id, which is stored in its
    record: an instance that is asked to repeat it finds it in the log and gives the same answer again.

    Args:
        logs: carries out steps on the log.
        reader: reads the log from its newest snapshot on.
        upkeep: stores the acknowledged position.
        instance: name of this instance.
        wall_ms: clock for the time of records.
        changed: called with each new state.
        not_understood: called with the reason if this version must not serve the cluster.
        change_timeout_ms: after this a change is answered as not available.
        carried_out: waits until every coordinator has applied the log up to an offset; absent: there are no
            coordinators yet.

    Attributes:
        on_written: if set, called after each record that this instance wrote.
    """

    def __init__(
        self,
        logs: Logs,
        reader: CatalogReader,
        upkeep: Upkeep,
        instance: str,
        wall_ms: Callable[[], int],
        changed: Callable[[metadata_pb2.TopicCatalog], None],
        not_understood: Callable[[str], None],
        change_timeout_ms: int,
        carried_out: Callable[[Position], Awaitable[None]] | None = None,
    ) -> None:
        self._logs = logs
        self._reader = reader
        self._upkeep = upkeep
        self._instance = instance
        self._wall_ms = wall_ms
        self._changed = changed
        self._not_understood = not_understood
        self._timeout_s = change_timeout_ms / 1000
        self._carried_out = carried_out
        self._settled = NOWHERE
        self._lock = asyncio.Lock()
        self._seen = Topics()
        self._shard = -1
        self._held: Held | None = None
        self._writing: Held | None = None
        self._end: LogEnd | None = None
        self._mine = Topics()
        self.on_written: Callable[[], None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._was_read = asyncio.Event()

    @property
    def held(self) -> Held | None:
        """The claim under which this instance writes, also while a write is in flight; None: it does not."""
        return self._held or self._writing

    @property
    def written(self) -> Topics:
        """The catalog as this instance wrote it; valid while it holds the log. Do not change it."""
        return self._mine

    @property
    def features(self) -> Set[str]:
        """Names of the enabled features; empty before the catalog was read."""
        return self._seen.features

    async def wait_read(self) -> None:
        """Waits until the catalog has been read for the first time."""
        await self._was_read.wait()

    def known(self, shard: int) -> None:
        """Sets the shard number of the catalog's log."""
        self._shard = shard

    async def stop(self) -> None:
        """Stops following changes."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def acknowledged(self, position: Position) -> None:
        """Reads what is new, in the background, after the nodes said how far the log is acknowledged."""
        if position > self._seen.version and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow(), name="catalog-follow")

    async def _follow(self) -> None:
        try:
            found = await self._reader.read_on(self._shard, self._seen)
            if found is not None and found.version > self._seen.version:
                self._show(found)
        except NotUnderstood as error:
            self._not_understood(str(error))
        except Exception:
            log.exception("catalog_not_followed")

    async def change(
        self, request: metadata_pb2.ChangeTopicRequest, remaining_s: float | None = None
    ) -> metadata_pb2.ChangeTopicResponse:
        """Carries out a change, once for each id; returns after a majority has it.

        A deletion, of partitions too, is answered, and a topic of the same name created, only when every
        coordinator that may answer calls has applied the deletion.

        Args:
            request: the change.
            remaining_s: time that the caller still waits; None: no limit.
        """
        limit_s = self._timeout_s if remaining_s is None else min(self._timeout_s, 0.8 * remaining_s)
        unsettled = False
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    async with self._lock:
                        if request.only_writer and self._held is None:
                            return _NOT_WRITER
                        answer = await self._attempt(request)
                    if isinstance(answer, metadata_pb2.ChangeTopicResponse):
                        return answer
                    unsettled = answer is not None
                    if answer is None:
                        await asyncio.sleep(_PAUSE_S)
                    elif self._carried_out is not None:
                        await self._carried_out(answer.place)
                        self._settled = max(self._settled, answer.place)
                        if answer.answer is not None:
                            return answer.answer
        except TimeoutError:
            if not unsettled:
                self._held = None  # perhaps it cannot write any more: another instance may
        except NotUnderstood as error:
            self._not_understood(str(error))
        return _UNSETTLED if unsettled else _UNAVAILABLE

    async def enable(self, feature: str, version: str) -> bool:
        """Enables a feature for good; returns whether a majority has it.

        Args:
            feature: its name.
            version: of this software.
        """
        record = _enabling(feature, version, self._wall_ms()).SerializeToString()
        try:
            async with asyncio.timeout(self._timeout_s), self._lock:
                while feature not in self._mine.features:
                    held = self._held is not None or await self._claim()
                    if held and feature not in self._mine.features:
                        await self._store(record)
                    elif not held:
                        await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            pass
        except NotUnderstood as error:
            self._not_understood(str(error))
        return feature in self._mine.features

    async def store_marker(self, held: Held, snapshot: records_pb2.Snapshot, version: str) -> LogEnd | None:
        """Stores the marker of a snapshot, if this instance still holds the log under that claim.

        A critical record goes with it, at which a version that reads no snapshots stops. The first records of
        the cluster may be trimmed, and such a version would take the rest for the whole catalog.

        Args:
            held: the claim under which the snapshot was stored.
            snapshot: the content of the marker.
            version: of this software.

        Returns:
            The end of the log, which is the marker; None: it is not known to be stored.
        """
        written_at_ms = self._wall_ms()
        marker = records_pb2.Record(written_at_ms=written_at_ms, snapshot=snapshot)
        async with self._lock:
            for record in (_enabling(Feature.CATALOG_SNAPSHOTS, version, written_at_ms), marker):
                if self._held != held or not await self._store(record.SerializeToString(), frees=True):
                    return None
            return self._end

    async def hold(self) -> None:
        """Claims the log, so that nodes that lack it can be rebuilt under the claim."""
        try:
            async with self._lock:
                self._held = None
                await self._claim()
        except NotUnderstood as error:
            self._not_understood(str(error))

    async def _attempt(
        self, request: metadata_pb2.ChangeTopicRequest
    ) -> "metadata_pb2.ChangeTopicResponse | _Unsettled | None":
        """Makes one attempt at a change; None: try again."""
        if self._held is None and not await self._claim():
            return None
        assert self._held is not None
        answer = self._mine.done(request)
        if answer is not None:
            return await self._after_deletion(request, answer)
        decision = decide(self._mine, request)
        if isinstance(decision, metadata_pb2.ChangeTopicResponse):
            # A refusal depends on what is stored, so the claim must still be ours.
            verdict, _ = await self._logs.check(
                self._shard, metadata_pb2.CheckStep(epoch=self._held.epoch, claim_nonce=self._held.nonce)
            )
            if verdict.outcome == metadata_pb2.LOG_OUTCOME_OK:
                return decision
            self._held = None
            return None
        if request.HasField("create"):
            # A removal that is no longer remembered by name was at this offset at the latest.
            removed = self._mine.deletions.get(request.create.name, self._mine.deletions_since)
            if self._is_unsettled(removed):
                return await self._unsettled(removed)
        decision.written_at_ms = self._wall_ms()
        frees = decision.WhichOneof("kind") == "topic_tombstone"
        if not await self._store(decision.SerializeToString(), frees=frees):
            return None
        return await self._after_deletion(request, self._mine.stored(request))

    async def _after_deletion(
        self, request: metadata_pb2.ChangeTopicRequest, answer: metadata_pb2.ChangeTopicResponse
    ) -> "metadata_pb2.ChangeTopicResponse | _Unsettled | None":
        """The answer to a change, unless it is a deletion that some coordinator may not have applied."""
        deletes = request.HasField("delete") or bool(request.alter_partitions.remove)
        removed = answer.version.offset if deletes else 0
        return await self._unsettled(removed, answer) if self._is_unsettled(removed) else answer

    def _is_unsettled(self, removed: int) -> bool:
        if self._carried_out is None or not removed:
            return False
        return self._held is None or Position(self._held.epoch, removed) > self._settled

    async def _unsettled(
        self, offset: int, answer: metadata_pb2.ChangeTopicResponse | None = None
    ) -> "metadata_pb2.ChangeTopicResponse | _Unsettled | None":
        """A deletion to wait for, after a majority has stored that it is acknowledged."""
        held, end = self._held, self._end
        if held is None or end is None or not await self._upkeep.acknowledge(held, end):
            self._held = None
            return None if answer is None else _UNAVAILABLE
        return _Unsettled(Position(held.epoch, offset), answer)

    async def _store(self, record: bytes, *, frees: bool = False) -> bool:
        """Appends a record, repeated unchanged while the outcome is unknown; returns whether it is stored.

        Args:
            record: its bytes.
            frees: whether it makes room, so that it may use the nodes' reserve.
        """
        assert self._held is not None
        assert self._end is not None
        nonce = secrets.token_bytes(16)
        # Until the outcome is known nothing else may be written at this offset, even after a cancellation.
        held, self._held = self._held, None
        step = metadata_pb2.AppendStep(
            epoch=held.epoch,
            claim_nonce=held.nonce,
            end=self._end.to_proto(),
            records=[metadata_pb2.NewRecord(record=record, nonce=nonce)],
            frees=frees,
        )
        self._writing = held
        try:
            return await self._append(held, step, record, nonce)
        finally:
            self._writing = None

    async def _append(self, held: Held, step: metadata_pb2.AppendStep, record: bytes, nonce: bytes) -> bool:
        while True:
            verdict, end = await self._logs.append(self._shard, step)
            if end is not None:
                entry = NodeEntry(end.position, record, nonce, end.hash)
                self._held, self._end = held, end
                self._mine.apply(entry)
                self._show(self._mine)
                await self._upkeep.acknowledge(held, end)
                self._tell_written()
                return True
            if verdict.outcome != metadata_pb2.LOG_OUTCOME_UNKNOWN:
                log.info("catalog_claim_lost", outcome=metadata_pb2.LogOutcome.Name(verdict.outcome))
                return False
            await asyncio.sleep(_PAUSE_S)

    async def _claim(self) -> bool:
        """Claims the log and reads it; returns whether this instance holds it now."""
        nonce = secrets.token_bytes(16)
        verdict, held, end = await self._logs.claim(
            self._shard,
            # The nonce is new, so the nodes need not look for it before this epoch.
            metadata_pb2.ClaimStep(
                node_id=self._instance,
                session=self._instance,
                nonce=nonce,
                above_epoch=self._seen.version.epoch,
            ),
        )
        if held is None or end is None:
            log.info("catalog_not_claimed", outcome=metadata_pb2.LogOutcome.Name(verdict.outcome))
            return False
        # What was acknowledged is in every later log: only what follows is read.
        topics = await self._reader.read_on(self._shard, self._seen, held.epoch, nonce)
        if topics is None or (topics.version, topics.end_hash) != end:
            return False
        self._held, self._end, self._mine = held, end, topics
        self._show(topics)
        self._tell_written()
        return True

    def _tell_written(self) -> None:
        if self.on_written is not None:
            self.on_written()

    def _show(self, topics: Topics) -> None:
        """Publishes a newer catalog, which a majority has."""
        if topics.version > self._seen.version:
            self._seen = topics.copy()
            self._changed(topics.to_proto())
            self._was_read.set()


def _enabling(feature: str, version: str, written_at_ms: int) -> records_pb2.Record:
    return records_pb2.Record(
        written_at_ms=written_at_ms,
        critical=True,
        feature_enabled=records_pb2.FeatureEnabled(name=feature, version=version),
    )
