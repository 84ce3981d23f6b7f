"""How a member takes part in an incremental group: the coordinator assigns, and only what moves stops."""

import asyncio
import logging
import uuid
from contextlib import suppress
from dataclasses import replace

from muster_protos.limits import DISCONNECT_GRACE_MAX_MS, REASON_MAX_CHARACTERS
from muster_protos.muster.v1 import common_pb2, session_pb2
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatResponse

from muster._backoff import Backoff
from muster._blocked.stand_in import IncrementalWard, StandIn
from muster._clock import boot_ms
from muster._cluster.link import GroupLink
from muster._config import MemberConfig
from muster._errors import GroupError, MusterError, RequestRefused, group_error
from muster._incremental.classic_seat import ClassicSeat
from muster._incremental.membership import Membership, Move, Phase, Way
from muster._incremental.requests import Identity
from muster._member.chronicle import Chronicle
from muster._member.ownership import Ownership
from muster._member.waits import OtherKind, Reverted, Waits
from muster._reactions import CONNECTION_LOST, Call, Reaction, reaction_to
from muster._session.transport import Vitals
from muster._standing.life import Life
from muster._standing.seat import Seat
from muster._standing.standing import MemberState, Order, Standing
from muster._text import harmless
from muster.assignors import RANGE

log = logging.getLogger("muster")

ON_STREAM_INTERVAL_MS = 30_000
"""How often a member on a stream, whose beats keep it alive, asks whether it has heard everything, and says
what it works on if that is not known; three times in a rebalance time-out, if that is more often (INC-48)."""

NAME_MAX_BYTES = 218
"""How much of a client id a member id begins with: an id has at most 255 bytes."""

_AGAIN = (Reaction.RETRY, Reaction.REDISCOVER)
_WHY_FATAL = "the call was refused"
_IS_CLASSIC = common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND
_UNIMPLEMENTED = "UNIMPLEMENTED"
"""Status of a call that a server of version 0.1 does not know."""


class Participation:
    """Carries a `Membership` out: makes its requests, and starts and ends the work.

    Args:
        config: settings of the member.
        topics: what it works on.
        link: the way to the coordinator.
        standing: state that the parts of the member share.
        ownership: calls back.
        waits: interrupts callbacks.
        stand_in: keeps the member alive while its event loop is blocked.
        seat: what it goes on from, in a group that was a classic one until now; None: it joins.

    Attributes:
        has_joined: whether a join of it was accepted.
    """

    def __init__(
        self,
        *,
        config: MemberConfig,
        topics: tuple[str, ...],
        link: GroupLink,
        standing: Standing,
        ownership: Ownership,
        waits: Waits,
        stand_in: StandIn,
        seat: ClassicSeat | None = None,
    ) -> None:
        self._config = config
        self._link = link
        self._standing = standing
        self._ownership = ownership
        self._waits = waits
        self._stand_in = stand_in
        self._ward: IncrementalWard | None = None
        grace_ms = (config.grace_ms or config.session_timeout_ms) if config.session else 0
        identity = Identity(
            group_id=link.group_id,
            member_id=(seat.member_id if seat is not None else "") or _drawn_id(config.client_id),
            topics=topics,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            group_instance_id=config.group_instance_id,
            rack_id=config.rack_id,
            weight=config.weight,
            rollout_hold_ms=(config.rollout_hold_ms or 0) if seat is None else 0,
            client_id=config.client_id,
            server_assignor=_preferred(config, topics),
            classic_protocols=_classic_protocols(config),
            session_timeout_ms=config.session_timeout_ms,
            disconnect_grace_ms=min(grace_ms, DISCONNECT_GRACE_MAX_MS),
            secret=standing.caller.secret,
        )
        third_ms = max(1, standing.life.span_ms // 3)
        key = identity.group_id, identity.member_id
        self._calls = None
        if config.session:
            self._calls = link.numbered_calls(key, min(config.beat_interval_ms, third_ms), self)
        standing.life = Life(  # nobody goes on untold for longer than it is waited for (INC-47)
            config.session_timeout_ms, grace_ms, config.rebalance_timeout_ms, config.rebalance_timeout_ms
        )
        standing.life.on_stream = self._calls is not None
        self._chronicle = Chronicle(link.group_id, config, standing)
        self._state = Membership(identity, standing.life, patience_ms=config.session_timeout_ms)
        if seat is not None:
            self._state.adopt(seat)
        self._known_seq = self._changes = 0
        self._wake = standing.behind
        self._heart: asyncio.Task[None] | None = None
        self.has_joined: bool = False

    def rejoin(self, reason: str) -> None:
        """Does nothing: the coordinator looks at the topics itself."""

    async def take_part(self) -> None:
        """Takes part until the member is to be closed.

        Raises:
            Closing: it is to be closed.
            OtherKind: the group is a classic one, or there can be no other.
            Reverted: it is a classic one now; what is held stays held.
            GroupError: the group refuses the member, or has given its place to another process.
        """
        standing = self._standing
        self._heart = asyncio.get_running_loop().create_task(self._beat(), name="muster-incremental")
        while True:
            standing.news.clear()
            self._waits.check_closing()
            if (order := standing.take_order()) is not None:
                if order.reaction is Reaction.FATAL:
                    raise group_error(self._link.group_id, order.code, order.why)
                if order.reaction is Reaction.REVERT:
                    self._state.revert(boot_ms())
                else:
                    self._state.fence(order.code, order.why)
            move = self._state.next_move(boot_ms())
            self._note_changes()
            self._show()
            if move is not None:
                await self._carry_out(move)
            elif self._state.phase is Phase.CLASSIC:
                raise Reverted
            elif self._state.phase is Phase.OVER:
                refusal = group_error(self._link.group_id, self._state.code, self._state.why)
                if self._state.is_unknown_kind:
                    raise OtherKind(refusal, is_final=self._state.code != _IS_CLASSIC)
                raise refusal
            else:
                await self._waits.news(None)

    async def _carry_out(self, move: Move) -> None:
        """Begins or ends work, and calls back about it."""
        state, some = self._state, move.partitions
        match move.way:
            case Way.BEGIN:
                state.begun(some)
                self._show()
                self._chronicle.given(some)
                await self._ownership.assign(some)
                return
            case Way.GIVE_BACK:
                self._chronicle.gives_back(some)
                if not await self._ownership.give_back(some, move.until_ms):
                    return  # it is lost meanwhile, which is the next move
                state.ended(some)
            case Way.LOSE:
                self._chronicle.lost(some, state.why, too_late=move.still_run)
                for partition in some:
                    self._standing.owned.pop(partition, None)
                await self._ownership.lose_some(some)
                state.ended(some, still_run=move.still_run)
        self._show()
        self._wake.set()

    def _note_changes(self) -> None:
        """Counts the lists that changed something, and keeps the cause of the last one."""
        cause, standing = self._state.cause, self._standing
        while self._changes < self._state.changes:
            self._changes += 1
            standing.cause = cause
            if standing.metrics is not None:
                standing.metrics.rebalanced(cause.kind if cause is not None else 0)

    @property
    def _name(self) -> str:
        return self._state.identity.member_id

    def _show(self) -> None:
        """Puts where the member is into the state that its parts share."""
        state, standing = self._state, self._standing
        is_in, has_seat = state.phase is Phase.IN, state.phase in (Phase.IN, Phase.CLASSIC)
        standing.seat = (
            Seat(self._name, state.epoch, state.seq) if has_seat else Seat(self._name, join=state.seq)
        )
        standing.state = MemberState.STABLE if is_in else MemberState.REBALANCING
        standing.owned = dict(state.runs)
        standing.holding = bool(state.runs)

    # Its requests

    async def _beat(self) -> None:
        """Sends what is due, as long as there is a membership; the outcome is for `take_part`."""
        state, backoff = self._state, Backoff()
        while state.is_active:
            self._wake.clear()
            if not state.may_ask():
                await self._wake.wait()
                continue
            asked = state.ask(boot_ms())
            timeout_ms = self._config.request_timeout_ms
            if not asked.joins:
                timeout_ms = min(timeout_ms, max(1_000, self._interval_ms))
            try:
                outcome = await self._link.call(
                    asked.request,
                    ConsumerGroupHeartbeatResponse,
                    timeout_ms=timeout_ms,
                    follow_moves=True,
                    via=self._calls,
                )
            except (RequestRefused, GroupError) as error:
                if asked.joins and isinstance(error, RequestRefused) and error.status == _UNIMPLEMENTED:
                    state.refuse_kind(asked, str(error))
                    self._standing.news.set()
                    return
                code = int(common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR)
                self._standing.demand(Order(Reaction.FATAL, code, str(error) or _WHY_FATAL))
                return
            if outcome.response is None:
                reaction = reaction_to(Call.CONSUMER_HEARTBEAT, outcome.code)
            else:
                asked = replace(asked, sent_ms=max(asked.sent_ms, outcome.sent_ms))  # it had to be found
                reaction = state.hear(asked, outcome.response, boot_ms())
            self._standing.news.set()
            if reaction is Reaction.DONE and state.phase is Phase.IN and self._known_seq != state.seq:
                self.has_joined, self._known_seq = True, state.seq
                log.info("group %r: joined as %s, epoch %d", self._link.group_id, self._name, state.epoch)
                self._be_stood_in_for()
            if reaction in _AGAIN:
                if not outcome.hurry or outcome.code == CONNECTION_LOST:
                    await backoff.pause(connection_broken=outcome.code == CONNECTION_LOST)
                continue
            if asked.joins and state.phase is Phase.OUT:  # a join that ends at once may do so for ever
                await backoff.pause()
                continue
            backoff.reset()
            if state.is_present(asked) and not state.owes_list():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_ms / 1_000):
                        await self._wake.wait()

    def _be_stood_in_for(self) -> None:
        """A thread beats for the present join while the event loop is blocked."""
        config, standing = self._config, self._standing
        third_ms = max(1, standing.life.span_ms // 3)
        interval_ms = min(config.heartbeat_interval_ms, third_ms)
        vitals = Vitals(
            standing.caller,
            standing.seat,
            interval_ms,
            timeout_ms=max(1_000, interval_ms),
            beat_interval_ms=min(config.beat_interval_ms, third_ms),
        )
        loop = asyncio.get_running_loop()

        def back() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._wake.set)

        self._leave_to_itself()
        self._ward = IncrementalWard(
            vitals,
            self._link,
            standing.life,
            config.block_limit_ms,
            request=self._state.sign_of_life,
            back=back,
        )
        self._stand_in.add(self._ward)

    def _leave_to_itself(self) -> None:
        if self._ward is not None:
            self._stand_in.remove(self._ward)
            self._ward = None

    # What its stream says (`muster._session.stream_calls.Listener`)

    def beat_counted(self, sent_ms: int) -> None:
        """See `Listener`."""
        ended_ms = self._standing.life.ends_at_ms
        self._state.beat_counted(sent_ms, boot_ms())
        if not self._standing.alive or self._standing.life.ends_at_ms < ended_ms:
            self._standing.news.set()
            self._wake.set()

    def coordinator_unsure(self) -> None:
        """See `Listener`."""
        self._standing.life.extend(boot_ms())
        self._standing.news.set()

    def told(self, news: session_pb2.MemberNews) -> None:
        """See `Listener`."""
        self._state.push(news.member_seq, news.response, boot_ms())
        self._standing.news.set()
        if self._state.owes_list():
            self._wake.set()  # a callback may run for long

    def fenced(self, news: session_pb2.Fenced) -> None:
        """See `Listener`."""
        answer = ConsumerGroupHeartbeatResponse(
            error_code=news.error_code, error_message=news.cause.sentence if news.HasField("cause") else ""
        )
        self._state.push(news.member_seq, answer, boot_ms())
        self._standing.news.set()
        self._wake.set()

    def became_classic(self) -> None:
        """See `Listener`."""
        self._state.revert(boot_ms())
        self._standing.news.set()
        self._wake.set()

    def went_off(self) -> None:
        """See `Listener`."""
        self._state.resume()
        self._wake.set()

    @property
    def _interval_ms(self) -> int:
        if self._calls is not None and self._calls.attached:
            return min(ON_STREAM_INTERVAL_MS, max(1, self._config.rebalance_timeout_ms // 3))
        third_ms = max(1, self._standing.life.span_ms // 3)
        return min(self._state.beat_within_ms or third_ms, self._config.heartbeat_interval_ms, third_ms)

    # Its end

    @property
    def member_seq(self) -> int:
        """Number of its last join."""
        return self._state.seq

    async def stop(self) -> None:
        """Makes no requests any more. All work must have ended."""
        self._leave_to_itself()
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.wait((self._heart,))
            self._heart = None
        if self._calls is not None:
            self._calls.leave()
        self._state.ended(tuple(self._state.runs))

    async def leave(self, timeout_ms: int) -> None:
        """Stops, and leaves the group; a static member leaves for a while."""
        await self.stop()
        reason = harmless(self._standing.closing or "")[:REASON_MAX_CHARACTERS]
        request = self._state.leave(for_a_while=bool(self._config.group_instance_id), reason=reason)
        if request is None:
            return
        backoff = Backoff()
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while True:
                    outcome = await self._link.call(
                        request, ConsumerGroupHeartbeatResponse, timeout_ms=timeout_ms
                    )
                    if reaction_to(Call.CONSUMER_HEARTBEAT, outcome.code) not in _AGAIN:
                        log.info("group %r: %s has left: %s", self._link.group_id, self._name, reason)
                        return
                    await backoff.pause(connection_broken=outcome.code == CONNECTION_LOST)
        except (TimeoutError, MusterError) as error:
            log.info("group %r: could not say goodbye (%s); the session will", self._link.group_id, error)


def _preferred(config: MemberConfig, topics: tuple[str, ...]) -> str:
    """`range` gives partitions of the same number in several topics to one member, which may count on it."""
    return RANGE.name if len(topics) > 1 and config.resolved_assignors[0] == RANGE else ""


def _classic_protocols(config: MemberConfig) -> tuple[str, ...]:
    if config.protocol != "auto":
        return ()
    return tuple(assignor.name for assignor in config.resolved_assignors)


def _drawn_id(client_id: str) -> str:
    """A member id that nobody else has, and that says whose it is, as a coordinator makes them."""
    name = client_id.encode()[:NAME_MAX_BYTES].decode(errors="ignore")
    return f"{name}-{uuid.uuid4()}" if name else str(uuid.uuid4())
