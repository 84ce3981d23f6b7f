"""One pass over one log, without Spark: what the data source runs, and what can run without it."""

import gc
import hashlib
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain

from muster_core.audit.anchor import End
from muster_core.audit.catalog_audit import CatalogAudit
from muster_core.audit.log_audit import LogAudit
from muster_core.audit.node_log import NodeLog, proven
from muster_core.audit.nonces import NonceBook
from muster_core.config import GroupConfig
from muster_core.log.page import Page
from muster_core.log.record_run import RecordRun
from muster_core.log.replay import Entry
from muster_core.position import NOWHERE, Position
from muster_server.verify.reader import PAGE_ENTRIES, LogTrimmedError
from redis.exceptions import RedisError

from muster_audit.promises import Rules
from muster_audit.reading.facts import (
    Broken,
    Fact,
    LogRead,
    Looked,
    NodeHolds,
    Note,
    Restored,
    Segment,
    Unread,
)
from muster_audit.reading.nonce_books import DEFAULT_MEMORY_MB, with_nonces
from muster_audit.reading.sources import LogSource
from muster_audit.reading.timeline import Timeline

SEGMENT_ENTRIES = 4_096
"""Offsets whose entries are compared between nodes by one digest."""

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """How logs are read and checked.

    Attributes:
        rules: what is checked.
        memory_mb: memory for the nonces of one task, MiB.
        page_entries: entries that are asked for at a time.
        span_ms: width of the spans of time in what is counted over time.
        began_ms: where the first of them begins.
        compare: whether digests for the comparison of nodes are made.
        limit: violations kept per log and invariant; all are counted.
        max_group_size: members that a group may have.
        anchor: where an earlier audit saw the logs end, by their numbers.
    """

    rules: Rules = Rules.ALL
    memory_mb: int = DEFAULT_MEMORY_MB
    page_entries: int = PAGE_ENTRIES
    span_ms: int = 60_000
    began_ms: int = 0
    compare: bool = False
    limit: int = 20
    max_group_size: int = 5_000
    anchor: Mapping[int, End] = field(default_factory=dict)


def audit_log(source: LogSource, shard: int, options: ScanOptions, planned: int = 0) -> Iterator[Fact]:
    """Checks one log at the node whose log goes furthest.

    It begins again where the log is trimmed, or a node lost, meanwhile.

    Args:
        source: the logs.
        shard: number of the log.
        options: how it is read.
        planned: the node whose copy is compared here, and nowhere else; 0: it is the one that is checked.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _garbage_left_alone():
                node, facts = _facts(source, shard, options, planned)
        except (LogTrimmedError, RedisError):
            if attempt == _ATTEMPTS:
                raise
            source.leave_silent()
        else:
            yield from facts
            if options.compare and planned not in (0, node):
                yield from digest_log(source, shard, options, planned)
            return


def _facts(source: LogSource, shard: int, options: ScanOptions, planned: int) -> tuple[int, list[Fact]]:
    """The node that a pass over a log read, and what it found.

    A second one follows where spans cannot say whether nonces repeat.
    """

    def read(nonces: NonceBook) -> tuple[int, list[Fact]]:
        nodes = source.node_logs(shard)
        node = source.best_node(shard, nodes)
        digest = planned in (0, node)
        return node, list(_audit_once(source, shard, nodes, node, options, nonces, digest=digest))

    return with_nonces(read, options.memory_mb)


def _beside_the_entries(source: LogSource, audit: LogAudit, nodes: Iterable[NodeLog]) -> Iterator[Fact]:
    shard = audit.checker.shard
    for restore in audit.restores if isinstance(audit, CatalogAudit) else ():
        yield Restored(shard, *restore.position, restore.at_ms, restore.reason)
    for note in audit.notes:
        yield Note(shard, f"{source.name(shard)}: {note}")
    for one in nodes:
        reach = audit.snapshots.reach.get(one.node, NOWHERE)
        yield NodeHolds(shard, one.node, *one.first, *one.end, *reach)


def _anchored(source: LogSource, shard: int, options: ScanOptions) -> Entry | None:
    """The entry at the end that an earlier audit saw; None: there is none, or nothing was seen."""
    end = options.anchor.get(shard)
    return None if end is None else source.entry_at(shard, end.position)


def _check_anchor(
    source: LogSource, audit: LogAudit, acknowledged: Position, options: ScanOptions, there: Entry | None
) -> None:
    """Checks the end that an earlier audit saw; an export may be older than that.

    Args:
        source: the log.
        audit: of it, after the last page.
        acknowledged: up to where the log is.
        options: what was seen.
        there: the entry, as it was before the first page: it may have been trimmed meanwhile.
    """
    end = options.anchor.get(audit.checker.shard)
    if end is None:
        return
    if end.position > acknowledged and source.is_copy:
        audit.notes.append(f"it was exported before the anchor was made, at {end.position.stream_id}")
        return
    found = _anchored(source, audit.checker.shard, options) or there
    audit.check_anchor(end, found, acknowledged)


def _unwatched(_: RecordRun) -> None:
    """Looks at no record: it has the markers of snapshots decoded."""


@contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """Runs a block without garbage collection, and then collects what it left.

    A page makes thousands of objects without cycles; collections meanwhile would look at all of them, and at
    the state of all groups, for nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()


def _audit_once(
    source: LogSource,
    shard: int,
    nodes: Sequence[NodeLog],
    node: int,
    options: ScanOptions,
    nonces: NonceBook,
    *,
    digest: bool,
) -> Iterator[Fact]:
    began = time.perf_counter()
    acknowledged = proven(nodes) if nodes else source.acknowledged(shard)
    catalog = shard == source.shard_count
    replay = options.rules is Rules.ALL
    timeline = Timeline(shard, options.span_ms, options.began_ms) if options.rules is Rules.ALL else None
    digests = Digests(shard, node) if options.compare and digest else None
    size_bytes = 0
    watch = timeline.watch if timeline is not None else _unwatched if options.anchor else None
    if catalog and replay:
        audit: LogAudit = CatalogAudit(
            shard,
            cluster=source.genesis,
            limit=options.limit,
            nonces=nonces,
            snapshots=source.snapshots(shard),
            watch=watch,
        )
    else:
        audit = LogAudit(
            shard,
            cluster=source.genesis,
            limits=GroupConfig(max_size=options.max_group_size),
            limit=options.limit,
            nonces=nonces,
            replay=replay,
            snapshots=source.snapshots(shard) if replay else None,
            watch=watch,
        )
    there = _anchored(source, shard, options)
    for page in source.pages(shard, node, acknowledged, options.page_entries):
        audit.add_page(page)
        size_bytes += sum(map(len, page.records))
        if digests is not None:
            digests.add(page)
    if replay:
        source.check_nodes(audit, nodes, acknowledged)
    _check_anchor(source, audit, acknowledged, options, there)
    findings = audit.finish(acknowledged)
    for problem in source.problems_of(shard):
        findings.expect("L6n", False, acknowledged, problem)
    checker = audit.checker
    yield from _beside_the_entries(source, audit, nodes)
    yield LogRead(
        shard,
        source.name(shard),
        node,
        checker.first.offset,
        *checker.end,
        checker.end_hash.hex(),
        checker.entries,
        len(audit.groups),
        size_bytes,
        checker.begins_trimmed,
        False,
        time.perf_counter() - began,
    )
    for invariant in findings.checked.keys() | findings.broken.keys():
        yield Looked(shard, invariant, findings.checked[invariant], findings.broken[invariant])
    for violation in findings.violations:
        yield Broken(
            shard,
            source.name(shard),
            violation.invariant,
            *violation.position,
            violation.detail,
            list(source.around(shard, violation.position)),
        )
    if timeline is not None:
        yield from timeline.facts(audit.groups)
    if digests is not None:
        yield from digests.segments()


def digest_log(source: LogSource, shard: int, options: ScanOptions, node: int) -> Iterator[Fact]:
    """Digests of a log as one more node holds it; says so where that node was lost."""
    began = time.perf_counter()
    for attempt in range(1, _ATTEMPTS + 1):
        if node not in source.node_numbers():
            yield Unread(shard, node, source.problems.get(node, "it does not belong to the log any more"))
            return
        digests = Digests(shard, node)
        try:
            for page in source.pages(shard, node, source.acknowledged(shard), options.page_entries):
                digests.add(page)
        except (LogTrimmedError, RedisError):
            if attempt == _ATTEMPTS:
                raise
            source.leave_silent()
        else:
            break
    first, last = digests.first, digests.last
    name, seconds = source.name(shard), time.perf_counter() - began
    yield LogRead(shard, name, node, first.offset, *last, "", digests.entries, 0, 0, False, True, seconds)
    yield from digests.segments()


class Digests:
    """Digests of what a node holds, one for each range of offsets.

    Args:
        shard: number of the log.
        node: number of the node.
    """

    def __init__(self, shard: int, node: int) -> None:
        self.first = self.last = Position(0, 0)
        self.entries = 0
        self._shard, self._node = shard, node
        self._done: list[Segment] = []
        self._number = -1
        self._count = 0
        self._columns = _columns()

    def add(self, page: Page) -> None:
        """Takes the next entries."""
        if not page:
            return
        if not self.entries:
            self.first = page.first
        for number, start, end in _parts(page):
            if number != self._number:
                self._close()
                self._number = number
            rows = slice(start, end)
            places = [page.position(index) for index in range(start, end)]
            lengths = [len(record) for record in page.records[rows]]
            for column, data in zip(
                self._columns,
                (
                    array("Q", chain.from_iterable(places)).tobytes(),
                    array("Q", lengths).tobytes(),
                    b"".join(page.records[rows]),
                    b"".join(page.nonces[rows]),
                    b"".join(page.hashes[rows]),
                ),
                strict=True,
            ):
                column.update(data)
            self._count += end - start
        self.entries += len(page)
        self.last = page.last

    def _close(self) -> None:
        if self._count:
            digest = sha256(b"".join(column.digest() for column in self._columns)).hexdigest()
            self._done.append(Segment(self._shard, self._node, self._number, self._count, digest))
        self._count, self._columns = 0, _columns()

    def segments(self) -> Iterable[Segment]:
        """All digests."""
        self._close()
        return self._done


def _columns() -> "tuple[hashlib._Hash, ...]":
    """One hash for each of places, lengths, records, nonces and hashes: pages may be cut anywhere."""
    return tuple(sha256() for _ in range(5))


def _parts(page: Page) -> Iterator[tuple[int, int, int]]:
    """The runs of a page that belong to one segment: its number, first and last index."""
    start = 0
    while start < len(page):
        number = page.position(start).offset // SEGMENT_ENTRIES
        end = start + 1
        if page.dense:
            end = min(len(page), start + SEGMENT_ENTRIES - page.position(start).offset % SEGMENT_ENTRIES)
        else:
            while end < len(page) and page.position(end).offset // SEGMENT_ENTRIES == number:
                end += 1
        yield number, start, end
        start = end
