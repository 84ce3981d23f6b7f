"""One membership, kept on the stream to whichever coordinator serves its group."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from muster_protos.muster.v1 import common_pb2, session_pb2

from muster._backoff import Backoff
from muster._errors import GroupError, RequestRefused, code_name
from muster._reactions import Call, Reaction, reaction_to
from muster._session.end import How, StreamEnd
from muster._session.session import Session
from muster._session.transport import Heartbeats, Route, Vitals
from muster._standing.seat import Pulse

log = logging.getLogger("muster")

_MEMBERSHIP_LASTS = (Reaction.DONE, Reaction.REJOIN)


class SessionSource(Protocol):
    """Where an attachment gets streams from."""

    def at(self, address: str) -> Session | None:
        """The stream to a coordinator, opened if necessary; None if it takes unary calls only."""


class Attachment:
    """Keeps a membership alive: finds the stream to its coordinator and stays on it.

    While it is on no stream it looks for the coordinator repeatedly, with back-off. To a coordinator
    without streams it makes Heartbeat calls.

    Args:
        streams: where streams come from.
        route: finds the coordinator.
        vitals: the membership to keep alive.
        deliver: called with everything that is learnt about the membership.
    """

    def __init__(
        self, streams: SessionSource, route: Route, vitals: Vitals, deliver: Callable[[Pulse], None]
    ) -> None:
        self._streams = streams
        self._route = route
        self._vitals = vitals
        self._deliver = deliver
        self._key = (vitals.caller.group_id, vitals.seat.member_id)
        self._session: Session | None = None
        self._heartbeats: Heartbeats | None = None
        self._seeker: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._unsure = False
        self._forget = False
        self._over = False
        self._unwatch = route.watch(self._follow)
        self._place()

    async def stop(self) -> None:
        """See `muster._session.transport.KeepAlive`."""
        self._over = True
        self._unwatch()
        self._leave()
        for task in (self._seeker, self._asking):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))

    # Where it is

    @property
    def _settled(self) -> bool:
        return self._heartbeats is not None or (
            self._session is not None and self._session.is_attached(self._key, self)
        )

    def _follow(self) -> None:
        asyncio.get_running_loop().call_soon(self._place)

    def _place(self) -> None:
        """Attaches at the coordinator's current address, or looks for it."""
        if self._over:
            return
        address = self._route.address
        if address is None:
            self._seek()
            return
        session = self._streams.at(address)
        if session is None:
            self._make_heartbeats()
        elif session is not self._session or not session.carries(self._key, self):
            self._leave()
            self._session = session
            self._say(common_pb2.ERROR_CODE_NONE)
            session.attach(self._key, self)

    def _make_heartbeats(self) -> None:
        if self._heartbeats is None:
            self._leave()
            self._heartbeats = Heartbeats(self._route, self._vitals, self._deliver)

    def _leave(self) -> None:
        if self._session is not None:
            self._session.detach(self._key, self)
            self._session = None
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            self._heartbeats = None

    def _seek(self, *, forget: bool = False) -> None:
        self._forget |= forget
        if not self._over and self._seeker is None:
            self._seeker = asyncio.get_running_loop().create_task(self._look(), name="muster-seek")

    async def _look(self) -> None:
        backoff = Backoff()
        try:
            while True:
                await backoff.pause(connection_broken=True)
                if self._settled or self._over:
                    return
                # A stream that is not established may never be: meanwhile the coordinator may have moved.
                waits = self._session is not None and not self._session.established
                if (self._forget or waits) and self._route.address is not None:
                    self._route.forget(self._route.address)
                self._forget = False
                await self._route.locate()
                self._place()
        except (RequestRefused, GroupError) as error:
            self._say(common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR, message=str(error))
        finally:
            self._seeker = None

    async def _ask(self) -> None:
        """While the coordinator is unsure of its lease: asks for a successor without giving this one up."""
        backoff = Backoff()
        try:
            while self._unsure and not self._over:
                await backoff.pause(connection_broken=True)
                await self._route.ask()
        except (RequestRefused, GroupError) as error:
            log.debug("group %r: %s", self._key[0], error)
        finally:
            self._asking = None

    # What the stream calls (`muster._session.session_members.SessionMember`)

    @property
    def attach(self) -> session_pb2.Attach:
        """See `SessionMember`."""
        return session_pb2.Attach(**self._vitals.fields)

    @property
    def beat_interval_ms(self) -> int:
        """See `SessionMember`."""
        return self._vitals.beat_interval_ms

    def attached(self, result: session_pb2.AttachResult, sent_ms: int) -> None:
        """See `SessionMember`."""
        if not self._route.accept(result.shard_epoch):
            self._leave_and_seek(forget=True)
            return
        if result.unsure:
            self._extend()
        elif result.error_code == common_pb2.ERROR_CODE_NONE:
            self._is_sure()
        if result.error_code == common_pb2.ERROR_CODE_INVALID_REQUEST:
            log.info("group %r: no room on the stream for a member; it makes heartbeats", self._key[0])
            self._make_heartbeats()
        else:
            self._heed(int(result.error_code), sent_ms, result.coordinator)

    def alive(self, sent_ms: int) -> None:
        """See `SessionMember`."""
        self._is_sure()
        self._deliver(Pulse(self._vitals.seat, common_pb2.ERROR_CODE_NONE, sent_ms, on_stream=True))

    def unsure(self, shard_epoch: int) -> None:
        """See `SessionMember`."""
        if not self._route.accept(shard_epoch):
            self._leave_and_seek(forget=True)
            return
        self._extend()
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="muster-ask")

    def _is_sure(self) -> None:
        if self._unsure:
            self._unsure = False
            log.info("group %r: its coordinator reaches the log again", self._key[0])

    def _extend(self) -> None:
        """The coordinator is unsure of its lease: the membership lasts for its session time-out."""
        if not self._unsure:
            self._unsure = True
            log.warning(
                "group %r: its coordinator cannot reach the log; partitions are kept until the session ends, "
                "and commits wait",
                self._key[0],
            )
        code = common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
        self._deliver(Pulse(self._vitals.seat, code, 0, on_stream=True, unsure=True))

    def unheard(self, code: int) -> None:
        """See `SessionMember`."""
        self._heed(code, 0, None)

    def rebalance(self, news: session_pb2.RebalanceStarted) -> None:
        """See `SessionMember`."""
        if self._route.accept(news.shard_epoch) and news.generation == self._vitals.seat.generation:
            cause = news.cause if news.HasField("cause") else None
            message = cause.sentence if cause is not None else ""
            self._say(common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, cause=cause, message=message)

    def fenced(self, news: session_pb2.Fenced) -> None:
        """See `SessionMember`."""
        if not self._route.accept(news.shard_epoch):
            self._seek(forget=True)
            return
        cause = news.cause if news.HasField("cause") else None
        code = int(news.error_code)
        message = cause.sentence if cause is not None else f"the coordinator said {code_name(code)}"
        self._say(code, cause=cause, message=message)

    def changed(self, news: session_pb2.GroupChanged) -> None:
        """See `SessionMember`."""
        if self._route.accept(news.shard_epoch):
            self._say(int(news.error_code), message="the group is of the other kind now")
        else:
            self._seek(forget=True)

    def moved(self, coordinator: common_pb2.Coordinator) -> None:
        """See `SessionMember`."""
        self._heed(int(common_pb2.ERROR_CODE_NOT_COORDINATOR), 0, coordinator)

    def stream_ended(self, end: StreamEnd) -> None:
        """See `SessionMember`."""
        if end.how is How.DENIED:
            self._say(common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR, message=str(end.error))
        elif end.how in (How.UNSUPPORTED, How.REFUSED):
            self._place()
        else:
            self._leave_and_seek(forget=True)

    def _heed(self, code: int, sent_ms: int, hint: common_pb2.Coordinator | None) -> None:
        reaction = reaction_to(Call.HEARTBEAT, code)
        if reaction is Reaction.RETRY:
            self._leave_and_seek(forget=False)
        elif reaction is Reaction.REDISCOVER:
            epoch_before = self._route.shard_epoch
            followed = hint is not None and bool(hint.host) and self._route.follow(hint)
            # Two coordinators that name each other must not be asked in a tight circle.
            if followed and self._route.shard_epoch > epoch_before:
                self._place()
            else:
                self._leave_and_seek(forget=not followed)
        else:
            self._say(code, sent_ms=sent_ms)

    def _leave_and_seek(self, *, forget: bool) -> None:
        """Leaves the stream, if any, and looks for the coordinator."""
        self._leave()
        self._seek(forget=forget)

    def _say(
        self,
        code: int,
        *,
        sent_ms: int = 0,
        cause: common_pb2.RebalanceCause | None = None,
        message: str = "",
    ) -> None:
        if not self._over:
            # Whatever is not one of these two ends the membership.
            self._over = reaction_to(Call.HEARTBEAT, code) not in _MEMBERSHIP_LASTS
            self._deliver(Pulse(self._vitals.seat, code, sent_ms, cause, message, on_stream=True))
