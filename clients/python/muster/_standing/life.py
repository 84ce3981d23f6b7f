"""A member's own deadline: how long it may work on without hearing from its coordinator."""

_RATES = 1_000
"""The rates of two machines' clocks differ by less than one part in this many."""


class SpareBeats:
    """What a thread has heard of one seat while the event loop was blocked.

    One thread writes, every thread reads: a write replaces one tuple.

    Attributes:
        heard: boot time at which the last acknowledged Heartbeat was sent, or 0; that of the last one that
            was answered before a join phase, or 0; whether a join phase was heard of.
        gave_up_ms: boot time at which the thread stopped, as the block was too long; 0: it did not.
        changed: whether it heard that the group is of the other kind now.
    """

    __slots__ = ("changed", "gave_up_ms", "heard")

    def __init__(self) -> None:
        self.heard: tuple[int, int, bool] = (0, 0, False)
        self.gave_up_ms: int = 0
        self.changed: bool = False

    def hear(self, sent_ms: int, *, rebalancing: bool) -> None:
        """Counts a Heartbeat that was sent at `sent_ms` and has been acknowledged."""
        acknowledged_ms, settled_ms, phase = self.heard
        phase = phase or rebalancing
        settled_ms = settled_ms if phase else max(settled_ms, sent_ms)
        self.heard = (max(acknowledged_ms, sent_ms), settled_ms, phase)


class Life:
    """A member's own deadline, counted from when its last acknowledged beat was *sent*.

    The deadline is a session time-out away; on a stream it is the disconnect grace, if set and shorter. The
    server counts the session from when it received that beat and the grace from when the stream broke. Both
    are later, so the member always stops first. After the coordinator said that it is unsure of its lease,
    the session counts until a beat is acknowledged again.

    A join phase that has lasted for a rebalance time-out goes on without the member, even if the member does
    not know of it. So a life also ends a rebalance time-out after the sending of the last beat or SyncGroup
    that was answered before any join phase had begun. Only a member with a grace that got `unsure` is waited
    for.

    While the event loop is blocked a thread beats. What it hears counts by itself, for the grace and no
    longer: an `unsure` that the loop reads later may be older, and extends only what the loop has heard.

    A member whose group becomes one of the other kind counts its session, whatever it was on, until the first
    beat of that kind is acknowledged.

    Clocks run at different rates: a thousandth is subtracted, in case this machine's clock is the slower one.

    Args:
        session_timeout_ms: how long the member may be silent.
        disconnect_grace_ms: how long it may be silent after its stream broke; 0: the session time-out.
        rebalance_timeout_ms: how long a join phase waits for it; 0: the session time-out.
        back_within_ms: how long it is waited for when its group becomes a classic one; 0: its is one.

    Attributes:
        on_stream: whether the grace counts. At first it does: the server may know of a stream before the
            member does.
        rebalancing: whether the member knows of a join phase.
        spare: what a thread hears of the present seat while the loop is blocked.
    """

    def __init__(
        self,
        session_timeout_ms: int,
        disconnect_grace_ms: int = 0,
        rebalance_timeout_ms: int = 0,
        back_within_ms: int = 0,
    ) -> None:
        rebalance_ms = rebalance_timeout_ms or session_timeout_ms
        grace_ms = disconnect_grace_ms or session_timeout_ms
        self.on_stream: bool = True
        self.rebalancing: bool = False
        self.spare: SpareBeats = SpareBeats()
        self._rebalance_ms = _on_any_clock(rebalance_ms)
        self._session_ms = _on_any_clock(min(session_timeout_ms, rebalance_ms))
        self._changed_ms = _on_any_clock(min(session_timeout_ms, back_within_ms or session_timeout_ms))
        self._on_stream_ms = _on_any_clock(min(session_timeout_ms, rebalance_ms, grace_ms))
        self._is_waited_for = disconnect_grace_ms > 0
        self._extended_ms = _on_any_clock(session_timeout_ms) if self._is_waited_for else self._session_ms
        self._acknowledged_ms: int | None = None
        self._settled_ms: int | None = None
        self._extended = False
        self._awaited = False
        self._changed_end_ms: int | None = None
        self._asked_ms = self._session_ms, self._extended_ms

    @property
    def session_ms(self) -> int:
        """How long a beat counts where the member is on no stream, ms."""
        return self._session_ms

    @property
    def span_ms(self) -> int:
        """How long a beat counts, ms."""
        if self._extended:
            return self._extended_ms
        return self._on_stream_ms if self.on_stream else self._session_ms

    @property
    def ends_at_ms(self) -> int:
        """Boot time at which the member must have stopped; 0: it was never acknowledged."""
        return max(self._own_end_ms, self._spare_end_ms)

    @property
    def blocked_too_long(self) -> bool:
        """Whether a thread that beat in place of the loop gave up, and nothing was acknowledged since."""
        return self.spare.gave_up_ms > (self._acknowledged_ms or 0)

    @property
    def _own_end_ms(self) -> int:
        if self._changed_end_ms is not None:
            return self._changed_end_ms
        if self._acknowledged_ms is None:
            return 0
        ends_ms = self._acknowledged_ms + self.span_ms
        if self._awaited and self._settled_ms is not None:
            ends_ms = min(ends_ms, self._settled_ms + self._rebalance_ms)
        if not self.rebalancing or (self._extended and self._is_waited_for):
            return ends_ms
        return 0 if self._settled_ms is None else min(ends_ms, self._settled_ms + self._rebalance_ms)

    @property
    def _spare_end_ms(self) -> int:
        acknowledged_ms, settled_ms, phase = self.spare.heard
        if self.spare.changed:
            return self.changed_end_ms
        if not acknowledged_ms:
            return 0
        ends_ms = acknowledged_ms + (self._on_stream_ms if self.on_stream else self._session_ms)
        if self._awaited:
            settled_ms = self._settled_ms or 0
        elif phase or self.rebalancing:
            settled_ms = max(settled_ms, self._settled_ms or 0)
        else:
            return ends_ms
        return min(ends_ms, settled_ms + self._rebalance_ms) if settled_ms else 0

    @property
    def acknowledged_ms(self) -> int:
        """Boot time at which the last acknowledged beat was sent; 0: none was."""
        return max(self._acknowledged_ms or 0, self.spare.heard[0])

    @property
    def changed_end_ms(self) -> int:
        """When the life ends of a member that has heard that its group is of the other kind now; 0: it has.

        The coordinator counts the session from the change, which is later than any beat that it acknowledged
        (docs/safety.md, INC-75). A join phase has ended with a conversion, and begins with one back.
        """
        return self.acknowledged_ms + self._changed_ms if self.acknowledged_ms else 0

    def allow(self, session_timeout_ms: int, disconnect_grace_ms: int) -> None:
        """Counts no more time than the coordinator gives; 0: it did not say, or the grace is the session."""
        if session_timeout_ms:
            self._session_ms = min(self._session_ms, _on_any_clock(session_timeout_ms))
            self._changed_ms = min(self._changed_ms, self._session_ms)
        grace_ms = _on_any_clock(disconnect_grace_ms) or self._session_ms
        self._on_stream_ms = min(self._on_stream_ms, self._session_ms, grace_ms)
        self._extended_ms = min(self._extended_ms, self._session_ms)

    def renew(self, sent_ms: int) -> None:
        """Counts a beat that was sent at `sent_ms` and has been acknowledged."""
        self._changed_end_ms = None
        self._extended = False
        self._acknowledged_ms = max(self._acknowledged_ms or sent_ms, sent_ms)
        if not self.rebalancing and not self._awaited:
            self.settle(sent_ms)

    def settle(self, sent_ms: int) -> None:
        """Counts a call that was sent at `sent_ms` and answered while no join phase ran."""
        self._settled_ms = max(self._settled_ms or sent_ms, sent_ms)

    def restart(self) -> None:
        """Begins the life of a new seat, which counts from its own first acknowledged beat.

        The answer to JoinGroup does not count, since it may have been on its way for long, nor that to
        SyncGroup: the server does not prolong the session for it (conformance SG-18).
        """
        self._extended = self.rebalancing = self._awaited = False
        self._changed_end_ms = None
        self._count_as_asked()
        self._acknowledged_ms = self._settled_ms = None
        self.spare = SpareBeats()

    def last_until(self, changed_end_ms: int) -> None:
        """Lasts until then, or until the first beat is acknowledged, which counts from there."""
        self._changed_end_ms = changed_end_ms

    def go_back(self, before: "Life") -> None:
        """Goes on from a life in an incremental group that has just become a classic one (INC-183).

        It lasts as long as that one, or until a Heartbeat in the join phase that has begun is acknowledged:
        each counts for a session. As in any join phase it ends no later than a rebalance time-out after the
        last beat before. Until the member has a seat it has the session that the coordinator gave it before.
        """
        self._changed_end_ms = before.ends_at_ms
        self._settled_ms = before.acknowledged_ms or None
        self.rebalancing, self.on_stream = True, False
        self._session_ms = min(self._session_ms, before.session_ms)
        self._extended_ms = min(self._extended_ms, self._session_ms)

    def _count_as_asked(self) -> None:
        self._session_ms, self._extended_ms = self._asked_ms

    def go_on(self, joined_ms: int) -> None:
        """Goes on in the next generation, with what the member kept; the JoinGroup was sent at `joined_ms`.

        That generation began later, and later than any beat counted for the seat before. From then on the
        coordinator waits a rebalance time-out for the SyncGroup, and for the release of what the member keeps
        and is not given. Until it has `settle_in`, the life ends no later than that, whatever is heard.
        """
        self._settled_ms = max(self._acknowledged_ms or joined_ms, joined_ms)
        self._awaited = True
        self.rebalancing = False
        self.spare = SpareBeats()
        self._count_as_asked()

    def settle_in(self, sent_ms: int) -> None:
        """Counts a SyncGroup, sent at `sent_ms`, after which nothing is left to be released."""
        self._awaited = False
        if not self.rebalancing:
            self.settle(sent_ms)

    def end(self) -> None:
        """Ends it now. Whether that comes from a blocked loop is known on."""
        self._acknowledged_ms = self._changed_end_ms = None
        gave_up_ms, self.spare = self.spare.gave_up_ms, SpareBeats()
        self.spare.gave_up_ms = gave_up_ms

    def extend(self, now_ms: int) -> None:
        """Lets the whole session count, unless the life is over: the coordinator is unsure of its lease."""
        if self.remaining_ms(now_ms):
            self._extended = True

    def remaining_ms(self, now_ms: int) -> int:
        """Time left, 0 or more, ms."""
        return max(0, self.ends_at_ms - now_ms)


def _on_any_clock(time_ms: int) -> int:
    """The part of a time that has passed on every machine before all of it has passed on any."""
    return time_ms - time_ms // _RATES
