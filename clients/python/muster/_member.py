"""A member of a group: joins, stays alive, rejoins, and tells what it owns."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1 import coordinator_pb2 as pb

from muster._backoff import Backoff
from muster._callbacks import Callbacks, PartitionsCallback, invoke
from muster._clock import boot_ms
from muster._cluster import Cluster
from muster._commits import Committer
from muster._config import MemberConfig, check_group_id, check_topics
from muster._errors import (
    AssignorFailed,
    CallbackFailed,
    ClusterUnavailable,
    CommitFailed,
    MemberClosed,
    MusterError,
    group_error,
)
from muster._fetching import fetch_committed
from muster._leader import Leader
from muster._link import Outcome
from muster._messages import PROTOCOL_TYPE, decode_assignment, encode_subscription, tokens_of
from muster._reactions import CONNECTION_LOST, Call, Reaction, reaction_to
from muster._standing import Life, MemberState, Order, Seat, Standing
from muster._transport import KeepAlive, Vitals
from muster._values import Committed, Topic, TopicPartition
from muster.assignors import Assignor

log = logging.getLogger("muster")

LEAVE_TIMEOUT_MS = 5_000
"""How long a closing member tries to say goodbye."""

JOIN_SLACK_MS = 5_000
"""By how much a JoinGroup outlasts the rebalance time-out that it waits for."""

CANCEL_GRACE_MS = 100
"""How long something that was cancelled may take to end before it is left to itself."""

REASON_LENGTH = 255

_T = TypeVar("_T")


class MemberSettings(TypedDict, total=False):
    """Settings of a member as keyword arguments; see `MemberConfig` for what they mean."""

    group_instance_id: str
    client_id: str
    rack_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    request_timeout_ms: int
    topic_refresh_interval_ms: int
    assignors: Sequence[str | Assignor]


class _Closing(Exception):
    """The owner of the member wants it closed."""


class Member:
    """One member of a group. Use it as an async context manager, or call `start` and `close`.

    It finds the coordinator, joins, heartbeats in the background and joins again whenever the protocol asks
    for it. The loss of a server is no exception: it looks for the next one for as long as its life lasts,
    and afterwards too.

    `on_partitions_assigned` says what it owns from now on; `on_partitions_revoked` asks to give everything
    up (the member joins the next generation when it returns, or when the rebalance time-out has passed);
    `on_partitions_lost` says that it is too late for that: somebody else may own the partitions already.
    The member calls it by itself when nothing was heard from a coordinator for a session time-out, counted
    from when the last acknowledged heartbeat was sent; if the coordinator still knows the member later, the
    same partitions are assigned again without a rebalance.

    Args:
        cluster: the connection; it must stay open as long as the member.
        group_id: the group, 1 to 255 bytes.
        topics: one topic or several.
        on_partitions_assigned: called with all partitions that are owned, possibly none.
        on_partitions_revoked: called before the member gives partitions up.
        on_partitions_lost: called after it lost them.
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
        self.config = MemberConfig(**settings)
        self.group_id = check_group_id(group_id)
        self.topics = check_topics(topics)
        self._cluster = cluster
        self._callbacks = Callbacks(on_partitions_assigned, on_partitions_revoked, on_partitions_lost)
        self._assignors = {assignor.name: assignor for assignor in self.config.resolved_assignors}
        self._link = cluster.link(self.group_id)
        self._standing = Standing(Life(self.config.session_timeout_ms))
        self._committer = Committer(
            self._link,
            self._standing,
            group_instance_id=self.config.group_instance_id,
            request_timeout_ms=self.config.request_timeout_ms,
        )
        self._leader = Leader(self._read_topics)
        self._keep_alive: KeepAlive | None = None
        self._member_seq = 0
        self._given_up: tuple[tuple[TopicPartition, ...], int] = ((), -1)
        self._close_reason: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: MusterError | None = None

    # What it is

    @property
    def state(self) -> MemberState:
        """UNJOINED, REBALANCING or STABLE."""
        return self._standing.state

    @property
    def member_id(self) -> str:
        """Id that the coordinator gave; empty: none yet."""
        return self._standing.seat.member_id

    @property
    def generation(self) -> int:
        """Generation it is in; -1: none."""
        return self._standing.seat.generation

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What it owns now, in order."""
        return tuple(self._standing.owned) if self._standing.holding else ()

    @property
    def last_cause(self) -> common_pb2.RebalanceCause | None:
        """Why the group last rebalanced, as far as the member was told."""
        return self._standing.cause

    def token(self, partition: TopicPartition) -> str:
        """Fencing token of an owned partition: text that grows from owner to owner, for sinks to compare.

        Raises:
            CommitFailed: the partition is not owned.
        """
        if not self._standing.holding or partition not in self._standing.owned:
            raise CommitFailed([partition], "it is not owned")
        return self._standing.owned[partition]

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
        """Begins to join, in the background."""
        if self._task is not None:
            raise MemberClosed("a member is started once; make another one")
        self._task = asyncio.get_running_loop().create_task(
            self._live(), name=f"muster-member-{self.group_id}"
        )

    async def wait(self) -> None:
        """Waits until the member is closed.

        Raises:
            MusterError: it stopped by itself, for this reason.
        """
        if self._task is None:
            raise MemberClosed("the member has not been started")
        await asyncio.wait((self._task,))
        if self._error is not None:
            raise self._error

    async def close(self, reason: str = "the member was closed") -> None:
        """Gives everything up, finishes commits and leaves the group (a static member stays in it).

        Never raises for what servers or networks do; after a failure it does nothing.
        """
        if self._task is None:
            return
        self._close_reason = reason
        self._standing.news.set()
        await asyncio.wait((self._task,))
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def rejoin(self, reason: str) -> None:
        """Asks for a new round, e.g. because the member's own view of the work changed."""
        self._standing.demand(Order(Reaction.REJOIN, 0, reason))

    async def commit(self, offsets: Mapping[TopicPartition, int | Committed]) -> None:
        """Stores how far the work got; returns when a majority of the log has it.

        Commits that are made while one is on its way travel together in the next request.

        Raises:
            CommitFailed: a partition is not, or no longer, owned.
            CommitRejected: a position was refused for what it contains.
        """
        positions = {p: at if isinstance(at, Committed) else Committed(at) for p, at in offsets.items()}
        tokens = {p: self._standing.owned[p] for p in positions if p in self._standing.owned}
        await self.commit_owned(positions, tokens)

    async def commit_owned(
        self, offsets: Mapping[TopicPartition, Committed], tokens: Mapping[TopicPartition, str]
    ) -> None:
        """Like `commit`, for work that began under the given tokens: a later ownership does not count."""
        for partition, position in offsets.items():
            if position.offset < 0:
                raise ValueError(f"offset of {partition} is {position.offset}, it must be 0 or more")
        await self._committer.commit(offsets, tokens)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What the group committed; partitions without a commit are missing.

        Waits for a coordinator as long as it takes.

        Raises:
            GroupError: the coordinator refuses.
        """
        return await fetch_committed(
            self._link, partitions, request_timeout_ms=self.config.request_timeout_ms, give_up_after_ms=None
        )

    # Its life

    async def _live(self) -> None:
        watch = asyncio.get_running_loop().create_task(self._watch_topics())
        try:
            await self._take_part()
        except MusterError as error:
            self._error = error
            await self._fail()
        finally:
            watch.cancel()
            await asyncio.wait((watch,))
            await self._committer.close()
            await self._stop_keep_alive()
            self._standing.seat = Seat()
            self._standing.state = MemberState.UNJOINED

    async def _take_part(self) -> None:
        reason = ""
        try:
            while True:
                await self._enter(reason)
                order = await self._stay()
                reason = await self._step_out(order)
        except _Closing:
            try:
                await self._revoke()
            finally:
                await self._leave()

    async def _fail(self) -> None:
        try:
            await self._lose()
        except CallbackFailed:
            log.exception("group %r: a callback raised while the member stopped", self.group_id)
        await self._leave()

    async def _enter(self, reason: str) -> None:
        """Joins and syncs until the member has its assignment."""
        standing = self._standing
        standing.state = MemberState.REBALANCING
        while True:
            joined = await self._join(reason)
            owned = await self._sync(joined)
            if owned is not None:
                break
            order = self._next_order()
            reason = order.why
            await self._change_seat(order)
        standing.owned = dict(owned)
        standing.state = MemberState.STABLE
        await self._assigned()

    async def _join(self, reason: str) -> pb.JoinGroupResponse:
        standing = self._standing
        standing.joining = True
        request = self._join_request(reason)
        backoff = Backoff()
        try:
            while True:
                request.member_id = standing.seat.member_id
                outcome = await self._unless_closing(
                    self._link.call(
                        request, pb.JoinGroupResponse, timeout_ms=self._join_timeout_ms(), follow_moves=True
                    )
                )
                match reaction_to(Call.JOIN, outcome.code):
                    case Reaction.DONE:
                        return await self._take_seat(outcome.expect())
                    case Reaction.TAKE_ID:
                        standing.seat = Seat(outcome.expect().member_id)
                        continue
                    case Reaction.FATAL | Reaction.RAISE:
                        raise group_error(self.group_id, outcome.code, outcome.message)
                    case Reaction.REJOIN_RESET_ID:
                        await self._stop_keep_alive()
                        standing.seat = Seat()
                        request = self._join_request(reason)
                        if backoff.attempts == 0:
                            backoff.attempts += 1
                            continue
                    case Reaction.REJOIN | Reaction.REJOIN_KEEP_ID:
                        request = self._join_request(reason)
                    case _:
                        pass
                await self._pause(backoff, outcome)
        finally:
            standing.joining = False

    def _join_request(self, reason: str) -> pb.JoinGroupRequest:
        """A new join; its retries are the same but for the member id that was given meanwhile."""
        self._member_seq += 1
        config = self.config
        given_up, generation = self._given_up
        metadata = encode_subscription(
            self.topics, owned=given_up, keeps_owned=False, generation=generation, rack_id=config.rack_id
        )
        return pb.JoinGroupRequest(
            group_id=self.group_id,
            group_instance_id=config.group_instance_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            protocol_type=PROTOCOL_TYPE,
            protocols=[pb.GroupProtocol(name=name, metadata=metadata) for name in self._assignors],
            reason=reason[:REASON_LENGTH],
            client_id=config.client_id,
            request_id=uuid.uuid4().hex,
            member_seq=self._member_seq,
        )

    def _join_timeout_ms(self) -> int:
        return max(self.config.request_timeout_ms, self.config.rebalance_timeout_ms + JOIN_SLACK_MS)

    async def _take_seat(self, joined: pb.JoinGroupResponse) -> pb.JoinGroupResponse:
        if joined.protocol_type != PROTOCOL_TYPE or joined.protocol_name not in self._assignors:
            raise group_error(
                self.group_id,
                common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL,
                f"the group uses {joined.protocol_type!r} with {joined.protocol_name!r}",
            )
        standing = self._standing
        await self._stop_keep_alive()
        standing.seat = Seat(joined.member_id, joined.generation)
        standing.order = None
        standing.life.restart(boot_ms())
        if joined.HasField("cause"):
            standing.cause = joined.cause
        vitals = Vitals(
            group_id=self.group_id,
            group_instance_id=self.config.group_instance_id,
            seat=standing.seat,
            interval_ms=self.config.heartbeat_interval_ms,
            timeout_ms=min(self.config.request_timeout_ms, max(1_000, self.config.heartbeat_interval_ms)),
        )
        self._keep_alive = self._cluster.transport.keep_alive(self._link, vitals, standing.hear)
        return joined

    async def _sync(self, joined: pb.JoinGroupResponse) -> Mapping[TopicPartition, str] | None:
        """The partitions with their tokens; None: an order came in between."""
        standing = self._standing
        seat = standing.seat
        request = pb.SyncGroupRequest(
            group_id=self.group_id,
            generation=seat.generation,
            member_id=seat.member_id,
            group_instance_id=self.config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
        )
        if joined.leader != seat.member_id or joined.server_assignor:
            self._leader.resign()
        elif joined.skip_assignment:
            await self._unless_ordered(self._leader.observe(joined.members))
        else:
            assignor = self._assignors[joined.protocol_name]
            assignments = await self._unless_ordered(self._leader.assign(assignor, joined.members))
            if assignments is None:
                return None
            request.assignments.extend(assignments)
        backoff = Backoff()
        while True:
            sent_ms = boot_ms()
            outcome = await self._unless_ordered(
                self._link.call(
                    request,
                    pb.SyncGroupResponse,
                    timeout_ms=self.config.request_timeout_ms,
                    follow_moves=True,
                )
            )
            if outcome is None:
                return None
            match standing.react(Call.SYNC, outcome.code, seat, outcome.message):
                case Reaction.DONE:
                    standing.life.renew(sent_ms)
                    return self._read_assignment(joined, outcome.expect())
                case Reaction.RETRY | Reaction.REDISCOVER:
                    await self._pause(backoff, outcome)
                case _:
                    return None

    def _read_assignment(
        self, joined: pb.JoinGroupResponse, synced: pb.SyncGroupResponse
    ) -> Mapping[TopicPartition, str]:
        if synced.protocol_type != joined.protocol_type or synced.protocol_name != joined.protocol_name:
            raise group_error(
                self.group_id,
                common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL,
                f"the assignment is of {synced.protocol_type!r} with {synced.protocol_name!r}",
            )
        partitions = decode_assignment(synced.assignment)
        if partitions is None:
            raise AssignorFailed(
                joined.protocol_name, f"the leader {joined.leader!r} sent an assignment that cannot be read"
            )
        return tokens_of(partitions, synced)

    async def _stay(self) -> Order:
        """Watches over the assignment until something is to be done about the membership."""
        standing = self._standing
        while True:
            standing.news.clear()
            self._check_closing()
            if standing.order is not None:
                return self._next_order()
            remaining_ms = standing.life.remaining_ms(boot_ms())
            if standing.holding and not remaining_ms:
                log.warning(
                    "group %r: nothing heard from a coordinator for %d ms; partitions are lost",
                    self.group_id,
                    self.config.session_timeout_ms,
                )
                await self._lose()
            elif not standing.holding and remaining_ms:
                log.info(
                    "group %r: the coordinator still knows the member; partitions are back", self.group_id
                )
                await self._assigned()
            else:
                await self._news(remaining_ms if standing.holding else None)

    async def _step_out(self, order: Order) -> str:
        """Gives up what is owned and leaves the seat, as ordered; gives the reason of the next join."""
        standing = self._standing
        standing.state = MemberState.REBALANCING
        owned, generation = tuple(standing.owned), standing.seat.generation
        if order.loses:
            await self._lose()
        elif not await self._revoke():
            owned, generation = (), -1
        if standing.order is not None and (later := self._next_order()).loses:
            order = later
        self._given_up = ((), -1) if order.loses else (owned, generation)
        await self._change_seat(order)
        return order.why

    async def _change_seat(self, order: Order) -> None:
        if order.loses:
            await self._stop_keep_alive()
        self._standing.leave_seat(order)

    def _next_order(self) -> Order:
        order = self._standing.take_order()
        assert order is not None
        if order.reaction is Reaction.FATAL:
            raise group_error(self.group_id, order.code, order.why)
        return order

    async def _leave(self) -> None:
        seat = self._standing.seat
        if self.config.group_instance_id or not seat.member_id:
            return
        member = pb.LeaveGroupRequest.Member(
            member_id=seat.member_id, reason=(self._close_reason or "")[:REASON_LENGTH]
        )
        request = pb.LeaveGroupRequest(group_id=self.group_id, members=[member])
        backoff = Backoff()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1_000):
                while True:
                    outcome = await self._link.call(
                        request, pb.LeaveGroupResponse, timeout_ms=LEAVE_TIMEOUT_MS
                    )
                    if reaction_to(Call.HEARTBEAT, outcome.code) not in (Reaction.RETRY, Reaction.REDISCOVER):
                        return
                    await backoff.pause(connection_broken=outcome.code == CONNECTION_LOST)
        except (TimeoutError, MusterError) as error:
            log.info("group %r: could not say goodbye (%s); the session time-out will", self.group_id, error)

    # Callbacks

    async def _assigned(self) -> None:
        self._standing.holding = True
        await self._tell("on_partitions_assigned", self._callbacks.on_partitions_assigned, self._doomed, None)

    async def _revoke(self) -> bool:
        """Lets the owner give everything up in order; False: it was too late for that."""
        standing = self._standing
        if not standing.holding:
            return False
        limit_ms = boot_ms() + self.config.rebalance_timeout_ms
        if standing.owned:
            finished = await self._tell(
                "on_partitions_revoked", self._callbacks.on_partitions_revoked, self._doomed, limit_ms
            )
            if finished:
                finished = await self._watch_over(
                    asyncio.ensure_future(self._committer.flush()), self._doomed, limit_ms
                )
            if not finished and self._doomed():
                await self._lose()
                return False
            if not finished:
                log.warning(
                    "group %r: partitions were not given up within rebalance_timeout_ms (%d); joining anyway",
                    self.group_id,
                    self.config.rebalance_timeout_ms,
                )
        standing.holding = False
        return True

    async def _lose(self) -> None:
        standing = self._standing
        if not standing.holding:
            return
        standing.holding = False
        if standing.owned:
            limit_ms = boot_ms() + self.config.rebalance_timeout_ms
            await self._tell("on_partitions_lost", self._callbacks.on_partitions_lost, _never, limit_ms)

    def _doomed(self) -> bool:
        """Whether what is owned is gone, whatever a callback is still doing."""
        order = self._standing.order
        return not self._standing.life.remaining_ms(boot_ms()) or (order is not None and order.loses)

    async def _tell(
        self,
        name: str,
        callback: PartitionsCallback | None,
        interrupted: Callable[[], bool],
        limit_ms: int | None,
    ) -> bool:
        """Runs a callback to its end; False: it was cancelled because it was interrupted or out of time."""
        if callback is None:
            return True
        partitions = tuple(self._standing.owned)
        task = asyncio.get_running_loop().create_task(invoke(callback, partitions), name=f"muster-{name}")
        if not await self._watch_over(task, interrupted, limit_ms):
            return False
        if task.cancelled():
            raise CallbackFailed(name)
        if (error := task.exception()) is not None:
            raise CallbackFailed(name) from error
        return True

    # Waiting

    async def _unless_closing(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.get_running_loop().create_task(coroutine)
        if await self._watch_over(task, lambda: self._close_reason is not None, None):
            return task.result()
        raise _Closing

    async def _unless_ordered(self, coroutine: Coroutine[Any, Any, _T]) -> _T | None:
        task = asyncio.get_running_loop().create_task(coroutine)
        standing = self._standing
        if await self._watch_over(
            task, lambda: self._close_reason is not None or standing.order is not None, None
        ):
            return task.result()
        self._check_closing()
        return None

    def _check_closing(self) -> None:
        if self._close_reason is not None:
            raise _Closing

    async def _watch_over(
        self, task: "asyncio.Future[Any]", interrupted: Callable[[], bool], limit_ms: int | None
    ) -> bool:
        """Waits for a task; False: it was cancelled because of the condition or the limit."""
        try:
            while not task.done():
                self._standing.news.clear()
                if interrupted() or (limit_ms is not None and boot_ms() >= limit_ms):
                    return False
                await self._news(None if limit_ms is None else limit_ms - boot_ms(), task)
            return True
        finally:
            if not task.done():
                task.cancel()
                # A callback that resists must not hold up what has to happen now.
                await asyncio.wait((task,), timeout=CANCEL_GRACE_MS / 1_000)

    async def _news(self, timeout_ms: int | None, *others: "asyncio.Future[Any]") -> None:
        """Waits for news, for the others, for the end of the member's life, and no longer than that."""
        waits: list[int] = [] if timeout_ms is None else [timeout_ms]
        if self._standing.holding:
            waits.append(self._standing.life.remaining_ms(boot_ms()) or 1_000)
        news = asyncio.ensure_future(self._standing.news.wait())
        try:
            timeout = max(1, min(waits)) / 1_000 if waits else None
            await asyncio.wait((news, *others), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    async def _pause(self, backoff: Backoff, outcome: "Outcome[Any]") -> None:
        if outcome.hurry and outcome.code != CONNECTION_LOST:
            return
        await self._unless_closing(backoff.pause(connection_broken=outcome.code == CONNECTION_LOST))

    async def _stop_keep_alive(self) -> None:
        if self._keep_alive is not None:
            await self._keep_alive.stop()
            self._keep_alive = None

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
                continue
            if changes and self._standing.state is MemberState.STABLE:
                self.rejoin(changes)


def _never() -> bool:
    return False
