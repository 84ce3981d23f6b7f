"""Commits of one member: coalesced, one request in flight, repeated until the outcome is known."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from muster_protos.limits import COMMIT_METADATA_MAX_BYTES
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

from muster._alarms import Alarms
from muster._backoff import Backoff
from muster._clock import boot_ms, monotonic_s
from muster._cluster.link import GroupLink, Outcome
from muster._errors import CommitFailed, CommitRejected, MemberClosed, RequestRefused, code_name
from muster._messages import group_by_topic, in_words
from muster._metrics.member import MemberMetrics
from muster._parking import owned_as
from muster._reactions import CONNECTION_LOST, Call, Reaction
from muster._standing.seat import Seat
from muster._standing.standing import Standing
from muster._text import harmless
from muster._values import Committed, TopicPartition

log = logging.getLogger("muster")

MOST_PARTITIONS = 10_000
"""Limit of one request."""

UNKNOWN_TOPIC_PATIENCE_MS = 5_000
"""How long a commit is repeated that is refused because of its topic: a coordinator may hear of that, or of
more partitions, later than the member, but not later than its lease lasts."""

MOST_BYTES = 1 << 20
"""A request gets no further commit once its commits have this size, as the log has them: with the topic of
each. A coordinator takes twice as much."""


_Entry: TypeAlias = coordinator_pb2.OffsetCommitRequest.Partition


@dataclass(slots=True)
class _PendingCommit:
    entry: _Entry
    token: str
    done: "asyncio.Future[None]"


class Committer:
    """Collects commits while a request is in flight; the next request sends all of them together."""

    def __init__(
        self,
        link: GroupLink,
        standing: Standing,
        alarms: Alarms,
        metrics: MemberMetrics,
        *,
        request_timeout_ms: int,
    ) -> None:
        self._link = link
        self._standing = standing
        self._alarms = alarms
        self._metrics = metrics
        self._request_timeout_ms = request_timeout_ms
        self._waiting: dict[TopicPartition, _PendingCommit] = {}
        self._sending: dict[TopicPartition, _PendingCommit] = {}
        self._member_seq = 0
        self._sender: asyncio.Task[None] | None = None
        self._flushes = 0
        self._patience: asyncio.Timeout | None = None
        self._closed = False

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], tokens: Mapping[TopicPartition, str]
    ) -> None:
        """Stores how far the work got. Returns when a majority of the log has it.

        `tokens` name the ownership of each commit; an ownership that has ended cannot commit.

        Raises:
            CommitFailed: partitions are no longer owned.
            CommitRejected: an offset or its metadata is not acceptable.
            ValueError, TypeError: an offset is no number of 64 bits, or metadata are no text.
        """
        entries = {partition: _entry(partition, position) for partition, position in offsets.items()}
        if gone := [p for p in offsets if p not in tokens or not self._owns(p, tokens[p])]:
            raise CommitFailed(gone, "they are not, or no longer, owned")
        if self._closed:
            raise MemberClosed("the member is closed, nothing can be committed")
        loop = asyncio.get_running_loop()
        began_s = monotonic_s()
        waits = []
        for partition, entry in entries.items():
            pending = self._waiting.get(partition)
            if pending is not None and pending.token != tokens[partition]:
                ended = CommitFailed([partition], "the ownership ended before it was sent")
                _fail({partition: pending}, ended)
                pending = None
            if pending is None:
                pending = self._waiting[partition] = _PendingCommit(
                    entry, tokens[partition], loop.create_future()
                )
                pending.done.add_done_callback(_seen)
            pending.entry = entry
            waits.append(pending.done)
        if self._sender is None:
            self._sender = loop.create_task(self._send_all(), name="muster-commit")
        # A cancelled caller does not withdraw the commit: others may wait for the same request.
        for outcome in waits:
            await asyncio.shield(outcome)
        self._metrics.commit_took(monotonic_s() - began_s)

    async def flush(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Waits until no commit, or none that was made so far for some partitions, is in flight.

        Meanwhile others may wait for these partitions: what a coordinator refuses is not sent again.
        """
        self._flushes += 1
        try:
            await self._flushed(partitions)
        finally:
            self._flushes -= 1

    async def _flushed(self, partitions: Collection[TopicPartition] | None) -> None:
        if partitions is not None:
            pending = [
                commit.done
                for commits in (self._sending, self._waiting)
                for partition, commit in commits.items()
                if owned_as(partition) in partitions and not commit.done.done()
            ]
            if pending:
                await asyncio.wait(pending)
            return
        while self._sender is not None:
            await asyncio.wait((self._sender,))

    def abandon(self) -> None:
        """Waits for the answer to no request any more: the ownership that it was made under has ended."""
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Refuses further commits and waits for those in flight."""
        self._closed = True
        await self.flush()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch = self._sending = dict[TopicPartition, _PendingCommit]()
                size_bytes = 0
                while self._waiting and len(batch) < MOST_PARTITIONS and size_bytes < MOST_BYTES:
                    partition = next(iter(self._waiting))
                    batch[partition] = self._waiting.pop(partition)
                    size_bytes += batch[partition].entry.ByteSize() + len(partition.topic.encode())
                try:
                    await self._send(batch)
                except Exception as error:  # whoever waits gets it, and those after them are sent
                    _fail(batch, error)
                finally:
                    _fail(batch, MemberClosed("the member was stopped before the commit was answered"))
        finally:
            self._sender = None

    async def _send(self, batch: dict[TopicPartition, _PendingCommit]) -> None:
        await self._standing.seated.wait()
        batch = self._owned_of(batch, "they are no longer owned")
        if not batch:
            return
        self._member_seq += 1
        seat = self._standing.seat
        request = self._request(seat, batch)
        backoff = Backoff()
        unknown_until_ms = boot_ms() + min(self._request_timeout_ms, UNKNOWN_TOPIC_PATIENCE_MS)
        while True:
            try:
                # The search for a coordinator does not end by itself: there may never be one again.
                async with self._alarms.deadline(self._standing.life.ends_at_ms) as self._patience:
                    outcome = await self._link.call(
                        request,
                        coordinator_pb2.OffsetCommitResponse,
                        timeout_ms=min(self._request_timeout_ms, self._remaining_ms()),
                    )
            except TimeoutError:
                outcome = Outcome(CONNECTION_LOST, None, self._link.trouble)
            except RequestRefused as error:
                _fail(batch, error)
                return
            finally:
                self._patience = None
            reaction = self._standing.react(Call.COMMIT, outcome.code, seat, outcome.message)
            is_final = self._flushes > 0 or boot_ms() >= unknown_until_ms
            if reaction is Reaction.DONE and not self._settle(batch, outcome, is_final=is_final):
                return
            moved_on = self._standing.joining or self._standing.seat != seat
            rejoins = reaction in (Reaction.REJOIN, Reaction.REVERT, Reaction.REJOIN_KEEP_ID)
            if reaction not in (Reaction.DONE, Reaction.RETRY, Reaction.REDISCOVER) and not (
                moved_on and rejoins
            ):
                self._give_up(batch, reaction, outcome)
                return
            await self._standing.seated.wait()
            was_late = rejoins and self._standing.seat != seat  # the next seat is refused nothing for that
            if not was_late and (outcome.code == CONNECTION_LOST or not outcome.hurry):
                await backoff.pause(connection_broken=outcome.code == CONNECTION_LOST)
                await self._standing.seated.wait()
            before = len(batch)
            batch = {p: e for p, e in batch.items() if not e.done.done()}
            batch = self._owned_of(batch, f"the ownership ended before it was known ({outcome.message})")
            if not batch:
                return
            # What was refused was not stored, and neither was what the seat before committed too late: it is
            # another commit. So is a part of one.
            if reaction is Reaction.DONE or len(batch) < before or self._standing.seat != seat:
                seat = self._standing.seat
                self._member_seq += 1
                request = self._request(seat, batch)

    def _owns(self, partition: TopicPartition, token: str) -> bool:
        return self._standing.owns(owned_as(partition), token)

    def _owned_of(
        self, batch: dict[TopicPartition, _PendingCommit], why_not: str
    ) -> dict[TopicPartition, _PendingCommit]:
        """The commits whose ownership lasts; the others fail."""
        gone = {p: e for p, e in batch.items() if not self._owns(p, e.token)}
        if gone:
            _fail(gone, CommitFailed(gone, why_not))
        return {p: e for p, e in batch.items() if p not in gone}

    def _remaining_ms(self) -> int:
        """How long the membership lasts, if nothing is heard."""
        return max(1, self._standing.life.remaining_ms(boot_ms()))

    def _settle(
        self,
        batch: dict[TopicPartition, _PendingCommit],
        outcome: Outcome[coordinator_pb2.OffsetCommitResponse],
        *,
        is_final: bool,
    ) -> bool:
        """Hands the outcome of each partition out; True: some have to be sent again, as it is not final."""
        again = False
        codes = {
            TopicPartition(topic.name, partition.partition): int(partition.error_code)
            for topic in outcome.expect().topics
            for partition in topic.partitions
        }
        for partition, entry in batch.items():
            code = codes.get(partition, int(common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR))
            if code == common_pb2.ERROR_CODE_NONE:
                if not entry.done.done():
                    entry.done.set_result(None)
                if owned_as(partition) == partition:  # not the mark of a parked one
                    self._metrics.committed(partition)
            elif code == common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION and not is_final:
                again = True
            else:
                why = f"{code_name(code)}: {outcome.message}".removesuffix(": ")
                self._say_refused((partition,), code, why)
                _fail({partition: entry}, CommitRejected(partition, code_name(code), why))
        return again

    def _say_refused(self, partitions: Collection[TopicPartition], code: int, why: str) -> None:
        self._metrics.commit_refused([p for p in partitions if owned_as(p) == p], code)
        log.info(
            "group %r: commit refused of %s: %s", self._link.group_id, in_words(partitions), harmless(why)
        )

    def _give_up(
        self,
        batch: dict[TopicPartition, _PendingCommit],
        reaction: Reaction,
        outcome: Outcome[coordinator_pb2.OffsetCommitResponse],
    ) -> None:
        why = f"{code_name(outcome.code)}: {outcome.message}".removesuffix(": ")
        self._say_refused(batch, outcome.code, why)
        if reaction is Reaction.RAISE:
            for partition, entry in batch.items():
                _fail({partition: entry}, CommitRejected(partition, code_name(outcome.code), why))
        else:
            _fail(batch, CommitFailed(batch, f"the coordinator answered {why}"))

    def _request(
        self, seat: Seat, batch: Mapping[TopicPartition, _PendingCommit]
    ) -> coordinator_pb2.OffsetCommitRequest:
        request = coordinator_pb2.OffsetCommitRequest(
            **self._standing.caller.fields_at(seat),
            member_seq=self._member_seq,
            topics=[
                coordinator_pb2.OffsetCommitRequest.Topic(
                    name=topic,
                    partitions=[
                        _sent(batch[TopicPartition(topic, number)], by_token=bool(seat.join))
                        for number in numbers
                    ],
                )
                for topic, numbers in group_by_topic(batch).items()
            ],
        )
        if seat.join:  # of an incremental group, in which tokens say whose commit counts
            request.member_epoch = seat.generation
            request.ClearField("generation")
        return request


def check_position(partition: TopicPartition, position: Committed) -> None:
    """Checks what is to be committed.

    Raises:
        TypeError: the offset is no whole number, or the metadata is no text.
        ValueError: the offset is below 0.
    """
    offset, metadata = position
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"offset of {partition} must be a whole number, not {offset!r}")
    if offset < 0:
        raise ValueError(f"offset of {partition} is {offset}, it must be 0 or more")
    if not isinstance(metadata, str):
        raise TypeError(f"metadata of {partition} must be text, not {metadata!r}")


def _entry(partition: TopicPartition, position: Committed) -> _Entry:
    """A commit as it is sent. Whatever cannot be sent is refused here, where it concerns no other commit."""
    entry = _Entry(
        partition=partition.number, offset=position.offset, leader_epoch=-1, metadata=position.metadata
    )
    size_bytes = len(entry.metadata.encode())
    if size_bytes > COMMIT_METADATA_MAX_BYTES:
        code = code_name(common_pb2.ERROR_CODE_OFFSET_METADATA_TOO_LARGE)
        why = f"{code}: it has {size_bytes:,} bytes, at most {COMMIT_METADATA_MAX_BYTES:,} can be sent"
        raise CommitRejected(partition, code, why)
    return entry


def _sent(pending: _PendingCommit, *, by_token: bool) -> _Entry:
    """A commit as it goes from a seat: in an incremental group its token says that it counts."""
    if not by_token:
        pending.entry.ClearField("token")
        return pending.entry
    epoch, offset = pending.token.split("-")
    pending.entry.token.epoch, pending.entry.token.offset = int(epoch), int(offset)
    return pending.entry


def _fail(entries: Mapping[TopicPartition, _PendingCommit], error: Exception) -> None:
    for entry in entries.values():
        if not entry.done.done():
            entry.done.set_exception(error)


def _seen(outcome: "asyncio.Future[None]") -> None:
    """Retrieves the exception of a commit whose caller was cancelled, so that asyncio does not log it."""
    if not outcome.cancelled():
        outcome.exception()
