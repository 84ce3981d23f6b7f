"""Checks the logs of a running cluster as they grow: one loop over `LogAudit`, without Spark."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
from muster_core.audit.anchor import End
from muster_core.position import NOWHERE, Position
from muster_server.verify.anchors import NO_ANCHORS, Anchoring
from muster_server.verify.reader import LogUnreadableError

from muster_audit.follow.checkpoint import Checkpoint, CheckpointUnusable, LogProgress
from muster_audit.follow.log_follower import FollowOptions, LogFollower
from muster_audit.follow.metrics import Round, metrics_text
from muster_audit.reading.durable import HeldElsewhere, held_alone, replace_file
from muster_audit.reading.facts import Broken
from muster_audit.reading.nonce_window import NONCE_BYTES_EACH
from muster_audit.reading.sources import LogSource, NodesSource

_ANCHOR_SECONDS = 60.0


class Follower:
    """Follows all logs of a cluster.

    Args:
        checkpoint: how far they were checked; kept up to date.
        options: how they are read and checked.
    """

    def __init__(self, checkpoint: Checkpoint, options: FollowOptions) -> None:
        self.checkpoint = checkpoint
        self.names: dict[int, str] = {}
        self.options = options
        self._logs: dict[int, LogFollower] = {}

    @property
    def lags(self) -> dict[str, int]:
        """Entries that are acknowledged and not checked yet, by the name of the log."""
        return {self.names[shard]: log.lag for shard, log in self._logs.items()}

    @property
    def more(self) -> bool:
        """Whether another round would find more at once."""
        return any(log.more for log in self._logs.values())

    def round(self, source: LogSource) -> Iterator[Broken]:
        """Gives each log its turn; yields what is broken at once.

        Raises:
            CheckpointUnusable: the checkpoint is of another cluster, or entries were trimmed unseen.
        """
        checkpoint = self.checkpoint
        if checkpoint.cluster_id not in ("", source.cluster_id):
            raise CheckpointUnusable(
                f"the checkpoint is of cluster {checkpoint.cluster_id}, the log of {source.cluster_id}"
            )
        checkpoint.cluster_id = source.cluster_id
        shards = source.logs()
        nonces = self.options.memory_mb * (1 << 20) // NONCE_BYTES_EACH // 2 // max(1, len(shards))
        for shard in shards:
            if shard not in self._logs:
                progress = checkpoint.logs.setdefault(shard, LogProgress())
                self._logs[shard] = LogFollower(shard, progress, nonces, self.options)
                self.names[shard] = source.name(shard)
            for violation in self._logs[shard].turn(source):
                around = _around(source, shard, violation.position)
                yield Broken(
                    shard,
                    self.names[shard],
                    violation.invariant,
                    *violation.position,
                    violation.detail,
                    around,
                )

    def keep_anchor(self, anchoring: Anchoring) -> None:
        """Keeps how far the logs were checked, while nothing is broken.

        Raises:
            AnchorError: it cannot be kept.
        """
        logs = self.checkpoint.logs.items()
        ends = {shard: End(log.position, log.end_hash) for shard, log in logs if log.position != NOWHERE}
        if ends and not self.checkpoint.broken:
            anchoring.store(self.checkpoint.cluster_id, ends)


def _around(source: LogSource, shard: int, position: Position) -> list[str]:
    """The entries around a place; none where they cannot be read: the violation is reported all the same."""
    try:
        return list(source.around(shard, position))
    except redis.RedisError:
        return []


@dataclass(frozen=True, slots=True)
class Listener:
    """What `follow` calls.

    Attributes:
        broken: with each violation, once.
        unreachable: with why the log cannot be read just now; empty: it can again.
    """

    broken: Callable[[Broken], None]
    unreachable: Callable[[str], None]


def follow(
    address: str,
    path: Path,
    options: FollowOptions,
    listener: Listener,
    stop: threading.Event,
    metrics: Path | None = None,
    anchoring: Anchoring = NO_ANCHORS,
) -> Counter[str]:
    """Follows the logs of a cluster until `stop` is set; returns how often each promise was broken.

    A violation is reported, then written to the checkpoint: after a crash between the two it is reported
    again.

    Args:
        address: nodes of the log.
        path: file of the checkpoint.
        options: how the logs are read and checked.
        listener: takes what is found.
        stop: set when it is to end.
        metrics: file for the metrics; None: none are written.
        anchoring: where the ends are kept once a minute, and at the end, while nothing is broken.

    Raises:
        CheckpointUnusable: it cannot be gone on from the checkpoint, or another process does so.
        LogUnreadableError: the log cannot be read at the start. Later on it is tried again.
    """
    try:
        with held_alone(path.with_name(path.name + ".lock")):
            follower = Follower(Checkpoint.load(path), options)
            try:
                _follow(follower, address, path, listener, stop, metrics, anchoring)
            finally:
                follower.keep_anchor(anchoring)
    except HeldElsewhere as holder:
        raise CheckpointUnusable(
            f"{path} is in use by {holder}: give each follower a --checkpoint of its own"
        ) from None
    return follower.checkpoint.broken


def _follow(
    follower: Follower,
    address: str,
    path: Path,
    listener: Listener,
    stop: threading.Event,
    metrics: Path | None,
    anchoring: Anchoring,
) -> None:
    began, problem, at_seconds, anchored_seconds = False, "", 0.0, time.monotonic()
    while not stop.is_set():
        try:
            with NodesSource(address) as source:
                began = True
                for broken in follower.round(source):
                    listener.broken(broken)
                    follower.checkpoint.save(path)
                    if stop.is_set():
                        break
            found, at_seconds = "", time.time()
        except (LogUnreadableError, redis.RedisError) as error:
            if not began:
                raise
            found = str(error) or type(error).__name__
        if found != problem:
            listener.unreachable(found)
            problem = found
        follower.checkpoint.save(path)
        if metrics is not None:
            last = Round(not problem, at_seconds, follower.lags)
            replace_file(metrics, metrics_text(follower.checkpoint, last, follower.names))
        if time.monotonic() - anchored_seconds > _ANCHOR_SECONDS:
            follower.keep_anchor(anchoring)
            anchored_seconds = time.monotonic()
        if problem or not follower.more:
            stop.wait(follower.options.poll_seconds)
