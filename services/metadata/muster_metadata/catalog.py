"""The topic catalog: a log of its own, claimed by the instance that changes it."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable

import structlog
from muster_core.position import NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2 as pb
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, discovery_pb2

from muster_metadata.entries import End, Entry
from muster_metadata.logs import Logs
from muster_metadata.reading import LogReader, drain
from muster_metadata.repair import Held
from muster_metadata.upkeep import Upkeep

log = structlog.get_logger()

MAX_PARTITIONS = 100_000
MAX_TOPICS = 10_000
NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

_PAUSE_S = 0.05


def name_problem(name: str) -> str:
    """Why a topic cannot have this name; empty: it can."""
    if NAME.fullmatch(name) and name not in (".", ".."):
        return ""
    return "a topic's name has 1 to 249 letters, digits, '.', '_' and '-', and is not '.' or '..'"


class Topics:
    """The topics as the records up to a place make them."""

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}
        self.version = NOWHERE

    def apply(self, entry: Entry) -> None:
        """Takes in the next record."""
        record = records_pb2.Record.FromString(entry.record)
        kind = record.WhichOneof("kind")
        if kind == "topic_stored":
            self.by_name[record.topic_stored.name] = record.topic_stored.partitions
        elif kind == "topic_tombstone":
            self.by_name.pop(record.topic_tombstone.name, None)
        elif kind is None and record.critical:
            raise ValueError("the catalog has a critical record of a kind that this version does not know")
        self.version = entry.position

    def to_proto(self) -> pb.TopicCatalog:
        """All topics, by name."""
        return pb.TopicCatalog(
            topics=[
                discovery_pb2.Topic(name=name, partitions=partitions)
                for name, partitions in sorted(self.by_name.items())
            ],
            version=self.version.to_proto(),
        )

    def decide(self, request: pb.ChangeTopicRequest) -> records_pb2.Record | pb.ChangeTopicResponse:
        """The record that makes a change, or the answer if there is nothing to store."""
        kind = request.WhichOneof("change")
        name = request.delete if kind == "delete" else getattr(request, kind or "create").name
        partitions = self.by_name.get(name)
        present = discovery_pb2.Topic(name=name, partitions=partitions) if partitions else None
        if kind == "create":
            if present is not None:
                return _refused(
                    common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS,
                    f"there is a topic of this name already, with {partitions} partitions",
                    present,
                )
            if len(self.by_name) >= MAX_TOPICS:
                return _refused(
                    common_pb2.ERROR_CODE_INVALID_PARTITIONS,
                    f"the catalog holds at most {MAX_TOPICS} topics",
                    None,
                )
            return records_pb2.Record(
                topic_stored=records_pb2.TopicStored(name=name, partitions=request.create.partitions)
            )
        if partitions is None:
            return _refused(
                common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION, "there is no topic of this name", None
            )
        if kind == "delete":
            return records_pb2.Record(topic_tombstone=records_pb2.TopicTombstone(name=name))
        if request.alter.partitions < partitions:
            return _refused(
                common_pb2.ERROR_CODE_INVALID_PARTITIONS,
                f"the topic has {partitions} partitions and cannot have fewer",
                present,
            )
        if request.alter.partitions == partitions:
            return pb.ChangeTopicResponse(topic=present)
        return records_pb2.Record(
            topic_stored=records_pb2.TopicStored(name=name, partitions=request.alter.partitions)
        )


def _refused(
    code: "common_pb2.ErrorCode.ValueType", message: str, topic: discovery_pb2.Topic | None
) -> pb.ChangeTopicResponse:
    return pb.ChangeTopicResponse(error_code=code, error_message=message, topic=topic)


_UNAVAILABLE = _refused(
    common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
    "the catalog cannot be written now; the change may or may not have been stored",
    None,
)


class Catalog:
    """Changes the catalog and follows the changes of other instances.

    Args:
        logs: steps on the log.
        reader: reads it.
        upkeep: stores the acknowledged position.
        instance: name of this instance.
        wall_ms: what records say when they were made.
        changed: told of each new state.
        change_timeout_ms: after this a change is answered as not available.
    """

    def __init__(
        self,
        logs: Logs,
        reader: LogReader,
        upkeep: Upkeep,
        instance: str,
        wall_ms: Callable[[], int],
        changed: Callable[[pb.TopicCatalog], None],
        change_timeout_ms: int,
    ) -> None:
        self._logs = logs
        self._reader = reader
        self._upkeep = upkeep
        self._instance = instance
        self._wall_ms = wall_ms
        self._changed = changed
        self._timeout_s = change_timeout_ms / 1000
        self._lock = asyncio.Lock()
        self._seen = Topics()
        self._shard = -1
        self._held: Held | None = None
        self._end: End | None = None
        self._mine = Topics()
        self._sent_nonce = b""
        self._landed = False
        self._following: asyncio.Task[None] | None = None

    def known(self, shard: int) -> None:
        """The catalog's log is addressed as this shard."""
        self._shard = shard

    async def stop(self) -> None:
        """Ends the reading of changes."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def acknowledged(self, position: Position) -> None:
        """The nodes say how far the log is acknowledged; what is new is read in the background."""
        if position > self._seen.version and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow(), name="catalog-follow")

    async def _follow(self) -> None:
        try:
            verdict, entries = await drain(
                self._reader,
                self._shard,
                Position(self._seen.version.epoch, self._seen.version.offset + 1),
                0,
                b"",
            )
            if verdict.outcome == pb.LOG_OUTCOME_OK:
                self._take(entries)
        except Exception:
            log.exception("catalog_not_followed")

    def _take(self, entries: list[Entry]) -> None:
        before = self._seen.version
        for entry in entries:
            if entry.position > self._seen.version:
                self._seen.apply(entry)
        if self._seen.version != before:
            self._changed(self._seen.to_proto())

    async def change(self, request: pb.ChangeTopicRequest) -> pb.ChangeTopicResponse:
        """Carries out a change; answers after a majority has it."""
        deadline_s = time.monotonic() + self._timeout_s
        try:
            async with asyncio.timeout(self._timeout_s), self._lock:
                self._sent_nonce, self._landed = b"", False
                while time.monotonic() < deadline_s:
                    answer = await self._attempt(request)
                    if answer is not None:
                        return answer
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            self._held = None
        return _UNAVAILABLE

    async def hold(self) -> None:
        """Claims the log, so that nodes that lack it are rebuilt under the claim."""
        async with self._lock:
            self._held = None
            await self._claim()

    async def _attempt(self, request: pb.ChangeTopicRequest) -> pb.ChangeTopicResponse | None:
        """One try; None: try again."""
        if self._held is None and not await self._claim():
            return None
        assert self._held is not None
        assert self._end is not None
        if self._landed:
            # The record of the attempt before, whose outcome was not known, stands in the log.
            return self._answer(request)
        decision = self._mine.decide(request)
        if isinstance(decision, pb.ChangeTopicResponse):
            # A refusal says what is stored: only true while nobody else changed it.
            verdict, _ = await self._logs.check(
                self._shard, pb.CheckStep(epoch=self._held.epoch, claim_nonce=self._held.nonce)
            )
            if verdict.outcome == pb.LOG_OUTCOME_OK:
                return decision
            self._held = None
            return None
        decision.written_at_ms = self._wall_ms()
        if not await self._store(decision.SerializeToString()):
            return None
        return self._answer(request)

    def _answer(self, request: pb.ChangeTopicRequest) -> pb.ChangeTopicResponse:
        name = getattr(request, request.WhichOneof("change") or "create")
        name = name if isinstance(name, str) else name.name
        partitions = self._mine.by_name.get(name)
        topic = discovery_pb2.Topic(name=name, partitions=partitions) if partitions else None
        return pb.ChangeTopicResponse(topic=topic)

    async def _store(self, record: bytes) -> bool:
        """Appends a record, repeated unchanged while the outcome is unknown. False: it is not there."""
        assert self._held is not None
        assert self._end is not None
        nonce = self._sent_nonce = secrets.token_bytes(16)
        step = pb.AppendStep(
            epoch=self._held.epoch,
            claim_nonce=self._held.nonce,
            end=self._end.to_proto(),
            records=[pb.NewRecord(record=record, nonce=nonce)],
        )
        while True:
            verdict, end = await self._logs.append(self._shard, step)
            if end is not None:
                entry = Entry(end.position, record, nonce, end.hash)
                self._end = end
                self._mine.apply(entry)
                self._publish()
                await self._upkeep.acknowledge(self._held, end)
                return True
            if verdict.outcome != pb.LOG_OUTCOME_UNKNOWN:
                log.info("catalog_claim_lost", outcome=pb.LogOutcome.Name(verdict.outcome))
                self._held = None
                return False
            await asyncio.sleep(_PAUSE_S)

    async def _claim(self) -> bool:
        """Takes the log and replays it."""
        nonce = secrets.token_bytes(16)
        verdict, held, end = await self._logs.claim(
            self._shard,
            pb.ClaimStep(node_id=self._instance, session=self._instance, nonce=nonce),
        )
        if held is None or end is None:
            log.info("catalog_not_claimed", outcome=pb.LogOutcome.Name(verdict.outcome))
            return False
        verdict, entries = await drain(self._reader, self._shard, NOWHERE, held.epoch, nonce)
        if verdict.outcome != pb.LOG_OUTCOME_OK or not entries or entries[-1].end != end:
            return False
        topics = Topics()
        for entry in entries:
            topics.apply(entry)
            self._landed = self._landed or entry.nonce == self._sent_nonce
        self._held, self._end, self._mine = held, end, topics
        self._publish()
        return True

    def _publish(self) -> None:
        """This instance's own state is on a majority: watchers need not wait for the next read."""
        if self._mine.version > self._seen.version:
            self._seen.by_name = dict(self._mine.by_name)
            self._seen.version = self._mine.version
            self._changed(self._seen.to_proto())
