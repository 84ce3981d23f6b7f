"""Moves that joins hold back while a deployment runs (docs/safety.md, INC-170 to INC-174)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from model.incremental.rules import Rules
from model.incremental.state import put
from model.quick_replace import quick_replace

LONGEST = 3
"""How long a hold lasts at most, in ticks; an hour, in the contract."""


@quick_replace
class Hold(NamedTuple):
    """What the log says of the hold; times are of the owner's wall clock, from now.

    Attributes:
        began: when it began, 0 or less.
        until: when it ends.
        start: the group began with it: it holds nothing back.
        freed: it has ended: the epoch whose target moves what was held back; 0: it has not.
    """

    began: int = 0
    until: int = 0
    start: bool = False
    freed: int = 0

    @property
    def is_on(self) -> bool:
        """Whether it holds moves back."""
        return not self.start and not self.freed


@quick_replace
class Due(NamedTuple):
    """What the contract demands, in true time; no process sees it.

    Attributes:
        on: moves are to be held back.
        left: how long they may be held back at most.
        age: since when they are.
        start: how long joins of a group that was empty hold nothing back; `UNJUDGED`: nobody can say, as it
            has no timer and the clock of another owner is behind, by which it lasts longer.
        owed: for how long moves were held back since anything could move.
    """

    on: bool = False
    left: int = 0
    age: int = 0
    start: int = 0
    owed: int = 0


@quick_replace
class Work(NamedTuple):
    """An assignment that is being computed: for which epoch, for whom, and whether it is to move nothing."""

    epoch: int
    members: tuple[int, ...]
    holding: bool


@quick_replace
class Fleet(NamedTuple):
    """Everything.

    Attributes:
        joins: by process, the number of its join; 0: it is no member.
        heard: by process, the number of the last join that it sent.
        wish: by process, what that join asked for.
        target: by partition, who is to have it; -1: nobody.
        epoch: of the group.
        target_epoch: for which the target was computed.
        hold: as the log has it; None: there is none.
        ends: when the owner ends it, by its timer; None: it has none.
        operator: what is set: 0 nothing, 1 hold, 2 no hold.
        work: what is being computed.
        due: see `Due`.
        left: of each budget.
        wrong: what is broken.
    """

    joins: tuple[int, ...]
    heard: tuple[int, ...]
    wish: tuple[int, ...]
    target: tuple[int, ...]
    epoch: int
    target_epoch: int
    hold: Hold | None
    ends: int | None
    operator: int
    work: Work | None
    due: Due
    left: tuple[int, ...]
    wrong: str = ""


@dataclass(frozen=True)
class HoldBounds:
    """How large a space is, and how often things happen in it.

    Attributes:
        processes: that may be members.
        members: how many of them are, from the beginning.
        partitions: that they share.
        wishes: for how long joins ask.
        joins: how often somebody joins.
        retries: how often a join is sent again.
        leaves: how often somebody leaves, or is removed.
        loads: how often another owner loads the log.
        skews: how far the clocks of owners are apart.
        sets: how often an operator sets or unsets the hold.
        slow: assignments take their time.
        storm: members come and go without end.
    """

    processes: int = 3
    members: int = 1
    partitions: int = 2
    wishes: tuple[int, ...] = (1, 2)
    joins: int = 1
    retries: int = 0
    leaves: int = 0
    loads: int = 0
    skews: tuple[int, ...] = (0,)
    sets: int = 0
    slow: bool = False
    storm: bool = False


BUDGETS = ("joins", "retries", "leaves", "loads", "sets")
(JOINS, RETRIES, LEAVES, LOADS, SETS) = range(5)
UNSET, ON, OFF = range(3)
UNJUDGED = -1


class HoldModel:
    """A group whose members join while a deployment runs, and whose targets move partitions or do not.

    Only targets are walked: what happens on the way to one is the other models' part. A target is any that
    gives each partition to somebody who was a member when it was begun.

    Args:
        rules: all, or all but one.
        bounds: how large the space is.
    """

    def __init__(self, rules: Rules, bounds: HoldBounds) -> None:
        self.rules = rules
        self.bounds = bounds

    def initial(self) -> Fleet:
        """The first processes are members and share everything; no join asked for anything."""
        bounds = self.bounds
        many = bounds.processes
        joins = tuple(int(who < bounds.members) for who in range(many))
        target = tuple(p % bounds.members if bounds.members else -1 for p in range(bounds.partitions))
        left = tuple(getattr(bounds, name) for name in BUDGETS)
        return Fleet(joins, joins, (0,) * many, target, 1, 1, None, None, UNSET, None, Due(), left)

    def canonical(self, state: Fleet) -> Fleet:
        """Epochs count by their order alone, and joins by whether they are the last ones."""
        hold, due = state.hold, state.due
        epochs = sorted(
            {
                state.target_epoch,
                state.epoch,
                *((state.work.epoch,) if state.work else ()),
                *((hold.freed,) if hold and hold.freed else ()),
            }
        )
        rank = {epoch: place + 1 for place, epoch in enumerate(epochs)}
        work = state.work and state.work._replace(epoch=rank[state.work.epoch])
        joins = tuple(min(join, 1) for join in state.joins)
        heard = tuple(min(number, 1) for number in state.heard)
        if hold is not None:
            began, until = max(hold.began, -3 * LONGEST), max(hold.until, -LONGEST)
            hold = Hold(freed=rank[hold.freed]) if hold.freed else hold._replace(began=began, until=until)
        due = (
            due._replace(age=min(due.age, LONGEST), left=max(due.left, -1))
            if due.on
            else due._replace(left=0, age=0)
        )
        return state._replace(
            joins=joins,
            heard=heard,
            epoch=rank[state.epoch],
            target_epoch=rank[state.target_epoch],
            work=work,
            hold=hold,
            due=due,
        )

    def broken(self, state: Fleet) -> str:
        """What is wrong."""
        return state.wrong

    def settled(self, state: Fleet) -> bool:
        """Everybody who is a member has what it should, and nothing is held back."""
        if state.operator == ON or not any(state.joins):
            return True
        owned = all(who >= 0 and state.joins[who] for who in state.target)
        return owned and state.target_epoch == state.epoch and not state.due.owed and not self._is_on(state)

    # What happens.

    def steps(self, state: Fleet) -> Iterator[tuple[str, Fleet]]:
        """Everything that can happen next."""
        if state.ends == 0:
            yield "the hold ends", self._judged(self._ended(state))
            return  # a timer that is due comes before anything else
        yield "time passes", self._judged(self._tick(state))
        for who in range(self.bounds.processes):
            yield from self._steps_of_process(state, who)
        yield from self._targets(state)
        if state.left[LOADS]:
            for skew in self.bounds.skews:
                loaded = self._loaded(_spend(state, LOADS), skew)
                yield (
                    f"another owner loads the log; its clock is {skew:+} from that before",
                    self._judged(loaded),
                )
        if state.left[SETS]:
            for value in {UNSET, ON, OFF} - {state.operator}:
                yield (
                    f"an operator sets {('nothing', 'hold', 'no hold')[value]}",
                    self._judged(self._set(_spend(state, SETS), value)),
                )

    def _is_on(self, state: Fleet) -> bool:
        return state.hold is not None and state.hold.is_on

    def _tick(self, state: Fleet) -> Fleet:
        hold, due = state.hold, state.due
        if hold is not None and not hold.freed:
            hold = hold._replace(began=hold.began - 1, until=hold.until - 1)
        if due.on:
            due = due._replace(left=due.left - 1, age=due.age + 1)
        if self._is_on(state):
            due = due._replace(owed=min(due.owed + 1, 2 * LONGEST + 1))
        due = due._replace(start=max(due.start - 1, min(due.start, 0)))
        ends = None if state.ends is None else max(state.ends - 1, 0)
        return state._replace(hold=hold, due=due, ends=ends)

    def _steps_of_process(self, state: Fleet, who: int) -> Iterator[tuple[str, Fleet]]:
        if not state.joins[who]:
            if state.left[JOINS] or self.bounds.storm:
                spent = state if self.bounds.storm else _spend(state, JOINS)
                for wish in (0, *self.bounds.wishes):
                    yield (
                        f"process {who} joins and asks for {wish}",
                        self._judged(self._join(spent, who, wish)),
                    )
            return
        if state.left[RETRIES]:
            retried = self._hold(_spend(state, RETRIES), who, state.wish[who], is_first=False, again=True)
            yield f"process {who} makes its join again", self._judged(retried)
        if state.left[LEAVES] or self.bounds.storm:
            spent = state if self.bounds.storm else _spend(state, LEAVES)
            yield f"process {who} is gone", self._judged(self._gone(spent, who))

    def _join(self, state: Fleet, who: int, wish: int) -> Fleet:
        is_first = not any(state.joins)
        number = state.heard[who] + 1
        state = state._replace(
            joins=put(state.joins, who, number),
            heard=put(state.heard, who, number),
            wish=put(state.wish, who, wish),
            epoch=state.epoch + 1,
        )
        return self._hold(state, who, wish, is_first=is_first, again=False)

    def _hold(self, state: Fleet, who: int, wish: int, *, is_first: bool, again: bool) -> Fleet:
        """A join may hold moves back."""
        refused = state.operator == OFF and self.rules.hold_operator
        if not wish or refused:
            return state
        if state.operator != OFF:
            state = state._replace(due=self._demanded(state, wish, is_first=is_first, again=again))
        if again and self.rules.hold_once:
            return state
        hold = self._held(state, wish, is_first=is_first)
        if hold is None:
            return state
        return self._followed(state._replace(hold=hold))

    def _demanded(self, state: Fleet, wish: int, *, is_first: bool, again: bool) -> Due:
        """What the contract demands after a join."""
        due = state.due
        if again:
            return due
        if is_first:
            return due._replace(start=wish)
        hold = state.hold
        is_starting = due.start > 0 or (due.start == UNJUDGED and hold and hold.start and _remaining(hold))
        if is_starting or (hold is not None and hold.freed and not due.on):
            return due
        if not due.on:
            return due._replace(on=True, left=wish, age=0, start=0)
        return due._replace(left=max(due.left, min(wish, LONGEST - due.age)))

    def _held(self, state: Fleet, wish: int, *, is_first: bool) -> Hold | None:
        """The hold after a join that asks for one; None: it is as before."""
        rules, before = self.rules, state.hold
        new = Hold(0, wish, start=is_first and rules.hold_start)
        if is_first or before is None:
            return new
        if before.start:
            return None if _remaining(before) else new
        if before.freed:
            return None if rules.hold_frees else new
        until = min(wish, before.began + LONGEST) if rules.hold_bounded else wish
        return before._replace(until=until) if until > before.until else None

    def _followed(self, state: Fleet) -> Fleet:
        """The owner has a timer for the end of a hold."""
        hold = state.hold
        if hold is None or not hold.is_on:
            return state._replace(ends=None)
        return state._replace(ends=_remaining(hold) if self.rules.hold_clock else max(hold.until, 0))

    def _ended(self, state: Fleet) -> Fleet:
        """The time of a hold is over: what was held back is assigned anew."""
        freed = Hold(freed=state.epoch + 1)
        state = state._replace(hold=freed, ends=None, due=state.due._replace(on=False))
        return state._replace(epoch=state.epoch + 1) if self.rules.hold_anew else state

    def _gone(self, state: Fleet, who: int) -> Fleet:
        target = tuple(-1 if owner == who else owner for owner in state.target)
        state = state._replace(joins=put(state.joins, who, 0), target=target, epoch=state.epoch + 1)
        if any(state.joins):
            return state
        state = state._replace(due=Due(), target=(-1,) * self.bounds.partitions)
        if self.rules.hold_empty:
            state = state._replace(hold=None, ends=None)
        return state

    def _loaded(self, state: Fleet, skew: int) -> Fleet:
        """Another owner has the group from the log; its wall clock may be another one."""
        hold, due = state.hold, state.due
        if hold is not None and not hold.freed:
            hold = hold._replace(began=hold.began - skew, until=hold.until - skew)
        if not self.rules.hold_stored:
            hold = None
        if skew and state.hold is not None:
            whole = state.hold.until - state.hold.began
            start = UNJUDGED if state.hold.start else 0
            due = due._replace(left=max(due.left, whole), start=start, owed=0, age=0)
        return self._followed(state._replace(hold=hold, due=due, work=None))

    def _set(self, state: Fleet, value: int) -> Fleet:
        """An operator holds moves back, ends every hold, or takes back what was set."""
        before = state.operator
        state = state._replace(operator=value)
        ends = value == OFF and self._is_on(state)
        if not self.rules.hold_operator and before == ON:
            ends = self._is_on(state)  # what an operator takes back ends what members hold back, too
            freed = Hold(freed=state.epoch + 1)
            return state._replace(hold=freed, ends=None, epoch=state.epoch + 1) if ends else state
        if ends:
            return self._ended(state)
        return state._replace(epoch=state.epoch + 1) if before == ON else state

    # Targets.

    def _targets(self, state: Fleet) -> Iterator[tuple[str, Fleet]]:
        living = tuple(who for who, join in enumerate(state.joins) if join)
        if not self.bounds.slow:
            if living and state.target_epoch < state.epoch:
                yield from self._results(state, Work(state.epoch, living, self._holds(state)))
            return
        if state.work is not None:
            yield from self._results(state._replace(work=None), state.work)
        elif living and state.target_epoch < state.epoch:
            work = Work(state.epoch, living, holding=False)  # what would move is taken out of its result
            yield "an assignment is begun", state._replace(work=work)

    def _holds(self, state: Fleet) -> bool:
        return self._is_on(state) or state.operator == ON

    def _results(self, state: Fleet, work: Work) -> Iterator[tuple[str, Fleet]]:
        for wanted in product(work.members, repeat=self.bounds.partitions):
            after = self._result(state, work, wanted)
            if after is not None:
                yield f"the target of epoch {work.epoch} is {after.target}", self._judged(after)

    def _result(self, state: Fleet, work: Work, wanted: tuple[int, ...]) -> Fleet | None:
        """A target, less members that are gone and what is held back; None: nothing computes it."""
        before = state.target
        lived = tuple(_lives(state, who) for who in before)
        holding = work.holding and self.rules.hold_stays
        if holding and not self.rules.hold_gives:
            wanted = tuple(was if here else -1 for was, here in zip(before, lived, strict=True))
        if holding and any(here and who != to for here, who, to in zip(lived, before, wanted, strict=True)):
            return None
        late = self.bounds.slow and self._holds(state) and self.rules.hold_late
        target = tuple(
            was if here and (late or not _lives(state, to)) else to if _lives(state, to) else -1
            for was, here, to in zip(before, lived, wanted, strict=True)
        )
        free = not holding and not late
        moved = [
            p for p, (was, now) in enumerate(zip(before, target, strict=True)) if lived[p] and was != now
        ]
        if moved and (state.due.on or state.operator == ON):
            state = state._replace(wrong=f"H1 {moved} are taken from who lives, though moves are held back")
        if -1 in target and all(map(state.joins.__getitem__, work.members)):
            state = state._replace(wrong="H6 what nobody has is not given out")
        hold, due = state.hold, state.due
        if free:
            due = due._replace(owed=0)
            if hold is not None and 0 < hold.freed <= work.epoch:
                hold = None
        waits = -1 in target and work.epoch == state.epoch
        return state._replace(
            target=target, target_epoch=work.epoch, epoch=state.epoch + int(waits), hold=hold, due=due
        )

    # What must never be.

    def _judged(self, state: Fleet) -> Fleet:
        if state.wrong:
            return state
        due, wrong = state.due, ""
        if self._is_on(state) and not due.on:
            wrong = "H2 moves are held back though nobody asked for it, or everybody is only starting"
        elif due.on and not self._is_on(state) and state.operator != OFF:
            wrong = "H3 moves are not held back any more, though the time is not over"
        elif due.on and due.left < 0:
            wrong = "H4 moves are held back for longer than any join asked for"
        elif due.owed > LONGEST:
            wrong = "H5 moves are held back for longer than a hold may last, and nothing has moved since"
        return state._replace(wrong=wrong)


def _lives(state: Fleet, who: int) -> bool:
    return who >= 0 and bool(state.joins[who])


def _remaining(hold: Hold) -> int:
    return min(max(hold.until, 0), hold.until - hold.began)


def _spend(state: Fleet, what: int) -> Fleet:
    return state._replace(left=put(state.left, what, state.left[what] - 1))
