"""The coordinator: a function of the log, which may die between two records."""

from collections.abc import Callable

from model.incremental.batch import Batch
from model.incremental.canonical import is_plain
from model.incremental.rules import Rules
from model.incremental.state import (
    ANSWERS,
    CUTS,
    NOBODY,
    Bounds,
    Group,
    Member,
    Message,
    State,
    change,
    put,
    spend,
)


class Coordinator:
    """Answers requests, and writes what follows from them.

    Args:
        rules: of the walk.
        bounds: of the walk.

    Attributes:
        halved: only what a request asks for is stored, not what follows from it.
    """

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self.plain = is_plain(rules, bounds)
        self.halved = False
        self._handlers: dict[str, Callable[[State, Message], tuple[State, bool]]] = {
            "join": self._on_join,
            "beat": self._on_beat,
            "resume": self._on_beat,
            "leave": self._on_leave,
            "away": self._on_leave,
            "commit": self._on_commit,
        }

    def write(self, state: State, batch: Batch, asked_by: int | None = None) -> State:
        """Stores a decision and notes whom to tell."""
        if self.halved:
            return state._replace(group=batch.group(), wrong=state.wrong or batch.wrong)
        freed = any(record[0] in {"release", "remove", "leave_for_a_while"} for record in batch.records)
        if self.rules.wake or not freed:
            # Twice: what one of them, who is away, gives back may be what one before it waits for.
            for who in (*self.bounds.streams, *self.bounds.streams):
                batch.reconcile(who)
        if asked_by is not None:
            batch.reconcile(asked_by)
        if not batch.records:
            return state
        group = batch.group()
        if state.computing == NOBODY and group.epoch != state.group.epoch:
            state = state._replace(computing=None)
        dirty = self._told(state, batch, group)
        timers = self._deadlines(state, group) if self.bounds.is_timed else state.timers
        state = state._replace(group=group, dirty=dirty, timers=timers, wrong=state.wrong or batch.wrong)
        return self._judge_releases(state, batch)

    def _told(self, state: State, batch: Batch, group: Group) -> tuple[bool, ...]:
        """Who is to be told something."""
        dirty = list(state.dirty)
        for who, (before, member) in enumerate(zip(state.group.members, group.members, strict=True)):
            if member is None or who in self.bounds.unary:
                continue
            if before is None or (before.join, before.version) != (member.join, member.version):
                dirty[who] = True
                anew = member.away or ("rejoin", who, member.join) in batch.records
                if before and not anew and self.list_of(before) == self.list_of(member):
                    batch.fail(f"L4 process {who} is told something though its list stays")
        return tuple(dirty)

    def _deadlines(self, state: State, group: Group) -> tuple[tuple[int, int, int], ...]:
        """The revocation deadlines after a change of the group."""
        timers = state.timers
        for who, (before, member) in enumerate(zip(state.group.members, group.members, strict=True)):
            if member and any(member.taken):
                if before and before.taken == member.taken:
                    continue
                timer = (who, 0 if self.plain else member.epoch, max(member.taken))
                named = self.rules.deadline_named
                timers = (*(t for t in timers if t != timer and not (named and t[0] == who)), timer)
            elif self.rules.deadline_named:
                timers = tuple(t for t in timers if t[0] != who)
        return timers

    def _judge_releases(self, state: State, batch: Batch) -> State:
        """Nothing is released that its owner still runs."""
        for record in batch.records:
            if record[0] != "release":
                continue
            _, who, partition = record
            process, member = state.processes[who], batch.began.members[who]
            if member and process.owns[partition] and process.owns[partition] == member.held[partition]:
                return state._replace(
                    wrong=state.wrong or f"S5 {partition} is freed though process {who} still runs it"
                )
        return state

    def batch(self, state: State) -> Batch:
        """A decision to be made."""
        return Batch(self.rules, self.bounds, state.group)

    def answer(self, state: State, who: int, era: int = 0) -> Message:
        """The newest answer for a member: always its complete list."""
        member = state.group.members[who]
        assert member is not None
        epoch = 0 if self.plain else member.epoch
        return Message(
            "list",
            who,
            member.join,
            0,
            epoch,
            member.version,
            self.list_of(member),
            era=era,
            load=self._load(state),
        )

    def _load(self, state: State) -> int:
        """Which coordinator this is, of those that loaded a log without its end."""
        return self.bounds.cuts - state.left[CUTS]

    def list_of(self, member: Member) -> tuple[int, ...]:
        """What a member has and need not give back."""
        return tuple(0 if taken else token for token, taken in zip(member.held, member.taken, strict=True))

    def attach(self, state: State, message: Message) -> State:
        """A member is on the stream that its message came by."""
        if not message.conn:
            return state
        who = message.who
        if self.rules.attach_numbered and message.conn < state.seen[who]:
            return state
        return state._replace(
            attached=put(state.attached, who, message.conn),
            seen=put(state.seen, who, max(message.conn, state.seen[who])),
            dirty=put(state.dirty, who, True),
        )

    def handle(self, state: State, message: Message) -> tuple[State, Message | None]:
        """A request comes. Returns the answer of a unary call; on a stream it is pushed."""
        who = message.who
        before = state.group.members[who]
        state, fenced = self._handlers[message.kind](state, message)
        if fenced:
            answer = Message(
                self._fence(state, who), who, message.join, era=message.era, load=self._load(state)
            )
            process = state.processes[who]
            if message.conn and message.conn == process.conn and not process.dead:
                state = state._replace(down=put(state.down, who, (*state.down[who], answer)))
            return state, answer
        if state.group.members[who] and message.kind not in {"leave", "away", "commit"}:
            answer = self.answer(state, who, message.era)
            if message.kind == "beat" and before:
                named = message.version if self.rules.present_version else before.version
                if named == answer.version:
                    answer = answer._replace(kind="same", owned=())
            return state, answer
        return state, None

    def _on_join(self, state: State, message: Message) -> tuple[State, bool]:
        who, member = message.who, state.group.members[message.who]
        batch = self.batch(state)
        if member and message.join < member.join and self.rules.join_named:
            return state, True
        if member and message.join == member.join and self.rules.join_retried:
            state = self.attach(state, message)
            return self.write(state, batch, who), False
        holder = self._holder_of_instance(state, who)
        before = state.group.members[holder] if holder is not None else None
        if holder is not None and not member and self.bounds.waits and self._lives(state, holder):
            if self.rules.living_holder:
                return state, False
            state = state._replace(wrong=state.wrong or "S9 a living process loses its static id to another")
        if member:
            for partition, taken in enumerate(member.taken):
                if taken:
                    batch.add("release", who, partition)
            batch.add("rejoin", who, message.join)
        elif holder is not None:
            batch.add("replace", holder, who, message.join)
        else:
            batch.add("join", who, message.join)
            batch.add("bump")
        state = self.write(state, batch, who)
        if holder is not None and before and not member:
            state = self.oust(state, holder, before.join)
        return self.attach(state, message), False

    def _lives(self, state: State, who: int) -> bool:
        """Whether a member is on a stream, as far as the coordinator knows."""
        member = state.group.members[who]
        return bool(state.attached[who] and member and not member.away)

    def holds_its_place(self, state: State, who: int) -> bool:
        """Whether another process has the static id of one that waits for it."""
        return self.bounds.waits and self._holder_of_instance(state, who) is not None

    def _holder_of_instance(self, state: State, who: int) -> int | None:
        if who not in self.bounds.instance:
            return None
        for other in self.bounds.instance:
            if other != who and state.group.members[other]:
                return other
        return None

    def oust(self, state: State, who: int, join: int) -> State:
        """A process is fenced by a record that it has not heard of: it is told, if it can be."""
        process = state.processes[who]
        if process.mode in {"in", "joining"} and process.join == join:
            state = change(state, who, ousted=True)
        if state.attached[who] and state.attached[who] == process.conn and not process.dead:
            told = Message(self._fence(state, who), who, join, load=self._load(state))
            state = state._replace(down=put(state.down, who, (*state.down[who], told)))
        return state._replace(attached=put(state.attached, who, 0), dirty=put(state.dirty, who, False))

    def _fence(self, state: State, who: int) -> str:
        """A process whose static id has another one stops for good; every other may join again."""
        return "fenced" if self._holder_of_instance(state, who) is None else "replaced"

    def _on_beat(self, state: State, message: Message) -> tuple[State, bool]:
        who, member = message.who, state.group.members[message.who]
        if member is None or member.away:
            return state, True
        if self.rules.join_named and message.join != member.join:
            return state, True
        if self.rules.lost_log and message.version > member.version:
            return state, True
        if self._is_refused(message, member):
            process = state.processes[who]
            present = process.mode == "in" and process.join == member.join
            if present and message.version == process.version:
                state = state._replace(wrong="S5 a member is refused that nobody removed")
            return state, True
        if message.kind == "resume":
            before = state
            state = self.attach(state, message)
            if state is before:
                return state, False
        batch = self.batch(state)
        for partition in self._freed(state, message, member):
            batch.add("release", who, partition)
        return self.write(state, batch, who), False

    def _is_refused(self, message: Message, member: Member) -> bool:
        """Whether a request is refused for the epoch that it names."""
        judged = message.kind == "resume" or message.who in self.bounds.unary
        if self.rules.never_judged and (self.rules.resume_any or not judged):
            return False
        inside = bool(message.owned) and all(
            not owned or (member.held[p] and not member.taken[p]) for p, owned in enumerate(message.owned)
        )
        return message.epoch != member.epoch and not (message.epoch == member.before and inside)

    def _freed(self, state: State, message: Message, member: Member) -> list[int]:
        """The partitions that a list gives back."""
        owned = message.owned
        if not owned:
            if self.rules.absent_list:
                return []
            owned = self.bounds.nothing
        freed = [
            p
            for p, taken in enumerate(member.taken)
            if taken and not owned[p] and self._frees(message, member, p)
        ]
        if not self.rules.no_shortcut:
            target = state.group.target
            freed += [
                p
                for p, token in enumerate(member.held)
                if token and target[p] != message.who and not member.taken[p] and not owned[p]
            ]
        return freed

    def _frees(self, message: Message, member: Member, partition: int) -> bool:
        """Whether a list that lacks a partition, which was taken away, gives it back."""
        if self.rules.version:
            return message.version >= member.taken[partition]
        if self.rules.instead == "version of the gift":
            return message.version >= member.held[partition]
        if self.rules.instead == "present epoch":
            return message.epoch == member.epoch
        return message.epoch <= member.epoch

    def _on_leave(self, state: State, message: Message) -> tuple[State, bool]:
        who, member = message.who, state.group.members[message.who]
        if member is None:
            return state, False
        process = state.processes[who]
        if not self.rules.leave_any:
            good = message.epoch == member.epoch
        elif not self.rules.leave_named:
            good = message.epoch <= member.epoch
        else:
            good = message.join == member.join
        if not good:
            if message.join == member.join:
                state = state._replace(wrong="S5 a leave of the present life is refused")
            return state, False
        if process.mode in {"in", "joining"} and process.join == member.join:
            return state._replace(wrong="S5 a member is removed by a leave of its former life"), False
        batch = self.batch(state)
        if message.kind == "away":
            batch.add("leave_for_a_while", who)
        else:
            batch.add("remove", who)
            batch.add("bump")
        state = self.write(state, batch)
        return state._replace(attached=put(state.attached, who, 0), dirty=put(state.dirty, who, False)), False

    def _on_commit(self, state: State, message: Message) -> tuple[State, bool]:
        if not self._commit_is_good(state, message):
            return state, False
        if not self.rules.commit_in_line:
            return (state._replace(checked=message) if state.checked is None else state), False
        return self.store_commit(state, message), False

    def _commit_is_good(self, state: State, message: Message) -> bool:
        who, (partition, token, seq) = message.who, message.commit
        member = state.group.members[who]
        if member is None or (self.rules.commit_seq and seq <= member.seq):
            return False
        if self.rules.commit_equal:
            return member.held[partition] == token
        return token >= state.group.commits[partition][0]

    def store_commit(self, state: State, message: Message) -> State:
        batch = self.batch(state)
        batch.add("commit", message.who, *message.commit)
        return state._replace(group=batch.group(), wrong=state.wrong or batch.wrong)

    def take_over(self, state: State) -> State:
        """Another coordinator loads the log. Answers of the old one are still under way; nothing to it is."""
        many = self.bounds.processes
        processes = tuple(p._replace(dead=True, settled=False) if p.conn else p for p in state.processes)
        timers: tuple[tuple[int, int, int], ...] = ()
        if self.rules.deadline_anew and self.bounds.is_timed:
            timers = tuple(
                (who, 0 if self.plain else member.epoch, max(member.taken))
                for who, member in enumerate(state.group.members)
                if member and any(member.taken)
            )
        late = tuple(m for m in state.late if m.kind in ANSWERS)
        if not self.rules.snapshot_places:
            state = state._replace(group=self._loaded_anew(state.group))
        computing = None if self.rules.target_after_load else NOBODY
        return state._replace(
            processes=processes,
            attached=(0,) * many,
            seen=(0,) * many,
            dirty=(False,) * many,
            timers=timers,
            up=((),) * many,
            late=late,
            computing=computing,
            checked=None,
        )

    @staticmethod
    def _loaded_anew(group: Group) -> Group:
        """The group as a snapshot without places gives it: they are all that of the snapshot."""
        place = group.position
        members = tuple(
            member and member._replace(held=tuple(place if token else 0 for token in member.held))
            for member in group.members
        )
        return group._replace(members=members)

    def cut(self, state: State) -> State:
        """Another coordinator loads a log that lacks the last decisions, which were shown."""
        past = state.past
        assert past is not None
        position = state.group.position if self.rules.positions_go_on else past.position
        processes = tuple(
            p._replace(
                unsure=p.mode in {"in", "joining"},
                settled=False,
                ousted=p.ousted and not (member and member.join == p.join),
            )
            for p, member in zip(state.processes, past.members, strict=True)
        )
        lost = spend(state, CUTS)._replace(
            group=past._replace(position=position), past=None, processes=processes
        )
        return self.take_over(lost)
