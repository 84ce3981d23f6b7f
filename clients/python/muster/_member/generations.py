"""How a member takes part in a classic group: it enters one generation after the other."""

import asyncio
import logging
from dataclasses import replace

from muster_protos.limits import REASON_MAX_CHARACTERS
from muster_protos.muster.v1 import coordinator_pb2

from muster._backoff import Backoff
from muster._cluster.link import GroupLink
from muster._config import MemberConfig
from muster._errors import MusterError, group_error
from muster._incremental.classic_seat import ClassicSeat
from muster._member.chronicle import Chronicle
from muster._member.joiner import NOTHING, Had, Joiner
from muster._member.leader import Leader
from muster._member.ownership import Ownership
from muster._member.waits import Converted, Waits
from muster._messages import in_words
from muster._metrics.member import MemberMetrics
from muster._reactions import CONNECTION_LOST, Call, Reaction, reaction_to
from muster._standing.life import Life
from muster._standing.standing import MemberState, Order, Standing
from muster._text import harmless

log = logging.getLogger("muster")


class Generations:
    """Joins, stays, and joins again whenever it has to. Only the member's main task may use it.

    Args:
        config: settings of the member.
        link: the way to the coordinator.
        standing: state that the parts of the member share.
        joiner: enters generations.
        leader: assigns partitions, where this member leads.
        ownership: calls back.
        waits: interrupts calls.
        metrics: of the member.
        left_seq: number of the member's join in the incremental group that its group was until now; None: it
            was in none.

    Attributes:
        has_joined: whether it was in a generation since it began to take part.
    """

    def __init__(
        self,
        *,
        config: MemberConfig,
        link: GroupLink,
        standing: Standing,
        joiner: Joiner,
        leader: Leader,
        ownership: Ownership,
        waits: Waits,
        metrics: MemberMetrics,
        left_seq: int | None = None,
    ) -> None:
        self.has_joined: bool = False
        self._config = config
        self._link = link
        self._standing = standing
        self._joiner = joiner
        self._leader = leader
        self._ownership = ownership
        self._waits = waits
        self._metrics = metrics
        self._left_seq = left_seq
        self._chronicle = Chronicle(link.group_id, config, standing)

    async def take_part(self) -> None:
        """Takes part until the member is to be closed.

        Raises:
            Closing: it is to be closed.
            OtherKind: the group may be an incremental one.
            Converted: it is an incremental one now; what is held stays held.
            GroupError: the group refuses the member.
        """
        config, standing, self.has_joined = self._config, self._standing, False
        before, standing.life = (
            standing.life,
            Life(config.session_timeout_ms, config.grace_ms, config.rebalance_timeout_ms),
        )
        reason = ""
        if self._left_seq is not None:
            standing.life.go_back(before)
            self._joiner.go_back(self._left_seq)
            reason = await self._step_out(Order(Reaction.REJOIN, 0, "the group is a classic one again"))
        while True:
            await self._enter(reason)
            order = await self._stay()
            reason = await self._step_out(order)

    def rejoin(self, reason: str) -> None:
        """Starts a rebalance."""
        self._standing.demand(Order(Reaction.REJOIN, 0, reason))

    @property
    def seat_to_go_on_from(self) -> ClassicSeat:
        """See `Joiner.seat_to_go_on_from`."""
        return self._joiner.seat_to_go_on_from

    async def stop(self) -> None:
        """Stops keeping the membership alive."""
        self._leader.resign()
        await self._joiner.stop_keep_alive()

    async def _enter(self, reason: str) -> None:
        """Joins and syncs until the member has its assignment."""
        standing = self._standing
        standing.state = MemberState.REBALANCING
        while True:
            joined = await self._joiner.join(reason)
            self._chronicle.joined()
            self.has_joined = True
            owned = await self._joiner.sync(joined)
            if owned is not None:
                break
            order = self._next_order()
            reason = order.why
            if order.loses:
                self._joiner.had = NOTHING
                await self._ownership.lose()
            elif standing.holding and not self._joiner.keeps:
                order = await self._stop_what_was_kept(order)
                reason = order.why
            await self._change_seat(order)
        self._chronicle.assigned(owned)
        self._metrics.rebalanced(standing.cause.kind if standing.cause else 0)
        kept = await self._ownership.release_all_but(owned)
        standing.owned = dict(owned)
        standing.state = MemberState.STABLE
        if standing.alive:
            await self._ownership.assign(tuple(partition for partition in owned if partition not in kept))
        if released := self._joiner.to_release(owned):
            self.rejoin(f"it has released {in_words(released)}")

    async def _stop_what_was_kept(self, order: Order) -> Order:
        """Gives up what it kept until it heard that the group's assignor keeps nothing; returns the order.

        Else it would keep that once more and release some of it: one more rebalance, which stops everybody.
        """
        had = self._joiner.had
        self._joiner.had = replace(had, keeps=False) if await self._ownership.revoke() else NOTHING
        if self._standing.order is not None and (later := self._next_order()).loses:
            self._joiner.had = NOTHING
            await self._ownership.lose()
            return later
        return order

    async def _stay(self) -> Order:
        """Keeps the assignment until there is an order."""
        standing = self._standing
        while True:
            standing.news.clear()
            self._waits.check_closing()
            if standing.order is not None:
                return self._next_order()
            if standing.holding and not standing.alive:
                self._chronicle.life_is_over()
                await self._ownership.lose()
            elif not standing.holding and standing.alive:
                self._chronicle.life_goes_on()
                await self._ownership.assign(tuple(standing.owned))
            else:
                await self._waits.news(None)

    async def _step_out(self, order: Order) -> str:
        """Gives up what is owned and leaves the seat as ordered; returns the reason of the next join."""
        standing = self._standing
        standing.state = MemberState.REBALANCING
        had = Had(tuple(standing.owned), standing.seat.generation, self._joiner.keeps and standing.holds)
        lost = order.loses or (standing.holding and not standing.alive)
        self._chronicle.joins_again(had.partitions, keeps=had.keeps, lost=lost, why=order.why)
        if order.loses:
            await self._ownership.lose()
        elif not had.keeps and not await self._ownership.revoke():
            had = NOTHING
        if standing.order is not None and (later := self._next_order()).loses:
            order = later
            await self._ownership.lose()
        self._joiner.had = NOTHING if order.loses else had
        await self._change_seat(order)
        return order.why

    async def _change_seat(self, order: Order) -> None:
        if order.loses:
            await self._joiner.stop_keep_alive()
        self._standing.leave_seat(order)

    def _next_order(self) -> Order:
        order = self._standing.take_order()
        assert order is not None
        if order.reaction is Reaction.CONVERT:
            raise Converted
        if order.reaction is Reaction.FATAL:
            raise group_error(self._link.group_id, order.code, order.why)
        return order

    async def leave(self, timeout_ms: int) -> None:
        """Sends LeaveGroup; a static member does not."""
        seat, group_id = self._standing.seat, self._link.group_id
        if self._config.group_instance_id or not seat.member_id:
            return
        member = coordinator_pb2.LeaveGroupRequest.Member(
            member_id=seat.member_id,
            reason=harmless(self._standing.closing or "")[:REASON_MAX_CHARACTERS],
            member_secret=self._standing.caller.secret,
        )
        request = coordinator_pb2.LeaveGroupRequest(group_id=group_id, members=[member])
        backoff = Backoff()
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while True:
                    outcome = await self._link.call(
                        request, coordinator_pb2.LeaveGroupResponse, timeout_ms=timeout_ms
                    )
                    if reaction_to(Call.HEARTBEAT, outcome.code) not in (Reaction.RETRY, Reaction.REDISCOVER):
                        log.info("group %r: %s has left: %s", group_id, seat.member_id, member.reason)
                        return
                    await backoff.pause(connection_broken=outcome.code == CONNECTION_LOST)
        except (TimeoutError, MusterError) as error:
            log.info("group %r: could not say goodbye (%s); the session time-out will", group_id, error)
