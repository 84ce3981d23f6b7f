"""Reads the catalog's log: from its newest snapshot on, each entry checked against the one before it."""

from contextlib import aclosing
from dataclasses import dataclass, field

import structlog
from google.protobuf.message import DecodeError
from muster_core.log.chain import BEFORE_GENESIS
from muster_core.log.snapshot import Covered, SnapshotReader, SnapshotUnusable, nothing_of
from muster_core.log.topics.topics import Topics
from muster_core.position import NOWHERE, Position
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2
from muster_runtime.logs import alarm

from muster_metadata.log.reading import MAX_PAGE, LogReader, ReadPage, Wanted
from muster_metadata.log.verdicts import OK
from muster_metadata.nodes.entries import LogEnd, NodeEntry

log = structlog.get_logger()

_ATTEMPTS = 5


class _Unreadable(Exception):
    """A page has a verdict instead of entries."""

    def __init__(self, page: ReadPage) -> None:
        super().__init__(page.verdict.message)
        self.page = page


@dataclass(frozen=True, slots=True)
class CatalogImage:
    """The catalog as it was read from its log.

    Attributes:
        topics: the state after the last entry that was read.
        base: what the snapshot covers with which the read began.
        marker: the marker of that snapshot; None: the read began with the Genesis.
    """

    topics: Topics
    base: Covered
    marker: LogEnd | None


@dataclass(slots=True)
class _Image:
    """An image that is being read.

    Attributes:
        upto: last position covered by the snapshot with which the read began; NOWHERE: none.
    """

    shard: int
    strict: bool
    upto: Position = NOWHERE
    topics: Topics | None = None
    marker: LogEnd | None = None
    states: list[snapshot_pb2.CatalogState] = field(default_factory=list)
    snapshot: SnapshotReader | None = None

    def take(self, page: ReadPage) -> None:
        """Takes the next page.

        Raises:
            _Unreadable: its verdict is not OK.
            SnapshotUnusable: the snapshot is not one of a catalog, or not whole.
            NotUnderstood: the catalog has something that this version does not know.
        """
        if page.snapshot_upto is not None:
            self.upto = page.snapshot_upto
        if page.verdict.outcome != metadata_pb2.LOG_OUTCOME_OK:
            raise _Unreadable(page)
        if page.part:
            if self.snapshot is None:
                self.snapshot = SnapshotReader(self.shard, {}, 0, catalog=self.states.append)
            self.snapshot.take(page.part)
            return
        topics = self.topics = self._begun() if self.topics is None else self.topics
        for entry in page.entries:
            topics.apply(entry)
            self._note_marker(entry)

    def finished(self) -> CatalogImage:
        """Returns the image.

        Raises:
            SnapshotUnusable: the log after the snapshot does not have its marker.
        """
        topics = self._begun() if self.topics is None else self.topics
        base = nothing_of(self.shard)
        if self.snapshot is not None and self.snapshot.covered is not None:
            base = self.snapshot.covered
            if self.marker is None:
                raise SnapshotUnusable("no marker after it in the log says that it is the one")
        return CatalogImage(topics, base, self.marker)

    def _begun(self) -> Topics:
        if self.snapshot is None:
            return Topics(strict=self.strict)
        covered = self.snapshot.covered
        if covered is None or not self.snapshot.complete:
            raise SnapshotUnusable("the snapshot ends before its last item")
        try:
            return Topics.of_states(self.states, covered.upto, covered.hash, strict=self.strict)
        except DecodeError:
            raise SnapshotUnusable("a record that it keeps cannot be decoded") from None

    def _note_marker(self, entry: NodeEntry) -> None:
        if self.snapshot is None or self.snapshot.covered is None or self.marker is not None:
            return
        record = records_pb2.Record.FromString(entry.record)
        if record.HasField("snapshot"):
            said, covered = record.snapshot, self.snapshot.covered
            is_of_it = Position.from_proto(said.upto) == covered.upto and said.hash == covered.hash
            if is_of_it and said.digest == self.snapshot.digest:
                self.marker = entry.end


class CatalogReader:
    """Reads the catalog's log.

    Args:
        reader: reads logs.
        strict: as `Topics`.
    """

    def __init__(self, reader: LogReader, *, strict: bool = True) -> None:
        self._reader = reader
        self._strict = strict
        self._problem = ""

    async def read_on(self, shard: int, known: Topics, epoch: int = 0, nonce: bytes = b"") -> Topics | None:
        """Reads what was written since an earlier read; reads everything if the nodes cannot continue it.

        They may have trimmed it, or may all have forgotten what is known here (LOG-53): then what they have
        counts.

        Args:
            shard: number of the catalog's log.
            known: what was read before; it is not changed.
            epoch: of the reader's claim; 0: read up to the acknowledged position.
            nonce: of the reader's claim.

        Returns:
            The current catalog; None: it cannot be read now.

        Raises:
            NotUnderstood: it has something that this version does not know.
        """
        if known.end_hash:
            topics = known.copy()
            first = known.version.after(1)
            wanted = Wanted(shard, first, epoch, nonce, MAX_PAGE, after_hash=known.end_hash)
            verdict = OK
            async with aclosing(self._reader.read(wanted)) as pages:
                async for page in pages:
                    verdict = page.verdict
                    for entry in page.entries:
                        topics.apply(entry)
            if verdict.outcome == metadata_pb2.LOG_OUTCOME_OK:
                return topics
            if verdict.outcome not in (metadata_pb2.LOG_OUTCOME_TRIMMED, metadata_pb2.LOG_OUTCOME_DAMAGED):
                return None
            log.warning("catalog_read_anew", problem=verdict.message)
        image = await self.read(shard, epoch, nonce)
        return None if image is None else image.topics

    async def read(self, shard: int, epoch: int = 0, nonce: bytes = b"") -> CatalogImage | None:
        """Reads everything; see `read_on`."""
        unusable: set[Position] = set()
        for _ in range(_ATTEMPTS):
            image = _Image(shard, self._strict)
            try:
                return await self._read_once(image, epoch, nonce, frozenset(unusable))
            except SnapshotUnusable as error:
                unusable.add(image.upto)
                alarm("snapshot_unusable", shard=shard, upto=image.upto.stream_id, reason=str(error))
            except _Unreadable as error:
                verdict = error.page.verdict
                if (
                    verdict.outcome == metadata_pb2.LOG_OUTCOME_DAMAGED
                    and error.page.snapshot_upto is not None
                ):
                    unusable.add(image.upto)
                    alarm("snapshot_unusable", shard=shard, upto=image.upto.stream_id, reason=verdict.message)
                elif verdict.outcome != metadata_pb2.LOG_OUTCOME_TRIMMED:
                    self._tell(shard, error.page)
                    return None
        return None

    async def _read_once(
        self, image: _Image, epoch: int, nonce: bytes, without: frozenset[Position]
    ) -> CatalogImage:
        wanted = Wanted(
            image.shard,
            NOWHERE,
            epoch,
            nonce,
            MAX_PAGE,
            snapshot=True,
            without=without,
            after_hash=BEFORE_GENESIS,
        )
        async with aclosing(self._reader.read(wanted)) as pages:
            async for page in pages:
                image.take(page)
        self._problem = ""
        return image.finished()

    def _tell(self, shard: int, page: ReadPage) -> None:
        """Raises an alarm, once, when no node has an undamaged log."""
        problem = page.verdict.message if page.verdict.outcome == metadata_pb2.LOG_OUTCOME_DAMAGED else ""
        if problem and problem != self._problem:
            alarm("log_not_readable", shard=shard, reason=problem)
        self._problem = problem
