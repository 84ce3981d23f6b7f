"""The four things that wait in the purgatory: join phases (two kinds), syncs and heartbeats."""

from typing import Protocol

from muster_core.state.group import Group
from muster_core.state.members.member import Member
from muster_core.waiting.purgatory import DelayedOperation
from muster_core.waiting.timing_wheel import Timer


class DelayedCallbacks(Protocol):
    """What is called when a wait is over; the rebalancer implements it."""

    @property
    def initial_delay_ms(self) -> int:
        """How long an empty group gathers members."""

    def watch_join(self, operation: "DelayedJoin") -> None:
        """Lets a join phase wait in the purgatory."""

    def complete_join(self, group: Group, *, has_turn: bool) -> None:
        """A join phase is over; whether its generation has waited for its turn."""

    def sync_expired(self, group: Group, generation: int) -> None:
        """Members of a generation did not sync in time."""

    def session_ended(self, group: Group, member: Member, timer: "DelayedHeartbeat") -> None:
        """A member was silent for its session time-out."""


class DelayedJoin(DelayedOperation):
    """A join phase: ends when all members are back, or at the longest rebalance time-out (KIP-62).

    After that its generation may wait for its turn (docs/safety.md, LIM-69).
    """

    __slots__ = ("_callbacks", "_has_turn", "group")

    def __init__(
        self, callbacks: DelayedCallbacks, group: Group, delay_ms: int, *, has_turn: bool = False
    ) -> None:
        super().__init__(delay_ms)
        self._callbacks = callbacks
        self.group = group
        self._has_turn = has_turn

    @property
    def group_id(self) -> str:
        """The group that rebalances."""
        return self.group.group_id

    def can_complete(self) -> bool:
        """Whether everybody has joined."""
        return self.group.all_joined

    def on_complete(self) -> None:
        """Ends the join phase."""
        self._callbacks.complete_join(self.group, has_turn=self._has_turn)


class InitialDelayedJoin(DelayedJoin):
    """The join phase of an empty group: gathers members for a while (KIP-134, conformance ID-04).

    Whoever joins while it waits extends it by the initial delay, but never beyond the longest
    rebalance time-out that was known when it began.
    """

    __slots__ = ("_budget_ms",)

    def __init__(self, callbacks: DelayedCallbacks, group: Group, delay_ms: int, budget_ms: int) -> None:
        super().__init__(callbacks, group, delay_ms)
        self._budget_ms = budget_ms

    def can_complete(self) -> bool:
        """Never early: nobody knows who else is on the way (conformance ID-05)."""
        return False

    def on_complete(self) -> None:
        """Waits on if somebody joined meanwhile and there is time left; else ends the join phase."""
        if self.group.new_member_added and self._budget_ms > 0:
            self.group.new_member_added = False
            delay_ms = min(self._callbacks.initial_delay_ms, self._budget_ms)
            self._callbacks.watch_join(
                InitialDelayedJoin(self._callbacks, self.group, delay_ms, self._budget_ms - delay_ms)
            )
        else:
            super().on_complete()


class DelayedSync(DelayedOperation):
    """The wait until each member has its assignment (KAFKA-12890), and released what it is not given."""

    __slots__ = ("_callbacks", "_generation", "_group")

    def __init__(self, callbacks: DelayedCallbacks, group: Group, generation: int, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self._callbacks = callbacks
        self._group = group
        self._generation = generation

    @property
    def group_id(self) -> str:
        """The group whose members sync."""
        return self._group.group_id

    def can_complete(self) -> bool:
        """Whether all have synced, and nobody is to release anything."""
        return not self._group.pending_sync and not self._group.to_release

    def on_complete(self) -> None:
        """Nothing: those who synced were answered."""

    def on_expiration(self) -> None:
        """Removes those who did not."""
        self._callbacks.sync_expired(self._group, self._generation)


class DelayedHeartbeat(Timer):
    """A member's session. Each heartbeat moves the deadline: O(1), and nothing is allocated."""

    __slots__ = ("_callbacks", "_group", "_member")

    def __init__(self, callbacks: DelayedCallbacks, group: Group, member: Member) -> None:
        super().__init__()
        self._callbacks = callbacks
        self._group = group
        self._member = member

    @property
    def group_id(self) -> str:
        """The member's group."""
        return self._group.group_id

    def fire(self) -> None:
        """The member was silent for its session time-out."""
        self._callbacks.session_ended(self._group, self._member, self)
