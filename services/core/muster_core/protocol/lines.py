"""What waits in line: events of a group, while its records are on their way to the log or it has a pause."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from muster_core import error_code
from muster_core.clock import Now
from muster_core.error_code import ErrorCode
from muster_core.events import Request
from muster_core.state.group import Group
from muster_core.state.line import Step
from muster_core.waiting.timing_wheel import CallbackTimer, TimingWheel

_PAUSE_MS = 4
"""Between two turns of a call that takes long: others need several turns of the loop for a call of theirs."""


class Turn(Protocol):
    """What the lines need of the turn that is being played."""

    @property
    def now(self) -> Now:
        """Time of the turn."""

    @property
    def arrived(self) -> Request | None:
        """The call that the turn has brought; None: it is about something else."""

    @property
    def log_slow(self) -> str:
        """What a call is refused with whose records were not stored in time."""

    def refuse(self, call_id: int, code: ErrorCode, message: str = "") -> None:
        """Answers a call with an error."""


class Lines:
    """The lines of a shard's groups: who comes while a group waits is decided when the group goes on.

    Args:
        turn: the turn that is being played.
        calls: open calls by id.
        wheel: where pauses wait.
    """

    def __init__(self, turn: Turn, calls: Mapping[int, Request], wheel: TimingWheel) -> None:
        self._turn = turn
        self._calls = calls
        self._wheel = wheel
        self._gathering: list[Group] = []
        self._route: Callable[[Request], None] = _not_routed

    def route_with(self, route: Callable[[Request], None]) -> None:
        """Sets what plays a call that has waited in line."""
        self._route = route

    def in_line(
        self, group: Group, step: Callable[[], None], *, deadline: bool = False, call_id: int | None = None
    ) -> None:
        """Runs a step on the group now, or after what is in line.

        Args:
            group: the group.
            step: what to do.
            deadline: whether it is due because members said nothing; it is dropped at a suspension.
            call_id: the call that wants it, which is refused when the log is too slow; None: none does.
        """
        line = group.line
        if line.must_wait:
            line.steps.append(Step(step, call_id, deadline))
        elif line.has_commits:  # it follows a record, after the commits that have waited for that (GRP-38)
            line.commits.append(Step(step, call_id, deadline))
        else:
            step()

    def call_in_line(self, group: Group, call: Request) -> bool:
        """Puts a call in line if the group has one; returns whether it had to."""
        must_wait = group.line.must_wait
        if must_wait:
            group.line.steps.append(self._routed(call))
        return must_wait

    def commit_in_line(self, group: Group, call: Request) -> bool:
        """Puts a member's commit before all that is no commit; returns whether it has to wait (GRP-38)."""
        must_wait = group.line.in_flight or group.line.holds_commits
        if must_wait:
            group.line.commits.append(self._routed(call))
        return must_wait

    def _routed(self, call: Request) -> Step:
        return Step(partial(self.route, call.call_id), call_id=call.call_id)

    @property
    def is_gathering(self) -> bool:
        """Whether calls are in line until the next `Tick`."""
        return bool(self._gathering)

    def gather(self, group: Group, call: Request) -> bool:
        """Begins a line with a call that has just come, so that those after it are decided with it (INC-146).

        What one message of a stream brings is a call each, and the first one alone would be an append of its
        own, which all others wait for.

        Returns:
            Whether the call is in line; not one that was already.
        """
        if call is self._turn.arrived:
            group.line.gathers = True
            self._gathering.append(group)
            self.call_in_line(group, call)
        return group.line.gathers

    def gathered(self) -> list[Group]:
        """Ends the gathering; returns the groups in whose lines calls were gathered, to move up."""
        groups, self._gathering = self._gathering, []
        for group in groups:
            group.line.gathers = False
        return groups

    def go_on_later(self, group: Group, call: Request, step: Callable[[], None]) -> None:
        """Goes on with a call of a group after a pause for others, before what is in line.

        Of a call that has ended meanwhile nothing more is done.
        """
        self.pause(group, partial(self._go_on, call.call_id, step))

    def _go_on(self, call_id: int, step: Callable[[], None]) -> None:
        if call_id in self._calls:
            step()

    def commit_later(self, group: Group, call: Request, step: Callable[[], None]) -> None:
        """Runs a step of a commit after a pause for others; no commit of its group comes before it."""
        group.line.holds_commits = True
        self.pause(group, partial(self._commit_goes_on, group, step), call.call_id)

    @staticmethod
    def _commit_goes_on(group: Group, step: Callable[[], None]) -> None:
        line = group.line
        line.holds_commits = False
        step()
        if not line.holds_commits:
            line.passed = 0 if line.is_empty else line.passed + 1

    def pause(self, group: Group, step: Callable[[], None], call_id: int | None = None) -> None:
        """Runs a step on a group after a pause for others, before what is in line.

        Args:
            group: the group.
            step: what to do, also when its call was refused meanwhile.
            call_id: the call, which is refused when the log is too slow for what is before it; None: none is.
        """
        line = group.line
        if line.in_flight or line.in_turns:
            line.steps.appendleft(Step(partial(self.pause, group, step, call_id), call_id, stays=True))
            return
        line.in_turns = True
        pause = CallbackTimer(group.group_id, partial(self._pause_ended, group, step))
        self._wheel.arm(pause, self._turn.now.boot_ms + _PAUSE_MS)

    def _pause_ended(self, group: Group, step: Callable[[], None]) -> None:
        group.line.in_turns = False
        step()
        self.move_up(group)

    def route(self, call_id: int) -> None:
        """Plays a call again that is still open."""
        call = self._calls.get(call_id)
        if call is not None:
            self._route(call)

    def move_up(self, group: Group) -> None:
        """Goes on with what waits in line, until a step stores records or waits itself."""
        line = group.line
        while not line.in_flight and (step := line.next_step()) is not None:
            step.run()

    def refuse_line(self, group: Group) -> None:
        """Refuses the calls in line: the log is too slow. Other steps stay in line."""
        line = group.line
        for step in line.take_all():
            if step.call_id is not None:
                self._turn.refuse(step.call_id, error_code.COORDINATOR_NOT_AVAILABLE, self._turn.log_slow)
            if step.call_id is None or step.stays:
                line.steps.append(step)


def _not_routed(call: Request) -> None:
    raise AssertionError("route_with was not called")
