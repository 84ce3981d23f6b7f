"""One member id, and several processes that go by it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from model.incremental.rules import Rules
from model.incremental.state import put
from model.quick_replace import quick_replace


@quick_replace
class Life(NamedTuple):
    """The member that has the one id, as the log has it.

    Attributes:
        number: of its join; 0: there is no member.
        process: that joined.
        token: of the one partition; the member has it from its join.
        seq: of its last commit.
        commit: token and number of the last commit of the partition.
        position: of the last record.
    """

    number: int
    process: int
    token: int
    seq: int
    commit: tuple[int, int]
    position: int


@quick_replace
class Runner(NamedTuple):
    """A process that goes by the id.

    Attributes:
        mode: `new`, `out`, `joining`, `waiting` (somebody else has the id), `in` or `stopped`.
        number: of its last join.
        conn: number of its connection in this join.
        up: it is connected.
        token: what it runs.
        seq: number of its last commit in this join.
        asleep: it is paused.
        ousted: a record removed it that it has not heard of.
        over: the join of another process, by its position, that its own means to replace.
    """

    mode: str = "new"
    number: int = 0
    conn: int = 0
    up: bool = False
    token: int = 0
    seq: int = 0
    asleep: bool = False
    ousted: bool = False
    over: int = 0


@quick_replace
class Frame(NamedTuple):
    """A frame of a process to the coordinator: `join`, `resume`, `commit` or `leave`."""

    kind: str
    who: int
    number: int
    conn: int
    token: int = 0
    seq: int = 0
    over: int = 0


@quick_replace
class Scene(NamedTuple):
    """Everything. `attached` is process, join and connection; `seen` the highest number of a connection."""

    life: Life
    runners: tuple[Runner, ...]
    attached: tuple[int, int, int] | None
    seen: int
    late: tuple[Frame, ...]
    left: tuple[int, ...]
    wrong: str = ""


@dataclass(frozen=True)
class IdentityBounds:
    """How large a space of one id is, and how often things happen in it.

    Attributes:
        processes: that go by the id; all come when they like.
        lives: how often each joins.
    """

    processes: int = 2
    lives: int = 2
    breaks: int = 0
    late: int = 0
    commits: int = 0
    leaves: int = 0
    sleeps: int = 0
    ends: int = 0


IDENTITY_BUDGETS = ("breaks", "late", "commits", "leaves", "sleeps", "ends")
(I_BREAKS, I_LATE, I_COMMITS, I_LEAVES, I_SLEEPS, I_ENDS) = range(6)
NONE = Life(0, -1, 0, 0, (0, 0), 0)


class IdentityModel:
    """One member id and several processes that go by it: copies, restarts and forks, each with own counters.

    The id is somebody's choice here: two processes draw none twice. All are on streams; frames of a broken
    one may come later.
    """

    def __init__(self, rules: Rules, bounds: IdentityBounds) -> None:
        self.rules = rules
        self.bounds = bounds

    def initial(self) -> Scene:
        """Nobody has joined."""
        left = tuple(getattr(self.bounds, name) for name in IDENTITY_BUDGETS)
        return Scene(NONE, (Runner(),) * self.bounds.processes, None, 0, (), left)

    def canonical(self, state: Scene) -> Scene:
        """Positions count by their order alone."""
        found = {0, state.life.token, state.life.commit[0]}
        found.update(token for r in state.runners for token in (r.token, r.over))
        found.update(token for f in state.late for token in (f.token, f.over))
        if len(found) - 1 == state.life.position:
            return state
        rank = {position: place for place, position in enumerate(sorted(found))}
        life = state.life
        life = life._replace(
            token=rank[life.token], commit=(rank[life.commit[0]], life.commit[1]), position=len(found) - 1
        )
        runners = tuple(r._replace(token=rank[r.token], over=rank[r.over]) for r in state.runners)
        late = tuple(sorted(f._replace(token=rank[f.token], over=rank[f.over]) for f in state.late))
        return state._replace(life=life, runners=runners, late=late)

    # Small helpers.

    def spend(self, state: Scene, what: int) -> Scene:
        """One less of what may happen."""
        return state._replace(left=put(state.left, what, state.left[what] - 1))

    def change(self, state: Scene, who: int, **what: Any) -> Scene:
        """A process with something changed."""
        return state._replace(runners=put(state.runners, who, state.runners[who]._replace(**what)))

    def is_owner(self, state: Scene, who: int) -> bool:
        """Whether the log has this join of this process."""
        life, runner = state.life, state.runners[who]
        return bool(life.number) and (life.number, life.process) == (runner.number, who)

    # The coordinator.

    def handle(self, state: Scene, frame: Frame) -> tuple[Scene, str]:
        """A frame comes. Returns the name of the answer."""
        if frame.kind == "join":
            return self._on_join(state, frame)
        life = state.life
        named = life.number == frame.number and (life.process == frame.who or not self.rules.pair_named)
        if not named:
            # Somebody else has the id: that process stops for good.
            return state, "replaced" if life.number and life.process != frame.who else "fenced"
        if frame.kind == "resume":
            return self._attach(state, frame), "list"
        if frame.kind == "leave":
            return self._remove(state, frame), "ok"
        return self._commit(state, frame), "ok"

    def _attach(self, state: Scene, frame: Frame) -> Scene:
        if frame.conn < state.seen:
            return state
        return state._replace(attached=(frame.who, frame.number, frame.conn), seen=frame.conn)

    def _on_join(self, state: Scene, frame: Frame) -> tuple[Scene, str]:
        life = state.life
        if life.number:
            same = life.process == frame.who
            if frame.number == life.number and (same or not self.rules.process_named):
                return self._attach(state, frame), "list"
            if frame.number < life.number and (same or not self.rules.own_lives):
                return state, "waiting"
            if not same and (frame.number == life.number or self.rules.own_lives) and state.attached:
                return state, "waiting"
            if not same:
                if self.rules.names_replaced and frame.over != life.token:
                    return state, "waiting"
                state = self._oust(state, life.process, frame)
        position = life.position + 1
        if position <= life.commit[0]:
            state = state._replace(wrong="S3 a token is not above the former ones")
        seq = life.seq if life.number and not self.rules.seq_anew else 0
        seen = state.seen if life.number and not self.rules.conn_anew else 0
        state = state._replace(
            life=life._replace(
                number=frame.number, process=frame.who, token=position, seq=seq, position=position
            ),
            attached=None,
            seen=seen,
        )
        return self._attach(state, frame), "list"

    def _oust(self, state: Scene, who: int, frame: Frame) -> Scene:
        """Another process takes the id over. Whoever had it hears of it when it asks."""
        runner = state.runners[who]
        if runner.mode not in {"joining", "in"} or not self.is_owner(state, who):
            return state
        if state.attached == (who, runner.number, runner.conn) and runner.up and not runner.asleep:
            state = state._replace(wrong=f"S5 process {who}, which lives, is removed by another one")
        other = state.runners[frame.who]
        wants = other.mode in {"joining", "waiting"} and other.number == frame.number
        if not wants and not runner.asleep:
            state = state._replace(wrong=f"S5 process {who} is removed by one that has stopped")
        return self.change(state, who, ousted=True)

    def _remove(self, state: Scene, frame: Frame) -> Scene:
        for who, runner in enumerate(state.runners):
            if runner.mode == "in" and self.is_owner(state, who) and who != frame.who:
                state = state._replace(wrong=f"S5 process {who} is removed by the leave of another one")
        return self._gone(state)

    def _gone(self, state: Scene) -> Scene:
        life = NONE._replace(commit=state.life.commit, position=state.life.position + 1)
        return state._replace(life=life, attached=None, seen=0)

    def _commit(self, state: Scene, frame: Frame) -> Scene:
        life = state.life
        if frame.token != life.token or frame.seq <= life.seq:
            return state
        if frame.who != life.process:
            state = state._replace(wrong="S4 a commit is stored though its owner lost the partition")
        if (frame.token, frame.seq) < life.commit:
            state = state._replace(wrong="S4 a commit is overtaken by an older one")
        return state._replace(
            life=life._replace(seq=frame.seq, commit=(frame.token, frame.seq), position=life.position + 1)
        )

    # Steps.

    def steps(self, state: Scene) -> Iterator[tuple[str, Scene]]:
        """Everything that can happen next."""
        for who, runner in enumerate(state.runners):
            yield from self._steps_of_sleeper(state, who) if runner.asleep else self._steps_of(state, who)
        for place, frame in enumerate(state.late):
            rest = state._replace(late=(*state.late[:place], *state.late[place + 1 :]))
            named = f"{frame.kind} of process {frame.who}, join {frame.number}"
            yield f"{named}, arrives, delayed", self.handle(rest, frame)[0]
        if state.attached:
            who, number, conn = state.attached
            runner = state.runners[who]
            if (runner.number, runner.conn, runner.up) != (number, conn, True) or runner.asleep:
                yield "the coordinator sees that the stream is broken", state._replace(attached=None)
        elif state.life.number and self._may_expire(state):
            yield "the session of the member expires", self._gone(state)

    def _may_expire(self, state: Scene) -> bool:
        """A process that is awake stops by its own clock before its session ends."""
        for who, runner in enumerate(state.runners):
            if self.is_owner(state, who) and runner.mode in {"joining", "in"} and not runner.asleep:
                return False
        return True

    def _steps_of(self, state: Scene, who: int) -> Iterator[tuple[str, Scene]]:
        runner = state.runners[who]
        if runner.mode in {"new", "out"} and runner.number < self.bounds.lives:
            begun = self.change(
                state,
                who,
                mode="joining",
                number=runner.number + 1,
                conn=1,
                up=True,
                seq=0,
                ousted=False,
                over=0,
            )
            yield from self._send(begun, who, "join", f"process {who} joins")
        if runner.mode in {"joining", "waiting"}:
            again = self.change(state, who, mode="joining", conn=self._next(state, who), up=True)
            yield from self._send(again, who, "join", f"process {who} repeats its join")
        if runner.mode != "in":
            return
        if not runner.up:
            again = self.change(state, who, conn=self._next(state, who), up=True)
            yield from self._send(again, who, "resume", f"process {who} resumes")
        elif state.left[I_BREAKS]:
            yield (
                f"the stream of process {who} breaks",
                self.change(self.spend(state, I_BREAKS), who, up=False),
            )
        if runner.up and state.left[I_COMMITS]:
            spent = self.change(self.spend(state, I_COMMITS), who, seq=runner.seq + 1)
            yield from self._send(spent, who, "commit", f"process {who} commits")
        if runner.up and state.left[I_LEAVES]:
            spent = self.spend(state, I_LEAVES)
            yield from self._send(spent, who, "leave", f"process {who} leaves")
        if state.left[I_SLEEPS]:
            yield f"process {who} falls asleep", self.change(self.spend(state, I_SLEEPS), who, asleep=True)
        if not runner.up and state.left[I_ENDS]:
            ended = self.change(self.spend(state, I_ENDS), who, mode="out", token=0, ousted=False)
            yield f"process {who} hears nothing for its life and stops", ended

    def _next(self, state: Scene, who: int) -> int:
        """The number of the next connection: above all of this join that somebody still knows."""
        number = state.runners[who].number
        known = [f.conn for f in state.late if (f.who, f.number) == (who, number)]
        return 1 + max(*known, state.seen if self.is_owner(state, who) else 0, 0, 0)

    def _steps_of_sleeper(self, state: Scene, who: int) -> Iterator[tuple[str, Scene]]:
        runner = state.runners[who]
        if state.left[I_COMMITS]:
            spent = self.change(self.spend(state, I_COMMITS), who, seq=runner.seq + 1)
            yield (
                f"process {who} wakes for a moment and commits",
                self.handle(
                    spent, Frame("commit", who, runner.number, runner.conn, runner.token, runner.seq + 1)
                )[0],
            )
        woken = self.change(state, who, mode="out", asleep=False, up=False, token=0, ousted=False)
        yield f"process {who} wakes and stops", woken

    def _send(self, state: Scene, who: int, kind: str, label: str) -> Iterator[tuple[str, Scene]]:
        """A frame with all that can become of it."""
        runner = state.runners[who]
        over = runner.over if kind == "join" else 0
        frame = Frame(kind, who, runner.number, runner.conn, runner.token, runner.seq, over)
        if kind == "leave":
            state = self.change(state, who, mode="out", up=False, token=0)
        after, answer = self.handle(state, frame)
        yield label, self._hear(after, who, answer)
        if state.left[I_BREAKS]:
            broken = self.change(self.spend(after, I_BREAKS), who, up=False)
            yield f"{label}; the stream breaks before the answer", broken
        if state.left[I_LATE] and frame not in state.late:
            kept = self.spend(state, I_LATE)._replace(late=tuple(sorted((*state.late, frame))))
            yield f"{label}; the stream breaks, the frame is delayed", self.change(kept, who, up=False)
            again, answer = self.handle(kept, frame)
            yield f"{label}; a copy is delayed", self._hear(again, who, answer)

    def _hear(self, state: Scene, who: int, answer: str) -> Scene:
        runner, life = state.runners[who], state.life
        if runner.mode not in {"joining", "in"} or answer == "ok":
            return state
        if answer == "list":
            return self.change(state, who, mode="in", token=life.token, over=0)
        if answer == "waiting":
            return self.change(state, who, mode="waiting", up=False, over=life.token)
        if self.is_owner(state, who):
            state = state._replace(wrong="S5 a member gives up though nobody fenced it")
        mode = "stopped" if answer == "replaced" else "out"
        return self.change(state, who, mode=mode, up=False, token=0, ousted=False)

    # What must hold.

    def broken(self, state: Scene) -> str:
        """Which promise is broken; empty: none."""
        if state.wrong:
            return state.wrong
        life = state.life
        for who, runner in enumerate(state.runners):
            if not runner.token:
                continue
            if self.is_owner(state, who) and runner.token == life.token and life.seq > runner.seq:
                return f"S7 the next commit of process {who}, which is the owner, will be refused"
            if runner.asleep or runner.ousted:
                continue
            if not self.is_owner(state, who) or runner.token != life.token:
                return f"S1 process {who} runs the partition, which is not its own"
        return ""

    def settled(self, state: Scene) -> bool:
        """Whoever has the id is there and works; the others have stopped or wait for it."""
        if state.life.number == 0:
            return all(r.mode in {"new", "out", "stopped"} for r in state.runners)
        who = state.life.process
        runner = state.runners[who]
        there = state.attached == (who, runner.number, runner.conn) and runner.mode == "in" and runner.up
        others = (r for place, r in enumerate(state.runners) if place != who)
        return (
            there
            and not runner.asleep
            and runner.token == state.life.token
            and all(r.mode in {"new", "out", "stopped", "waiting"} for r in others)
        )
