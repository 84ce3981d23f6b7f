"""What a process does: with what it hears, and by itself."""

from collections.abc import Iterator

from model.incremental.batch import Batch
from model.incremental.coordinator import Coordinator
from model.incremental.state import (
    BREAKS,
    COMMITS,
    ENDS,
    EXTRAS,
    FENCES,
    HANGS,
    JOINS,
    LATE,
    LEAVES,
    LOSSES,
    SLEEPS,
    Message,
    Process,
    State,
    Step,
    change,
    delay,
    put,
    spend,
)


class Processes:
    """The members as processes.

    Args:
        coordinator: whom they call.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.rules = coordinator.rules
        self.bounds = coordinator.bounds

    def hear(self, state: State, message: Message, *, delayed: bool = False) -> State:
        """An answer comes; one that was delayed may be of a coordinator that is gone."""
        who, process = message.who, state.processes[message.who]
        if process.mode not in {"in", "joining"}:
            return state
        if self.rules.fresh_answer and message.era != process.era and who in self.bounds.unary:
            return state
        if self.rules.newest_coordinator and message.load < process.load:
            return state
        state = change(state, who, load=max(message.load, process.load))
        if message.kind in FENCES:
            if who not in self.bounds.unary and message.join != process.join:
                return state
            member = state.group.members[who]
            if (
                process.mode == "in"
                and member
                and member.join == process.join
                and not (process.ousted or process.over or process.unsure)
            ):
                state = state._replace(wrong=state.wrong or "S5 a member gives up though nobody fenced it")
            mode = "out" if message.kind == "fenced" else "stopped"
            return change(
                state,
                who,
                mode=mode,
                owns=self.bounds.nothing,
                news=None,
                over=False,
                hung=False,
                ousted=False,
                unsure=False,
                era=process.era + 1 if who in self.bounds.unary else 0,
            )
        if message.join != process.join or (self.rules.newest and message.version < process.version):
            return state
        if process.over and process.dead:
            return state
        settled = process.settled if delayed else not process.dead
        if message.kind == "same":
            unsure = process.unsure and not settled
            return change(state, who, epoch=message.epoch, settled=settled, over=False, unsure=unsure)
        news = None if message.owned == process.owns else message.owned
        return change(
            state,
            who,
            mode="in",
            epoch=message.epoch,
            version=message.version,
            news=news,
            settled=settled,
            over=False,
            unsure=process.unsure and (not settled or news is not None),
        )

    def request(self, state: State, who: int, kind: str) -> Message:
        """What a process sends: always its join, epoch, version and list."""
        process = state.processes[who]
        owned = tuple(int(bool(token)) for token in process.owns)
        version = 0 if process.over and self.rules.forgets_version else process.version
        return Message(kind, who, process.join, process.conn, process.epoch, version, owned, era=process.era)

    def _send(self, state: State, who: int, message: Message, label: str) -> Iterator[Step]:
        """A process sends: on its stream, or as a unary call with all that can become of it."""
        if who not in self.bounds.unary:
            process = state.processes[who]
            if process.conn and not process.dead and len(state.up[who]) < self.bounds.room + 1:
                yield label, state._replace(up=put(state.up, who, (*state.up[who], message)))
            return
        after, answer = self.coordinator.handle(state, message)
        yield label, self.hear(after, answer) if answer else after
        if state.left[LATE]:
            copied = delay(state, message)
            if message not in state.late:
                yield f"{label}; the request is delayed", copied
                again, answer = self.coordinator.handle(copied, message)
                yield f"{label}; a copy is delayed", self.hear(again, answer) if answer else again
            if answer:
                yield f"{label}; its answer is delayed", delay(after, answer)
        if state.left[LOSSES] and after is not state:
            yield f"{label}; its answer is lost", spend(after, LOSSES)

    def steps(self, state: State, who: int, process: Process) -> Iterator[Step]:
        """Everything that a process can do next."""
        unary = who in self.bounds.unary
        if process.asleep:
            yield from self._steps_of_sleeper(state, who, process)
            return
        if process.mode == "out" and (state.left[JOINS] or process.join):
            yield from self._join(state, who, process)
        if process.mode == "joining" and (unary or not process.conn):
            yield from self._retry_join(state, who)
        elif process.mode == "joining" and self.bounds.waits and not (process.dead or state.up[who]):
            again = self.request(state, who, "join")
            yield from self._send(state, who, again, f"process {who} asks for its place again")
        if not unary:
            yield from self._steps_of_connection(state, who, process)
        if process.mode != "in":
            return
        if process.news is not None and not process.hung:
            yield from self._apply(state, who, process, process.news)
        if unary:
            yield from self._unary_beats(state, who, process)
        yield from self._beats(state, who, process)
        if not process.over:
            yield from self._commits(state, who, process)
            yield from self._leaves(state, who, process)
        if state.left[SLEEPS]:
            yield f"process {who} falls asleep", change(spend(state, SLEEPS), who, asleep=True)
        loses = process.news and any(t and not n for t, n in zip(process.owns, process.news, strict=True))
        if state.left[HANGS] and loses and not process.hung:
            yield f"process {who} hangs", change(spend(state, HANGS), who, hung=True)

    def _unary_beats(self, state: State, who: int, process: Process) -> Iterator[Step]:
        """Heartbeats while they can bring news, with a list and without."""
        if state.left[ENDS] and not process.over:
            ended = change(
                spend(state, ENDS), who, owns=self.bounds.nothing, news=None, over=True, era=process.era + 1
            )
            yield f"process {who} hears nothing for its life and stops", ended
        if not (
            process.version != self._version(state, who)
            or process.over
            or not self._settled_member(state, who)
        ):
            return
        beat = self.request(state, who, "beat")
        yield from self._send(state, who, beat, f"process {who} beats with its list")
        if not process.over:
            absent = beat._replace(owned=())
            yield from self._send(state, who, absent, f"process {who} beats without a list")

    def _beats(self, state: State, who: int, process: Process) -> Iterator[Step]:
        """Lists that are sent without need, or again because the coordinator has not heard one."""
        beat = self.request(state, who, "beat")
        if state.left[EXTRAS] and process.settled and not process.over:
            yield from self._send(spend(state, EXTRAS), who, beat, f"process {who} sends its list")
        streams = who not in self.bounds.unary and not process.dead and process.settled
        if streams and self._wants_ack(state, who, process):
            yield from self._send(state, who, beat, f"process {who} acknowledges again")

    def _commits(self, state: State, who: int, process: Process) -> Iterator[Step]:
        if not state.left[COMMITS]:
            return
        for partition, token in enumerate(process.owns):
            if token:
                spent = change(spend(state, COMMITS), who, seq=process.seq + 1)
                commit = self.request(spent, who, "commit")
                commit = commit._replace(commit=(partition, token, process.seq + 1), owned=(), version=0)
                yield from self._send(spent, who, commit, f"process {who} commits {partition}")

    def _leaves(self, state: State, who: int, process: Process) -> Iterator[Step]:
        if not state.left[LEAVES]:
            return
        for kind in ("leave", "away") if who in self.bounds.instance else ("leave",):
            gone = change(
                spend(state, LEAVES),
                who,
                mode="out",
                owns=self.bounds.nothing,
                news=None,
                ousted=False,
                hung=False,
                era=process.era + 1 if who in self.bounds.unary else 0,
            )
            leave = self.request(state, who, kind)
            yield from self._send(gone, who, leave, f"process {who} goes ({kind})")

    def _version(self, state: State, who: int) -> int:
        member = state.group.members[who]
        return member.version if member else 1 << 30

    def _settled_member(self, state: State, who: int) -> bool:
        """Nothing more would change by a unary heartbeat."""
        member = state.group.members[who]
        if member is None:
            return False
        batch = Batch(self.rules, self.bounds, state.group)
        batch.reconcile(who)
        return not batch.records and not any(member.taken)

    def _wants_ack(self, state: State, who: int, process: Process) -> bool:
        """The coordinator still waits for something that the process has done, and nothing is under way."""
        member = state.group.members[who]
        return bool(
            member
            and any(taken and not process.owns[p] for p, taken in enumerate(member.taken))
            and process.news is None
            and not state.up[who]
        )

    def _join(self, state: State, who: int, process: Process) -> Iterator[Step]:
        free = process.join > 0 and process.join < self.bounds.lives
        if not free and not state.left[JOINS]:
            return
        begun = state if free else spend(state, JOINS)
        begun = change(
            begun,
            who,
            mode="joining",
            join=process.join + 1,
            epoch=0,
            version=0,
            over=False,
            ousted=False,
            seq=0,
        )
        if who in self.bounds.unary:
            yield from self._send(begun, who, self.request(begun, who, "join"), f"process {who} joins")
            return
        if process.conn and not process.dead:
            yield from self._send(begun, who, self.request(begun, who, "join"), f"process {who} joins")
        else:
            begun = self._connect(begun, who)
            yield from self._send(
                begun, who, self.request(begun, who, "join"), f"process {who} connects and joins"
            )

    def _retry_join(self, state: State, who: int) -> Iterator[Step]:
        if who not in self.bounds.unary:
            state = self._connect(state, who)
        yield from self._send(state, who, self.request(state, who, "join"), f"process {who} repeats its join")

    def _connect(self, state: State, who: int) -> State:
        process = state.processes[who]
        state = change(
            state,
            who,
            conn=process.conn + 1 if process.conn else self._next(state, who),
            dead=False,
            settled=False,
        )
        return state._replace(up=put(state.up, who, ()), down=put(state.down, who, ()))

    def _next(self, state: State, who: int) -> int:
        return 1 + max(
            state.seen[who],
            state.attached[who],
            state.processes[who].era,
            *(m.conn for m in state.late if m.who == who),
            0,
        )

    def _steps_of_connection(self, state: State, who: int, process: Process) -> Iterator[Step]:
        if who in self.bounds.shared:
            yield from self._breaks_for_all(state, who)
        elif process.conn and not process.dead and state.left[BREAKS]:
            broken = change(spend(state, BREAKS), who, dead=True, settled=False)
            yield f"the stream of process {who} breaks", broken._replace(up=put(state.up, who, ()))
            if state.up[who] and state.left[LATE] and state.up[who][0] not in state.late:
                kept = delay(broken, state.up[who][0])
                yield (
                    f"the stream of process {who} breaks with a frame in a buffer",
                    kept._replace(up=put(state.up, who, ())),
                )
        if process.conn and process.dead:
            gone = change(state, who, conn=0, dead=False, settled=False, era=process.conn)
            yield (
                f"process {who} notices that its stream is broken",
                gone._replace(down=put(state.down, who, ())),
            )
        if process.mode == "in" and not process.conn:
            again = self._connect(state, who)
            yield from self._send(again, who, self.request(again, who, "resume"), f"process {who} resumes")
        if process.mode == "in" and not process.settled and not process.over and state.left[ENDS]:
            ended = change(
                spend(state, ENDS),
                who,
                owns=self.bounds.nothing,
                news=None,
                over=True,
                conn=0,
                dead=False,
                hung=False,
                era=max(process.conn, process.era),
            )
            ended = ended._replace(up=put(state.up, who, ()), down=put(state.down, who, ()))
            yield f"process {who} hears nothing for its life and stops", ended

    def _breaks_for_all(self, state: State, who: int) -> Iterator[Step]:
        """The stream that several are on breaks; a frame of one of them may be in a buffer."""
        on_it = [w for w in self.bounds.shared if state.processes[w].conn and not state.processes[w].dead]
        if not on_it or who != on_it[0] or not state.left[BREAKS]:
            return
        broken = spend(state, BREAKS)
        for one in on_it:
            broken = change(broken, one, dead=True, settled=False)
            broken = broken._replace(up=put(broken.up, one, ()))
        yield f"the stream of the processes {on_it} breaks", broken
        for one in on_it:
            if state.up[one] and state.left[LATE] and state.up[one][0] not in state.late:
                kept = delay(broken, state.up[one][0])
                yield f"the stream of the processes {on_it} breaks with a frame of {one} in a buffer", kept

    def _apply(self, state: State, who: int, process: Process, news: tuple[int, ...]) -> Iterator[Step]:
        """Gives up what is not on the list any more, starts what is new, and says so."""
        unsure = process.unsure and not process.settled
        done = change(state, who, owns=news, news=None, unsure=unsure)
        if not self.rules.stop_first and any(t and not n for t, n in zip(process.owns, news, strict=True)):
            early = self.request(done, who, "beat")
            yield from self._send(state, who, early, f"process {who} acknowledges before it stops")
            return
        sent = False
        for step in self._send(
            done, who, self.request(done, who, "beat"), f"process {who} applies and acknowledges"
        ):
            sent = True
            yield step
        if not sent:
            yield f"process {who} applies its list", done

    def _steps_of_sleeper(self, state: State, who: int, process: Process) -> Iterator[Step]:
        unary = who in self.bounds.unary
        if state.left[COMMITS]:
            for partition, token in enumerate(process.owns):
                if token:
                    spent = change(spend(state, COMMITS), who, seq=process.seq + 1)
                    commit = Message(
                        "commit",
                        who,
                        process.join,
                        0,
                        process.epoch,
                        0,
                        (),
                        (partition, token, process.seq + 1),
                    )
                    yield (
                        f"process {who} wakes for a moment and commits {partition}",
                        self.coordinator.handle(spent, commit)[0],
                    )
        woken = change(
            state,
            who,
            asleep=False,
            owns=self.bounds.nothing,
            news=None,
            over=True,
            conn=0,
            dead=False,
            settled=False,
            era=process.era + 1 if unary else max(process.conn, process.era),
        )
        yield (
            f"process {who} wakes and stops",
            woken._replace(up=put(state.up, who, ()), down=put(state.down, who, ())),
        )
