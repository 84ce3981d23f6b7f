"""A member of a group: joins, stays alive, rejoins, and calls back about what it owns."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from muster_protos.muster.v1 import common_pb2

from muster._cluster.cluster import Cluster
from muster._cluster.fetching import fetch_committed
from muster._config import (
    MemberConfig,
    MemberSettings,
    check_group_id,
    check_keywords,
    check_partition_list,
    check_topics,
)
from muster._errors import (
    CallbackFailed,
    ClusterUnavailable,
    CommitFailed,
    MemberClosed,
    MusterError,
    SettingsError,
)
from muster._incremental.classic_seat import ClassicSeat
from muster._member.callbacks import Callbacks, PartitionsCallback
from muster._member.commits import Committer, check_position
from muster._member.generations import Generations
from muster._member.joiner import Joiner
from muster._member.leader import Leader
from muster._member.ownership import Ownership
from muster._member.participation import Participation
from muster._member.reports import Reporter, check_end
from muster._member.waits import Closing, Converted, OtherKind, Reverted, Waits
from muster._messages import in_words
from muster._metrics.member import MemberMetrics
from muster._standing.life import Life
from muster._standing.seat import Caller, Seat
from muster._standing.standing import MemberState, Standing
from muster._values import Committed, Topic, TopicPartition

log = logging.getLogger("muster")

MOST_REFUSALS = 4
"""How often a group may refuse a member in turn as one of either kind, before that is an error."""

_OR_EITHER = "with protocol='auto' it uses that in classic groups only"

LEAVE_TIMEOUT_MS = 5_000
"""How long a closing member tries to leave the group."""


class Member:
    """One member of a group. Use it as an async context manager, or call `start` and `close`.

    It finds the coordinator, joins, heartbeats in the background and joins again whenever the protocol asks
    for it. When a server is lost it looks for the next one, however long that takes.

    `on_partitions_assigned` gets what the member owns from now on. `on_partitions_revoked` is to give up what
    it gets: the member joins the next generation when it returns, or when the rebalance time-out has passed.
    `on_partitions_lost` means that it is too late for that: another member may own the partitions.

    With a cooperative assignor (`cooperative-sticky`) the member keeps its partitions while the group
    rebalances. Then `on_partitions_revoked` gets only what moves, before `on_partitions_assigned` gets only
    what is new, possibly nothing; and if anything was revoked, the member joins again by itself.

    In an incremental group the coordinator assigns, and every callback gets only what changes:
    `on_partitions_assigned` what is new, `on_partitions_revoked` what goes, for which there is
    `rebalance_timeout_ms`. Everything else is worked on meanwhile. The member takes part in such a group
    where it can, unless `protocol`, `assignors` or `user_data` are given; see `MemberConfig`.

    `on_partitions_lost` is also called when no coordinator has answered for `disconnect_grace_ms` (without a
    stream, or with a grace of 0: for a session time-out), counted from when the last acknowledged beat was
    sent. If the coordinator still knows the member later, the same partitions are assigned again without a
    rebalance.

    Args:
        cluster: the connection; it must outlive the member.
        group_id: the group, 1 to 255 bytes.
        topics: one topic or several.
        on_partitions_assigned: called with what is owned from now on beside what was kept, possibly nothing.
        on_partitions_revoked: called with what the member is to give up.
        on_partitions_lost: called after the member lost partitions.
        settings: see `MemberConfig`.

    Raises:
        SettingsError: a setting is outside its limits.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        group_id: str,
        topics: str | Sequence[str],
        on_partitions_assigned: PartitionsCallback | None = None,
        on_partitions_revoked: PartitionsCallback | None = None,
        on_partitions_lost: PartitionsCallback | None = None,
        **settings: Unpack[MemberSettings],
    ) -> None:
        if not isinstance(cluster, Cluster):
            raise SettingsError("cluster", f"must be a Cluster, not {cluster!r}")
        check_keywords("Member", settings, MemberSettings.__annotations__)
        self.config: MemberConfig = MemberConfig(**settings)
        self.group_id: str = check_group_id(group_id)
        if self.config.protocol == "classic" and settings.get("protocol") is None:
            log.info("group %r: a classic member, as its assignor is given; %s", group_id, _OR_EITHER)
        self.topics: tuple[str, ...] = check_topics(topics)
        self._cluster = cluster
        self._link = cluster.link(self.group_id, session=self.config.session)
        self.metrics: MemberMetrics = MemberMetrics(group_id, self.topics, lambda: self.partitions)
        """What it counts, for the rest of this library."""
        self._link.metrics = self.metrics
        self._standing = Standing(
            Caller(self.group_id, self.config.group_instance_id),
            Life(self.config.session_timeout_ms, self.config.grace_ms, self.config.rebalance_timeout_ms),
            metrics=self.metrics,
        )
        self._committer = Committer(
            self._link,
            self._standing,
            cluster.alarms,
            self.metrics,
            request_timeout_ms=self.config.request_timeout_ms,
        )
        self._reporter = Reporter(
            self._link, self._standing, request_timeout_ms=self.config.request_timeout_ms
        )
        self._leader = Leader(self._read_topics)
        self._waits = Waits(self._standing, cluster.alarms, self._lose)
        self._ownership = Ownership(
            Callbacks(on_partitions_assigned, on_partitions_revoked, on_partitions_lost),
            self._standing,
            self._committer,
            self._waits,
            group_id=self.group_id,
            rebalance_timeout_ms=self.config.rebalance_timeout_ms,
        )
        self._joiner = Joiner(
            config=self.config,
            topics=self.topics,
            link=self._link,
            standing=self._standing,
            leader=self._leader,
            waits=self._waits,
            stand_in=cluster.stand_in,
            lose=self._ownership.lose,
        )
        self._way: Generations | Participation = (
            self._generations() if self.config.protocol == "classic" else self._incremental()
        )
        self._is_final = False
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    def _generations(self, left_seq: int | None = None) -> Generations:
        return Generations(
            config=self.config,
            link=self._link,
            standing=self._standing,
            joiner=self._joiner,
            leader=self._leader,
            ownership=self._ownership,
            waits=self._waits,
            metrics=self.metrics,
            left_seq=left_seq,
        )

    def _incremental(self, seat: ClassicSeat | None = None) -> Participation:
        return Participation(
            config=self.config,
            topics=self.topics,
            link=self._link,
            standing=self._standing,
            ownership=self._ownership,
            waits=self._waits,
            stand_in=self._cluster.stand_in,
            seat=seat,
        )

    # What it is

    @property
    def state(self) -> MemberState:
        """UNJOINED, REBALANCING or STABLE."""
        return self._standing.state

    @property
    def member_id(self) -> str:
        """Id that the coordinator assigned; empty: none yet."""
        return self._standing.seat.member_id

    @property
    def generation(self) -> int:
        """Generation that it is in, or its epoch in an incremental group; -1: none."""
        return self._standing.seat.generation

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What it owns at this moment, in order; nothing once its life is over, even before the callback."""
        return tuple(self._standing.owned) if self._standing.holds else ()

    @property
    def is_incremental(self) -> bool:
        """Whether it takes part in an incremental group, or looks for a place in one."""
        return isinstance(self._way, Participation)

    @property
    def last_cause(self) -> common_pb2.RebalanceCause | None:
        """Why the group last rebalanced; None if the coordinator did not say."""
        return self._standing.cause

    def token(self, partition: TopicPartition) -> str:
        """Fencing token of an owned partition: a string that grows with each owner, for sinks to compare.

        Raises:
            CommitFailed: the partition is not owned.
        """
        token = self._standing.owned.get(partition)
        if token is None or not self._standing.owns(partition, token):
            raise CommitFailed([partition], "it is not owned")
        return token

    # What its owner does

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if error is None and self._error is not None:
            raise self._error

    async def start(self) -> None:
        """Starts to join, in the background.

        Raises:
            MemberClosed: it was started before.
        """
        if self._task is not None:
            raise MemberClosed("a member is started once; make another one")
        self._task = asyncio.get_running_loop().create_task(
            self._live(), name=f"muster-member-{self.group_id}"
        )

    async def wait(self) -> None:
        """Waits until the member is closed.

        Raises:
            MusterError: why it stopped by itself.
        """
        if self._task is None:
            raise MemberClosed("the member has not been started")
        await asyncio.wait((self._task,))
        if self._error is not None:
            raise self._error

    async def close(self, reason: str = "the member was closed") -> None:
        """Gives everything up, finishes commits and leaves the group (a static member stays in it).

        Never raises for what servers or networks do; after a failure it does nothing. Without a coordinator
        it gives commits up at the end of the member's life, with a log that takes none after
        `rebalance_timeout_ms`; it tries to leave for 5 s. Called in a callback, or in a task that was begun
        in one, it returns at once as long as the callback runs, and the member closes when that has returned.
        """
        if self._task is None:
            return
        self.begin_close(reason)
        if self._ownership.is_within_callback:
            return  # the member waits for this very task
        await asyncio.wait((self._task,))
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def begin_close(self, reason: str = "the member was closed") -> None:
        """Begins what `close` does, for who does not wait for it."""
        self._standing.closing = reason
        self._standing.news.set()

    def rejoin(self, reason: str) -> None:
        """Starts a rebalance, e.g. because the member's own view of the work changed.

        In an incremental group it does nothing: the coordinator looks at the topics itself.
        """
        self._way.rejoin(reason)

    async def commit(self, offsets: Mapping[TopicPartition, int | Committed]) -> None:
        """Stores how far the work got; returns when a majority of the log has it.

        Commits made while a request is in flight travel together in the next one.

        Raises:
            CommitFailed: a partition is not, or no longer, owned.
            CommitRejected: an offset or its metadata is not acceptable.
            TypeError, ValueError: an offset is no whole number of 0 or more, or metadata are no text.
        """
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets must map partitions to positions, not be {offsets!r}")
        partitions = check_partition_list("offsets", offsets)
        positions = {
            p: at if isinstance(at, Committed) else Committed(at)
            for p, at in zip(partitions, offsets.values(), strict=True)
        }
        tokens = {p: self._standing.owned[p] for p in positions if p in self._standing.owned}
        await self.commit_owned(positions, tokens)

    async def commit_owned(
        self, offsets: Mapping[TopicPartition, Committed], tokens: Mapping[TopicPartition, str]
    ) -> None:
        """Like `commit`, but only for the ownerships that the tokens name, not for later ones."""
        for partition, position in offsets.items():
            check_position(partition, position)
        await self._committer.commit(offsets, tokens)

    def report(self, ends: Mapping[TopicPartition, int]) -> None:
        """Says where the work of owned partitions ends, see `Partition.report`; others are passed over.

        Raises:
            TypeError, ValueError: an end is no whole number of 0 or more.
        """
        self.report_owned(ends, self._standing.owned)

    def report_owned(self, ends: Mapping[TopicPartition, int], tokens: Mapping[TopicPartition, str]) -> None:
        """Like `report`, but only for the ownerships that the tokens name."""
        for partition, end in ends.items():
            check_end(partition, end)
        self._reporter.report(ends, tokens)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Returns what the group committed; partitions without a commit are missing.

        Waits for a coordinator without a limit.

        Raises:
            GroupError: the coordinator refuses.
        """
        return await fetch_committed(
            self._link,
            check_partition_list("partitions", partitions),
            request_timeout_ms=self.config.request_timeout_ms,
            give_up_after_ms=None,
        )

    # Its life

    async def _live(self) -> None:
        watch = asyncio.get_running_loop().create_task(self._watch_topics())
        self.metrics.begin()
        try:
            await self._take_part()
        except Exception as error:
            if not isinstance(error, MusterError):
                log.exception("group %r: the member failed in a way that it did not foresee", self.group_id)
            self._error = error
            await self._fail()
        finally:
            watch.cancel()
            await asyncio.wait((watch,))
            await self._reporter.close()
            await self._committer.close()
            await self._way.stop()
            self._standing.seat = Seat()
            self._standing.state = MemberState.UNJOINED
            self.metrics.end()

    async def _take_part(self) -> None:
        refusals = 0
        try:
            while True:
                try:
                    await self._way.take_part()
                except OtherKind as other:
                    refusals = 1 if self._way.has_joined else refusals + 1
                    if self.config.protocol != "auto" or refusals == MOST_REFUSALS or self._is_final:
                        raise other.refusal from None
                    await self._change_way(other)
                except Converted:
                    await self._go_on()
                except Reverted:
                    await self._go_back()
        except Closing:
            # What raises here is lost first: nobody leaves with partitions in hand.
            await self._ownership.revoke()
            await self._way.leave(LEAVE_TIMEOUT_MS)

    async def _change_way(self, other: OtherKind) -> None:
        """Takes part in a group of the other kind. Nothing is held."""
        if isinstance(self._way, Generations):
            how = "an incremental member: a classic one does not fit to its members"
        elif other.is_final:
            how = "a classic member: the cluster has no incremental groups"
        else:
            how = "a classic member: the group is a classic one"
        log.info("group %r: takes part as %s", self.group_id, how)
        self._is_final = other.is_final
        await self._way.stop()
        standing = self._standing
        standing.seat, standing.owned, standing.order = Seat(), {}, None
        self._way = self._generations() if isinstance(self._way, Participation) else self._incremental()

    async def _go_on(self) -> None:
        """The group has become an incremental one: the member goes on in it with what it works on."""
        assert isinstance(self._way, Generations)
        standing = self._standing
        if not standing.alive:
            await self._ownership.lose()
        seat = self._way.seat_to_go_on_from
        log.info("group %r: it is incremental now; %s goes on with %s", self.group_id, *_of(seat))
        await self._way.stop()
        standing.order = None
        self._way = self._incremental(seat)

    async def _go_back(self) -> None:
        """The group has become a classic one: the member takes part in its rebalance, with what it works on.

        It has its id and its seat as before until it has joined: commits count by their tokens until then.
        """
        assert isinstance(self._way, Participation)
        left_seq = self._way.member_seq
        log.info("group %r: it is classic now; %s goes on in it", self.group_id, self.member_id)
        await self._way.stop()
        self._standing.order = None
        self._way = self._generations(left_seq)

    async def _fail(self) -> None:
        try:
            await self._ownership.lose()
        except CallbackFailed:
            log.exception("group %r: a callback raised while the member stopped", self.group_id)
        await self._way.leave(LEAVE_TIMEOUT_MS)

    async def _lose(self) -> None:
        await self._ownership.lose()

    # Topics

    async def _read_topics(self, names: Iterable[str]) -> list[Topic]:
        wanted = list(names)
        while True:
            try:
                return await self._cluster.topics(wanted)
            except ClusterUnavailable as error:
                log.warning("group %r: topics cannot be read: %s; trying again", self.group_id, error)

    async def _watch_topics(self) -> None:
        while True:
            await asyncio.sleep(self.config.topic_refresh_interval_ms / 1_000)
            try:
                changes = await self._leader.changes()
            except MusterError as error:
                log.warning("group %r: topics cannot be watched: %s", self.group_id, error)
            except Exception:  # nobody would hear of topics that change any more
                log.exception("group %r: topics cannot be watched; trying again", self.group_id)
            else:
                if changes and self._standing.state is MemberState.STABLE:
                    self.rejoin(changes)


def _of(seat: ClassicSeat) -> tuple[str, str]:
    """Who goes on with what, for people."""
    return seat.member_id or "a newcomer", in_words(seat.runs)
