"""Checks one log as it grows, and resumes after a restart where it was.

The state of a log, its groups and its chain, is kept from one look to the next. After a restart it is made
again from the entries that are still there, and nothing in them is reported that was reported before.
"""

import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

from muster_core.audit.catalog_audit import CatalogAudit
from muster_core.audit.invariants import Violation
from muster_core.audit.log_audit import LogAudit
from muster_core.config import GroupConfig
from muster_core.log.page import Page
from muster_core.position import NOWHERE, Position
from muster_server.verify.reader import PAGE_ENTRIES, LogTrimmedError

from muster_audit.follow.checkpoint import CheckpointUnusable, LogProgress
from muster_audit.reading.nonce_window import NonceWindow
from muster_audit.reading.sources import LogSource

_PAGES_A_TURN = 5


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """How logs are followed.

    Attributes:
        poll_seconds: pause between two rounds when nothing is waiting.
        memory_mb: memory for the nonces of all logs, MiB.
        page_entries: entries that are asked for at a time.
        max_group_size: members that a group may have.
        limit: violations raised per log and promise; all are counted.
    """

    poll_seconds: float = 1.0
    memory_mb: int = 256
    page_entries: int = PAGE_ENTRIES
    max_group_size: int = 5_000
    limit: int = 20


class LogFollower:
    """Follows one log.

    Args:
        shard: number of the log.
        progress: how far it was checked; kept up to date.
        nonces: how many of the latest nonces are remembered.
        options: how it is read and checked.

    Attributes:
        lag: entries that are acknowledged and not checked yet.
        more: whether another turn would find more at once.
    """

    def __init__(self, shard: int, progress: LogProgress, nonces: int, options: FollowOptions) -> None:
        self.lag = 0
        self.more = False
        self._shard = shard
        self._progress = progress
        self._nonces = nonces
        self._options = options
        self._audit: LogAudit | None = None
        self._beginning_checked = False
        self._missing = NOWHERE
        self._problems: set[str] = set()

    def turn(self, source: LogSource) -> Iterator[Violation]:
        """Checks the next few pages; returns the violations to raise.

        Raises:
            CheckpointUnusable: entries were trimmed before they were checked.
        """
        if self._audit is None:
            self._audit = yield from self._again(source)
        audit, acknowledged = self._audit, source.acknowledged(self._shard)
        end = audit.checker.end
        self.more = False
        if acknowledged > end:
            yield from self._read_on(source, audit, acknowledged)
            if not self.more:
                self._check_there(audit, acknowledged, audit.checker.end >= acknowledged)
        else:
            there = acknowledged == end or source.place_of(self._shard, end.offset) == end
            self._check_there(audit, end, there)
        if not self.more and not self._beginning_checked:
            self._beginning_checked = True
            audit.checker.finish()
        for problem in source.problems_of(self._shard):
            if problem not in self._problems:
                self._problems.add(problem)
                audit.findings.expect("L6n", False, end, problem)
        yield from self._take(audit)
        self.lag = max(acknowledged.offset - audit.checker.end.offset, 0)

    def _again(self, source: LogSource) -> Generator[Violation, None, LogAudit]:
        """The state after what was checked before, made from the entries."""
        progress, name = self._progress, source.name(self._shard)
        node = source.best_node(self._shard)
        first = source.first(self._shard, node)
        if NOWHERE < progress.position < first:
            raise CheckpointUnusable(
                f"{name} was checked up to {progress.position.stream_id} and now begins at "
                f"{first.stream_id}: what was between was trimmed unseen. Check an export of "
                "it, and begin a new checkpoint"
            )
        audit = self._fresh(source)
        if progress.position == NOWHERE:
            return audit
        for page in source.pages(self._shard, node, progress.position, self._options.page_entries):
            audit.add_page(page)
            yield from self._take(audit, again=True)
        checker = audit.checker
        findings = audit.findings
        if checker.end != progress.position:
            text = f"it was checked up to {progress.position.stream_id}, and no node has that entry now"
            findings.expect("L5", False, progress.position, text)
        elif checker.end_hash != progress.end_hash:
            findings.expect("L6", False, checker.end, "another entry was here when it was checked before")
        return audit

    def _fresh(self, source: LogSource) -> LogAudit:
        limit = sys.maxsize  # each page's are taken away, and those that are raised counted here
        nonces = NonceWindow(self._nonces)
        snapshots = source.snapshots(self._shard)
        if self._shard == source.shard_count:
            return CatalogAudit(
                self._shard, cluster=source.genesis, limit=limit, nonces=nonces, snapshots=snapshots
            )
        return LogAudit(
            self._shard,
            cluster=source.genesis,
            limits=GroupConfig(max_size=self._options.max_group_size),
            limit=limit,
            nonces=nonces,
            snapshots=snapshots,
        )

    def _read_on(self, source: LogSource, audit: LogAudit, acknowledged: Position) -> Iterator[Violation]:
        with closing(self._pages(source, audit.checker.end, acknowledged)) as pages:
            for number, page in enumerate(pages, 1):
                audit.add_page(page)
                yield from self._take(audit)
                self._progress.position = audit.checker.end
                self._progress.end_hash = audit.checker.end_hash
                self._progress.entries += len(page)
                if number == _PAGES_A_TURN:
                    self.more = audit.checker.end < acknowledged
                    return

    def _pages(self, source: LogSource, after: Position, upto: Position) -> Generator[Page, None, None]:
        node, count = source.best_node(self._shard), self._options.page_entries
        try:
            yield from source.pages(self._shard, node, upto, count, after)
        except LogTrimmedError as error:
            raise CheckpointUnusable(
                f"{error}: entries were trimmed before they were checked. Check an export of it, and begin a "
                "new checkpoint"
            ) from error

    def _check_there(self, audit: LogAudit, position: Position, there: bool) -> None:
        """Raises an acknowledged entry that two rounds miss: one may, where a node comes back during it."""
        if there:
            self._missing = NOWHERE
        elif position == self._missing:
            text = f"the log was acknowledged up to {position.stream_id} and no node has that entry"
            audit.findings.expect("L5", False, position, text)
        else:
            self._missing = position

    def _take(self, audit: LogAudit, *, again: bool = False) -> Iterator[Violation]:
        """Takes over what was found, each promise and place once; `again`: from entries checked before."""
        progress, found = self._progress, list(audit.findings.violations)
        audit.findings.violations.clear()
        for violation in found:
            place = (violation.invariant, violation.position.stream_id)
            if place in progress.raised:
                continue
            raised = sum(id_ == violation.invariant for id_, _ in progress.raised)
            if raised < self._options.limit:
                progress.raised.add(place)
                progress.broken[violation.invariant] += 1
                yield violation
            elif not again:
                progress.broken[violation.invariant] += 1
