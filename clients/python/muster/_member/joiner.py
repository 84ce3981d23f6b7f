"""How a member enters a generation: JoinGroup, then SyncGroup."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from muster_protos.limits import REASON_MAX_CHARACTERS
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

from muster._backoff import Backoff
from muster._blocked.stand_in import StandIn, Ward
from muster._clock import boot_ms
from muster._cluster.link import GroupLink, Outcome
from muster._config import MemberConfig
from muster._errors import AssignorFailed, group_error
from muster._incremental.classic_seat import ClassicSeat
from muster._incremental.requests import NOWHERE, Place, process_id
from muster._member.leader import Leader
from muster._member.waits import Converted, OtherKind, Waits
from muster._messages import PROTOCOL_TYPE, decode_assignment, encode_subscription, tokens_of
from muster._reactions import Call, Reaction, reaction_to
from muster._session.transport import Heartbeats, KeepAlive, Vitals
from muster._standing.seat import Seat
from muster._standing.standing import Standing
from muster._text import harmless
from muster._values import TopicPartition
from muster._version import client_version
from muster.assignors import BUILT_IN, Assignor

ID_WITHIN_MS = 80
"""How long a member that closes waits for the id that it asked for: less than a cancelled task may take."""

JOIN_SLACK_MS = 5_000
"""A JoinGroup may take this much longer than the rebalance time-out."""


@dataclass(frozen=True, slots=True)
class Had:
    """What a member says of itself when it joins.

    Attributes:
        partitions: what it had.
        generation: in which it was given that; -1: in none.
        keeps: whether it goes on working on it; False: it has given it up.
    """

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    keeps: bool = False


NOTHING = Had()


class Joiner:
    """Takes a seat, keeps it alive, and fetches its assignment.

    Attributes:
        had: what the next join says that the member had.
        keeps: whether the member keeps what it has in the next rebalance, by the last answer to its join.
        lose: gives up what the member keeps: its membership is gone.
    """

    def __init__(
        self,
        *,
        config: MemberConfig,
        topics: tuple[str, ...],
        link: GroupLink,
        standing: Standing,
        leader: Leader,
        waits: Waits,
        stand_in: StandIn,
        lose: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._topics = topics
        self._link = link
        self._standing = standing
        self._leader = leader
        self._waits = waits
        self._assignors = {assignor.name: assignor for assignor in config.resolved_assignors}
        self._keep_alive: KeepAlive | None = None
        self._stand_in = stand_in
        self._ward: Ward | None = None
        self._member_seq = 0
        self._claimed: frozenset[TopicPartition] = frozenset()
        self._asked_ms = 0
        self._process_id = b""
        self._version = NOWHERE
        self._lose = lose
        self.had = NOTHING
        self.keeps = False

    async def join(self, reason: str) -> coordinator_pb2.JoinGroupResponse:
        """Joins until the member is in a generation, and returns the answer.

        Raises:
            GroupError: the group refuses the member.
            OtherKind: the group has another protocol, so it may be an incremental one.
            Converted: it is an incremental one now.
            Closing: the member is to be closed.
        """
        standing = self._standing
        standing.joining = True
        # With this call a join phase may begin, of which nobody tells the member that began it (SES-28).
        standing.life.rebalancing = True
        request = self._join_request(reason)
        backoff = Backoff()
        try:
            while True:
                request.member_id = standing.seat.member_id
                outcome = await self._waits.unless_closing(self._ask(request))
                match reaction_to(Call.JOIN, outcome.code):
                    case Reaction.DONE:
                        return await self._take_seat(outcome.expect())
                    case Reaction.TAKE_ID:
                        had_id = bool(standing.seat.member_id)
                        standing.seat = Seat(outcome.expect().member_id)
                        if not had_id and standing.seat.member_id:
                            continue
                    case Reaction.CONVERT:
                        raise self._converted(outcome.expect().member_id)
                    case Reaction.FATAL | Reaction.RAISE:
                        refusal = group_error(self._link.group_id, outcome.code, outcome.message)
                        if outcome.code == common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL:
                            raise OtherKind(refusal)
                        raise refusal
                    case Reaction.REJOIN_RESET_ID:
                        await self._lose_all()
                        await self.stop_keep_alive()
                        standing.seat = Seat()
                        request = self._join_request(reason)
                        if backoff.attempts == 0:
                            backoff.attempts += 1
                            continue
                    case Reaction.REJOIN_KEEP_ID:
                        await self._lose_all()
                        request = self._join_request(reason)
                    case Reaction.REJOIN:
                        request = self._join_request(reason)
                    case _:
                        pass
                await self._waits.pause(backoff, outcome)
        finally:
            standing.joining = False

    def _converted(self, member_id: str) -> Converted:
        """Takes the id that comes with the news, where it has none: that answer was lost (INC-73)."""
        if not self._standing.seat.member_id:
            self._standing.seat = Seat(member_id)
        return Converted()

    async def _ask(
        self, request: coordinator_pb2.JoinGroupRequest
    ) -> Outcome[coordinator_pb2.JoinGroupResponse]:
        """Makes the call. One that gives an id ends after its answer: who leaves gives that back (SES-41)."""
        calling = asyncio.ensure_future(
            self._link.call(
                request,
                coordinator_pb2.JoinGroupResponse,
                timeout_ms=self._join_timeout_ms(),
                follow_moves=True,
            )
        )
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            try:
                if not request.member_id and not request.group_instance_id:
                    await asyncio.wait((calling,), timeout=ID_WITHIN_MS / 1_000)
                if calling.done() and self._standing.joining and calling.exception() is None:
                    outcome = calling.result()
                    if reaction_to(Call.JOIN, outcome.code) is Reaction.TAKE_ID:
                        self._standing.seat = Seat(outcome.expect().member_id)
            finally:
                calling.cancel()
                await asyncio.wait((calling,))
            raise

    def _join_request(self, reason: str) -> coordinator_pb2.JoinGroupRequest:
        """A new join; retries of it differ only in the member id that was assigned meanwhile."""
        self._member_seq += 1
        self._asked_ms = boot_ms()
        # Who says with its join which process it is can go on in an incremental group [`capable_stored`].
        self._process_id = process_id() if self._config.protocol == "auto" else b""
        config, had = self._config, self.had
        self._claimed = frozenset(had.partitions if had.keeps else ())

        def metadata(assignor: Assignor) -> bytes:
            return encode_subscription(
                self._topics,
                owned=had.partitions,
                keeps_owned=had.keeps,
                generation=had.generation,
                rack_id=config.rack_id,
                user_data=b"" if assignor.name in BUILT_IN else config.user_data,
            )

        return coordinator_pb2.JoinGroupRequest(
            **self._standing.caller.fields,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                coordinator_pb2.GroupProtocol(name=name, metadata=metadata(assignor))
                for name, assignor in self._assignors.items()
            ],
            reason=harmless(reason)[:REASON_MAX_CHARACTERS],
            client_id=config.client_id,
            client_version=client_version(),
            disconnect_grace_ms=config.grace_ms,
            request_id=uuid.uuid4().hex,
            member_seq=self._member_seq,
            process_id=self._process_id,
            weight=config.weight if config.weight > 1 else 0,
        )

    def _join_timeout_ms(self) -> int:
        return max(self._config.request_timeout_ms, self._config.rebalance_timeout_ms + JOIN_SLACK_MS)

    async def _take_seat(
        self, joined: coordinator_pb2.JoinGroupResponse
    ) -> coordinator_pb2.JoinGroupResponse:
        if joined.protocol_type != PROTOCOL_TYPE or joined.protocol_name not in self._assignors:
            raise group_error(
                self._link.group_id,
                common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL,
                f"the group uses {joined.protocol_type!r} with {joined.protocol_name!r}",
            )
        standing = self._standing
        await self.stop_keep_alive()
        if standing.holding and not standing.alive:
            await self._lose()
        standing.seat = Seat(joined.member_id, joined.generation)
        standing.seated.clear()
        standing.order = None
        if standing.holds:
            standing.life.go_on(self._asked_ms)
        else:
            standing.life.restart()
        self.keeps = self._assignors[joined.protocol_name].cooperative and (
            joined.withholds_kept or all(assignor.cooperative for assignor in self._assignors.values())
        )
        if joined.HasField("cause"):
            standing.cause = joined.cause
        vitals = self._stood_in_for()
        self._keep_alive = self._link.transport.keep_alive(self._link, vitals, standing.hear)
        return joined

    def _stood_in_for(self) -> Vitals:
        """A thread beats for the seat while the event loop is blocked; returns how to keep it alive."""
        config, standing = self._config, self._standing
        whole_ms = min(config.session_timeout_ms, config.rebalance_timeout_ms, standing.life.session_ms)
        a_third_ms = max(1, whole_ms // 3)
        vitals = Vitals(
            caller=standing.caller,
            seat=standing.seat,
            interval_ms=min(config.heartbeat_interval_ms, a_third_ms),
            timeout_ms=min(config.request_timeout_ms, max(1_000, config.heartbeat_interval_ms)),
            beat_interval_ms=min(config.beat_interval_ms, a_third_ms),
        )
        self._ward = Ward(vitals, self._link, standing.life, config.block_limit_ms)
        self._stand_in.add(self._ward)
        return vitals

    async def sync(self, joined: coordinator_pb2.JoinGroupResponse) -> Mapping[TopicPartition, str] | None:
        """Fetches the assigned partitions with their tokens; None: an order came first."""
        try:
            return await self._sync(joined)
        finally:
            self._standing.seated.set()

    async def _sync(self, joined: coordinator_pb2.JoinGroupResponse) -> Mapping[TopicPartition, str] | None:
        standing = self._standing
        seat = standing.seat
        request = coordinator_pb2.SyncGroupRequest(
            **standing.caller.fields_at(seat),
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
        )
        if joined.leader != seat.member_id or joined.server_assignor:
            self._leader.resign()
        elif joined.skip_assignment:
            await self._waits.unless_ordered(self._leader.observe(joined.members))
        else:
            assignor = self._assignors[joined.protocol_name]
            assignments = await self._waits.unless_ordered(self._leader.assign(assignor, joined.members))
            if assignments is None:
                return None
            request.assignments.extend(assignments)
        backoff = Backoff()
        while True:
            sent_ms = boot_ms()
            outcome = await self._waits.unless_ordered(
                self._link.call(
                    request,
                    coordinator_pb2.SyncGroupResponse,
                    timeout_ms=self._config.request_timeout_ms,
                    follow_moves=True,
                )
            )
            if outcome is None:
                return None
            match standing.react(Call.SYNC, outcome.code, seat, outcome.message):
                case Reaction.DONE:
                    owned = self._read_assignment(joined, outcome.expect())
                    if not self.to_release(owned):
                        standing.life.settle_in(sent_ms)
                    return owned
                case Reaction.RETRY | Reaction.REDISCOVER:
                    await self._waits.pause(backoff, outcome)
                case _:
                    if outcome.code == common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION:
                        await self._waits.pause(backoff, outcome)  # this discovery may not know yet either
                    return None

    def _read_assignment(
        self, joined: coordinator_pb2.JoinGroupResponse, synced: coordinator_pb2.SyncGroupResponse
    ) -> Mapping[TopicPartition, str]:
        if synced.protocol_type != joined.protocol_type or synced.protocol_name != joined.protocol_name:
            raise group_error(
                self._link.group_id,
                common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL,
                f"the assignment is of {synced.protocol_type!r} with {synced.protocol_name!r}",
            )
        partitions = decode_assignment(synced.assignment)
        if partitions is None:
            raise AssignorFailed(
                joined.protocol_name, f"the leader {joined.leader!r} sent an assignment that cannot be read"
            )
        self._version = Place.of(synced.version)
        return tokens_of(partitions, synced)

    def to_release(self, owned: Mapping[TopicPartition, str]) -> tuple[TopicPartition, ...]:
        """What the member said that it keeps, and is not given: others wait for it to join again."""
        return tuple(sorted(self._claimed - owned.keys()))

    def go_back(self, member_seq: int) -> None:
        """Goes on from a join of an incremental group, which is a classic one now.

        What is sure to be kept for the member, whatever the group chooses and whoever leads, it may keep.
        What it works on it has for as long as the join phase waits for it, whatever becomes of a stream:
        until it has a seat it makes Heartbeat calls, in the epoch that it was in.
        """
        self._member_seq = max(self._member_seq, member_seq)
        self.keeps = self.keeps or all(assignor.cooperative for assignor in self._assignors.values())
        if self._standing.holds:
            self._keep_alive = Heartbeats(self._link, self._stood_in_for(), self._standing.hear)

    @property
    def seat_to_go_on_from(self) -> ClassicSeat:
        """What the member goes on with in the incremental group that its group has become."""
        standing = self._standing
        life, runs = standing.life, dict(standing.owned) if standing.holds else {}
        return ClassicSeat(
            member_id=standing.seat.member_id,
            generation=standing.seat.generation,
            member_seq=self._member_seq,
            process_id=self._process_id,
            version=self._version if runs else NOWHERE,
            runs=runs,
            acknowledged_ms=life.acknowledged_ms,
            life_ends_at_ms=life.ends_at_ms,
        )

    async def _lose_all(self) -> None:
        self.had = NOTHING
        await self._lose()

    async def stop_keep_alive(self) -> None:
        """Stops the beats: the membership is over, or the coordinator said so."""
        if self._ward is not None:
            self._stand_in.remove(self._ward)
            self._ward = None
        if self._keep_alive is not None:
            await self._keep_alive.stop()
            self._keep_alive = None
