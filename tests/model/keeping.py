"""An explicit-state model of members that keep a partition while the group rebalances.

A few members, one partition. In each rebalance a member may give the partition up before it joins, or join
and work on; each leader may plan for any member, or for nobody, whoever works. Joins and assignments arrive
late or twice, a generation is over before its assignment arrives, members crash, and one that does not
release what it is to release is removed.

It is a model of docs/safety.md, "Keeping partitions", and shares no code with what it models:
`explore.py` walks it, `keeping_cases.py` names the spaces. Time is in it only as an order: that a silent
member stops before it is removed is what `session.py` shows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from model.explore import Goal
from model.quick_replace import quick_replace

NOBODY: Final = -1

OUT: Final = "out"
JOINING: Final = "joining"
SYNCING: Final = "syncing"
SETTLED: Final = "settled"
STUBBORN: Final = "stubborn"  # was not given what it works on, and neither stops nor joins
CRASHED: Final = "crashed"

PREPARING: Final = "preparing"
COMPLETING: Final = "completing"
STABLE: Final = "stable"


@dataclass(frozen=True)
class KeepingRules:
    """The rules; each may be dropped.

    Attributes:
        withhold: nobody is given what another member of the generation keeps.
        declared: what a member keeps is what it said when it joined, not what the log says that it was given.
        numbered: a late copy of a join changes nothing.
        owing: a member that neither releases what it is not given nor joins again is removed after a time.
        first: it stops before that, by its own clock.
    """

    withhold: bool = True
    declared: bool = True
    numbered: bool = True
    owing: bool = True
    first: bool = True


@dataclass(frozen=True)
class KeepingBounds:
    """What there is, and what happens.

    Attributes:
        members: how many there are.
        stubborn: a member may neither release nor join.
        crashes: how many members crash.
    """

    members: int = 2
    stubborn: bool = False
    crashes: int = 0


class Seen(NamedTuple):
    """A member, as it is; and what is on its way between it and the coordinator."""

    does: str = OUT
    works: bool = False
    present: bool = False  # its generation is the group's
    sent: bool | None = None  # its JoinGroup, by whether it keeps the partition
    answer: bool | None = None  # its SyncGroup's answer, by whether it is given the partition
    # as the coordinator knows it
    inside: bool = False
    joined: bool = False
    keeps: bool = False


@quick_replace
class KeepingState(NamedTuple):
    """Everything there is."""

    members: tuple[Seen, ...]
    phase: str
    owner: int  # by the last assignment
    copies: frozenset[tuple[int, bool]]  # of joins that arrived
    crashes: int


class KeepingModel:
    """The model, for `explore`."""

    def __init__(self, rules: KeepingRules, bounds: KeepingBounds) -> None:
        self._rules = rules
        self._bounds = bounds

    def initial(self) -> KeepingState:
        """Nobody has joined."""
        members = tuple(Seen() for _ in range(self._bounds.members))
        return KeepingState(members, STABLE, NOBODY, frozenset(), self._bounds.crashes)

    def canonical(self, state: KeepingState) -> KeepingState:
        """Every state stands for itself."""
        return state

    def broken(self, state: KeepingState) -> str:
        """Two members must not work on the partition."""
        return "two owners" if sum(member.works for member in state.members) > 1 else ""

    def steps(self, state: KeepingState) -> Iterator[tuple[str, KeepingState]]:
        """Everything that can happen next."""
        for at, member in enumerate(state.members):
            yield from self._ends(state, at, member)
            yield from self._joins(state, at, member)
            yield from self._arrives(state, at, member)
            yield from self._syncs(state, at, member)
            yield from self._is_removed(state, at, member)
        for at, keeps in state.copies:
            if state.members[at].inside:
                yield f"a late copy of a join of {at} arrives", self._taken(state, at, keeps)
        yield from self._phase_ends(state)
        yield from self._planned(state)

    # What a member does

    def _ends(self, state: KeepingState, at: int, member: Seen) -> Iterator[tuple[str, KeepingState]]:
        if state.crashes and member.does != CRASHED:
            gone = member._replace(does=CRASHED, works=False, sent=None, answer=None)
            yield f"{at} crashes", _with(state, at, gone)._replace(crashes=state.crashes - 1)
        if member.works and (member.does != STUBBORN or (self._rules.owing and self._rules.first)):
            text = "has no time left" if member.does == STUBBORN else "hears nothing"
            does = OUT if member.does == STUBBORN else member.does
            yield f"{at} {text} and stops", _with(state, at, member._replace(does=does, works=False))

    def _joins(self, state: KeepingState, at: int, member: Seen) -> Iterator[tuple[str, KeepingState]]:
        rebalances = state.phase == PREPARING and not member.joined
        owes = member.does == SETTLED and member.present and member.keeps and state.owner != at
        if not (member.does == OUT or owes or (member.does in (SETTLED, SYNCING) and rebalances)):
            return
        for keeps in (True, False) if member.works else (False,):
            after = member._replace(does=JOINING, works=keeps, present=False, sent=keeps, answer=None)
            yield f"{at} joins{', and keeps it' if keeps else ''}", _with(state, at, after)

    def _syncs(self, state: KeepingState, at: int, member: Seen) -> Iterator[tuple[str, KeepingState]]:
        if member.does == JOINING and member.sent is None and member.inside and member.present:
            yield f"{at} hears that it is in", _with(state, at, member._replace(does=SYNCING))
        if member.does != SYNCING:
            return
        if member.answer is None and member.present and state.phase == STABLE:
            yield f"{at} is answered", _with(state, at, member._replace(answer=state.owner == at))
        if member.answer is not None:
            after = member._replace(does=SETTLED, works=member.answer, answer=None)
            text = f"{at} is given it" if member.answer else f"{at} is given nothing"
            yield text, _with(state, at, after)
            if self._bounds.stubborn and member.works and not member.answer:
                yield f"{at} does not release it", _with(state, at, after._replace(does=STUBBORN, works=True))

    # What the coordinator does

    def _arrives(self, state: KeepingState, at: int, member: Seen) -> Iterator[tuple[str, KeepingState]]:
        if member.sent is None or (state.phase == COMPLETING and member.present):
            return
        after = self._taken(state, at, member.sent)
        after = _with(after, at, after.members[at]._replace(sent=None))
        if not self._rules.numbered:
            after = after._replace(copies=after.copies | {(at, member.sent)})
        yield f"the join of {at} arrives", after

    def _taken(self, state: KeepingState, at: int, keeps: bool) -> KeepingState:
        if state.phase != PREPARING:
            members = tuple(member._replace(joined=False) for member in state.members)
            state = state._replace(phase=PREPARING, members=members)
        return _with(state, at, state.members[at]._replace(inside=True, joined=True, keeps=keeps))

    def _phase_ends(self, state: KeepingState) -> Iterator[tuple[str, KeepingState]]:
        if state.phase != PREPARING or not any(member.joined for member in state.members):
            return
        if any(member.inside and not member.joined and member.works for member in state.members):
            return  # each stops before the phase goes on without it
        members = tuple(
            member._replace(present=True, joined=False) if member.joined else _gone(member)
            for member in state.members
        )
        yield "a generation begins", state._replace(phase=COMPLETING, members=members)

    def _planned(self, state: KeepingState) -> Iterator[tuple[str, KeepingState]]:
        if state.phase != COMPLETING:
            return
        inside = [at for at, member in enumerate(state.members) if member.inside]
        for to in (NOBODY, *inside):
            kept = any(self._keeps(state, at) for at in inside if at != to)
            owner = NOBODY if kept else to
            yield (
                f"it is planned for {to}{', who waits' if kept else ''}",
                state._replace(phase=STABLE, owner=owner),
            )

    def _keeps(self, state: KeepingState, at: int) -> bool:
        """Whether a member keeps the partition, as far as the coordinator looks."""
        rules = self._rules
        given = rules.declared or state.owner == at
        return rules.withhold and given and state.members[at].keeps

    def _is_removed(self, state: KeepingState, at: int, member: Seen) -> Iterator[tuple[str, KeepingState]]:
        if state.phase == PREPARING or not member.inside:
            return
        owes = self._rules.owing and state.phase == STABLE and member.keeps and state.owner != at
        if owes and (not member.works or not self._rules.first):
            yield f"{at} is removed, for it releases nothing", self._without(state, at)
        if not member.works and (member.does == CRASHED or not owes):
            yield f"{at} is removed for its silence", self._without(state, at)

    @staticmethod
    def _without(state: KeepingState, at: int) -> KeepingState:
        members = tuple(member._replace(joined=False) for member in state.members)
        state = state._replace(phase=PREPARING, members=members)
        owner = NOBODY if state.owner == at else state.owner
        return _with(state, at, _gone(state.members[at]))._replace(owner=owner)


SHARED = Goal[KeepingState](
    missed="nobody works on it, for good",
    demanded=lambda state: any(member.does != CRASHED for member in state.members),
    reached=lambda _, after: any(
        member.works and member.does == SETTLED and after.owner == at
        for at, member in enumerate(after.members)
    ),
)
"""However it goes on, the partition can be given to somebody."""


def _with(state: KeepingState, at: int, member: Seen) -> KeepingState:
    return state._replace(members=(*state.members[:at], member, *state.members[at + 1 :]))


def _gone(member: Seen) -> Seen:
    """A member that the coordinator has removed; it hears so at its next call."""
    does = member.does if member.does in (CRASHED, STUBBORN) else OUT
    return Seen(does=does, works=member.works)
