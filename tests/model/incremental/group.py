"""A model of an incremental group."""

from collections.abc import Iterator
from itertools import product

from model.incremental.batch import Batch
from model.incremental.canonical import Canonical
from model.incremental.coordinator import Coordinator
from model.incremental.processes import Processes
from model.incremental.rules import Rules
from model.incremental.state import (
    ANSWERS,
    BUDGETS,
    CRASHES,
    CUTS,
    DEADLINES,
    DELETIONS,
    ENDS,
    INPUTS,
    NEW_TARGET,
    NOBODY,
    OUT_OF_DATE,
    REMOVALS,
    Bounds,
    Group,
    Member,
    Message,
    Process,
    State,
    Step,
    put,
    spend,
)


class GroupModel:
    """The rules, as steps from state to state.

    Args:
        rules: all, or all but one.
        bounds: how large the space is.
    """

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self._canonical = Canonical(rules, bounds)
        self._coordinator = Coordinator(rules, bounds)
        self._processes = Processes(self._coordinator)

    def canonical(self, state: State) -> State:
        """See `Canonical`."""
        return self._canonical.of(state)

    def initial(self) -> State:
        """The first processes are members, and have what the target gives them."""
        bounds = self.bounds
        many = bounds.processes
        target = bounds.gives or tuple(
            p % bounds.members if bounds.members else -1 for p in range(bounds.partitions)
        )
        batch = Batch(
            self.rules,
            bounds,
            Group(0, 0, (-1,) * bounds.partitions, (None,) * many, ((0, 0),) * bounds.partitions, 0),
        )
        for who in range(bounds.members):
            batch.add("join", who, 1)
        if bounds.members:
            batch.add("bump")
            batch.add("target", batch.epoch, target)
            if -1 in target:
                batch.add("bump")
        for who in range(bounds.members):
            batch.reconcile(who)
        batch.wrong = ""
        group = batch.group()
        processes, attached = [], []
        for who in range(many):
            member = group.members[who]
            if member is None:
                processes.append(Process(owns=self.bounds.nothing))
                attached.append(0)
                continue
            conn = 0 if who in bounds.unary else 1
            processes.append(
                Process("in", 1, member.epoch, member.version, member.held, None, conn, settled=True)
            )
            attached.append(conn)
        empty = ((),) * many
        left = tuple(getattr(bounds, name) for name in BUDGETS)
        return State(
            group,
            tuple(processes),
            tuple(attached),
            tuple(attached),
            (False,) * many,
            (),
            empty,
            empty,
            (),
            None,
            None,
            left,
        )

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that can happen next."""
        for who, process in enumerate(state.processes):
            yield from self._processes.steps(state, who, process)
        yield from self._steps_of_network(state)
        yield from self._steps_of_coordinator(state)

    def _steps_of_network(self, state: State) -> Iterator[Step]:
        for who in self.bounds.streams:
            if state.up[who]:
                rest = state._replace(up=put(state.up, who, state.up[who][1:]))
                message = state.up[who][0]
                yield f"{self._show(message)} arrives", self._coordinator.handle(rest, message)[0]
                if state.left[CRASHES] and message.kind in {"beat", "leave", "away"}:
                    yield from self._halved(rest, message)
                if not self.rules.stored_first and state.left[CRASHES]:
                    yield from self._shown_and_lost(rest, message)
            if state.down[who] and not state.processes[who].asleep:
                rest = state._replace(down=put(state.down, who, state.down[who][1:]))
                yield (
                    f"process {who} hears {self._show(state.down[who][0])}",
                    self._processes.hear(rest, state.down[who][0]),
                )
        for place, message in enumerate(state.late):
            if place and state.late[place - 1] == message:
                continue
            rest = state._replace(late=(*state.late[:place], *state.late[place + 1 :]))
            if message.kind in ANSWERS:
                yield (
                    f"process {message.who} hears {self._show(message)}, delayed",
                    self._processes.hear(rest, message, delayed=True),
                )
            else:
                yield f"{self._show(message)} arrives, delayed", self._coordinator.handle(rest, message)[0]

    def _halved(self, state: State, message: Message) -> Iterator[Step]:
        """What a request frees is stored; what follows from it is not."""
        self._coordinator.halved = True
        after, _ = self._coordinator.handle(state, message)
        self._coordinator.halved = False
        if after.group != state.group:
            label = f"{self._show(message)} arrives, what it frees is stored, and the coordinator dies"
            yield label, self._coordinator.take_over(spend(after, CRASHES))

    def _shown_and_lost(self, state: State, message: Message) -> Iterator[Step]:
        after, _ = self._coordinator.handle(state, message)
        shown = self._push_all(after)
        if shown.down != state.down:
            lost = self._coordinator.take_over(spend(shown, CRASHES)._replace(group=state.group))
            yield (
                f"{self._show(message)} arrives, news are pushed, the record is lost with the coordinator",
                lost,
            )

    def _push_all(self, state: State) -> State:
        for who in self.bounds.streams:
            state = next((pushed for _, pushed in self._push(state, who)), state)
        return state

    def _push(self, state: State, who: int) -> Iterator[Step]:
        process, member = state.processes[who], state.group.members[who]
        if not state.dirty[who] or not state.attached[who] or member is None:
            return
        clean = state._replace(dirty=put(state.dirty, who, False))
        if state.attached[who] != process.conn or process.dead:
            yield f"a push for process {who} goes nowhere", clean
        elif len(state.down[who]) < self.bounds.room:
            news = self._coordinator.answer(state, who)
            yield (
                f"the news for process {who} are pushed",
                clean._replace(down=put(state.down, who, (*state.down[who], news))),
            )

    def _show(self, message: Message) -> str:
        tokens = (
            ""
            if not message.owned
            else " " + "".join(str(p) if t else "-" for p, t in enumerate(message.owned))
        )
        if message.kind == "commit":
            return f"the commit of process {message.who} for {message.commit[0]}"
        named = f"join {message.join}, epoch {message.epoch}, version {message.version}"
        return f"{message.kind}(process {message.who}, {named}{tokens})"

    def _steps_of_coordinator(self, state: State) -> Iterator[Step]:
        group = state.group
        for who in self.bounds.streams:
            yield from self._push(state, who)
            if state.attached[who] and self._is_broken(state, who):
                yield (
                    f"the coordinator sees that the stream of process {who} is broken",
                    self._broken_off(state, who),
                )
        for who, member in enumerate(group.members):
            if member:
                yield from self._expire(state, who, member)
        yield from self._removals(state)
        if self.rules.deadline:
            yield from self._deadlines(state)
        if state.left[INPUTS] or self.bounds.storm:
            batch = self._coordinator.batch(state)
            batch.add("bump")
            spent = state if self.bounds.storm else spend(state, INPUTS)
            yield "an input of the assignment changes", self._coordinator.write(spent, batch)
        if (group.target_epoch < group.epoch or state.computing) and any(group.members):
            yield from self._targets(state)
        if state.left[CRASHES]:
            yield (
                "the coordinator dies, another one loads",
                self._coordinator.take_over(spend(state, CRASHES)),
            )
        if state.left[CUTS] and state.past is None:
            yield "what is stored from here on may be lost", state._replace(past=group)
        elif state.left[CUTS] and state.past and state.past.position != group.position:
            yield "the coordinator dies, and the log loses its end", self._coordinator.cut(state)
        if state.checked is not None:
            stored = self._coordinator.store_commit(state._replace(checked=None), state.checked)
            yield f"{self._show(state.checked)}, checked before, is stored", stored

    def _is_broken(self, state: State, who: int) -> bool:
        """Whether the connection on which the coordinator has a process is of no use any more."""
        process = state.processes[who]
        return state.attached[who] != process.conn or process.dead or process.asleep

    def _broken_off(self, state: State, who: int) -> State:
        """The coordinator sees the end of a stream: whoever is on it is on none; with them may go others."""
        shared = self.bounds.shared if who in self.bounds.shared else (who,)
        attached = state.attached
        for one in shared:
            if one == who or not self.rules.break_named or (attached[one] and self._is_broken(state, one)):
                attached = put(attached, one, 0)
        return state._replace(attached=attached)

    def _targets(self, state: State) -> Iterator[Step]:
        group = state.group
        living = tuple(who for who, member in enumerate(group.members) if member)
        if state.computing == NOBODY:
            return
        epoch = group.epoch
        if self.bounds.slow_target:
            if state.computing is None:
                yield "an assignment is begun", state._replace(computing=(group.epoch, living))
                return
            epoch, living = state.computing
            state = state._replace(computing=None)
            if epoch != group.epoch and not self.rules.late_counts:
                yield OUT_OF_DATE, state
                return
        for target in product(living, repeat=self.bounds.partitions):
            yield f"{NEW_TARGET} {target}", self._finish(state, epoch, target)

    def _finish(self, state: State, epoch: int, target: tuple[int, ...]) -> State:
        """A result becomes the target of the epoch that it was computed for, less members that are gone."""
        group = state.group
        good = tuple(group.members[who] is not None for who in target)
        if self.rules.target_members:
            target = tuple(
                who if here else self._meanwhile(group, p)
                for p, (who, here) in enumerate(zip(target, good, strict=True))
            )
        batch = self._coordinator.batch(state)
        batch.add("target", epoch if self.rules.target_epoch else group.epoch, target)
        waits = self.rules.target_members and not all(good) and epoch == group.epoch
        if waits and self.rules.next_stored:
            batch.add("bump")
        state = self._coordinator.write(state, batch)
        if waits and not self.rules.next_stored:
            living = tuple(who for who, member in enumerate(group.members) if member)
            state = state._replace(computing=(epoch, living))
        return state

    def _meanwhile(self, group: Group, partition: int) -> int:
        """Who has a partition whose new owner is gone, until the next assignment."""
        who = group.target[partition]
        return who if self.rules.share_stays and who >= 0 and group.members[who] else -1

    def _expire(self, state: State, who: int, member: Member) -> Iterator[Step]:
        """A session, or a grace, ends."""
        if not self._may_expire(state, who, member):
            return
        batch = self._coordinator.batch(state)
        batch.add("remove", who)
        batch.add("bump")
        after = self._coordinator.write(state, batch)
        yield (
            f"the session of process {who} expires",
            after._replace(attached=put(after.attached, who, 0), dirty=put(after.dirty, who, False)),
        )

    def _may_expire(self, state: State, who: int, member: Member) -> bool:
        """What the clocks leave possible: a process stops by its own clock before its session ends."""
        process = state.processes[who]
        if process.mode == "joining" and process.join == member.join:
            return False
        if process.mode != "in" or process.join != member.join or process.ousted:
            return True
        if who in self.bounds.unary:
            return process.over or process.asleep or (not self.rules.own_clock and state.left[ENDS] > 0)
        if state.attached[who]:
            return False
        if process.over or process.asleep:
            return True
        # The beats of its stream are acknowledged, but the coordinator does not count them for this member.
        return process.settled or (not self.rules.own_clock and state.left[ENDS] > 0)

    def _removals(self, state: State) -> Iterator[Step]:
        """An operator removes a member, or deletes a group without members."""
        group = state.group
        for who, member in enumerate(group.members):
            if member and state.left[REMOVALS]:
                batch = self._coordinator.batch(state)
                batch.add("remove", who)
                batch.add("bump")
                after = self._coordinator.write(spend(state, REMOVALS), batch)
                yield f"an operator removes process {who}", self._coordinator.oust(after, who, member.join)
        if state.left[DELETIONS] and not any(group.members):
            batch = self._coordinator.batch(state)
            batch.add("delete")
            deleted = spend(state, DELETIONS)._replace(group=batch.group(), computing=None, checked=None)
            yield "the group is deleted", deleted

    def _deadlines(self, state: State) -> Iterator[Step]:
        for timer in state.timers:
            who, epoch, taken = timer
            process, member = state.processes[who], state.group.members[who]
            rest = state._replace(timers=tuple(t for t in state.timers if t != timer))
            if (
                member is None
                or not any(member.taken)
                or (self.rules.deadline_named and max(member.taken) != taken)
            ):
                continue
            if not self.rules.deadline_named and member.epoch != epoch:
                continue
            if not process.hung:
                if not state.left[DEADLINES]:
                    continue
                rest = spend(rest, DEADLINES)
            batch = self._coordinator.batch(rest)
            batch.add("remove", who)
            batch.add("bump")
            after = self._coordinator.write(rest, batch)
            if taken not in member.taken:
                after = after._replace(wrong=after.wrong or "S5 a deadline that was met fences its member")
            yield f"the deadline of process {who} passes", self._coordinator.oust(after, who, member.join)

    def broken(self, state: State) -> str:
        """Which promise is broken; empty: none."""
        if state.wrong:
            return state.wrong
        return self._wrongly_run(state) or self._run_twice(state) or self._waited_for(state)

    def _wrongly_run(self, state: State) -> str:
        """What a process runs that is not its own, or cannot commit."""
        for who, process in enumerate(state.processes):
            member = state.group.members[who]
            named = member if member and member.join == process.join and process.mode == "in" else None
            if named and named.seq > process.seq and self._works(named, process):
                return f"S7 the next commit of process {who}, which is the owner, will be refused"
            if process.asleep or process.ousted or process.unsure:
                continue
            for partition, token in enumerate(process.owns):
                if token and (member is None or member.held[partition] != token):
                    return f"S1 process {who} runs {partition}, which the group has taken from it"
        return ""

    def _works(self, member: Member, process: Process) -> bool:
        """Whether a process runs something that its member has."""
        return any(token and token == member.held[p] for p, token in enumerate(process.owns))

    def _run_twice(self, state: State) -> str:
        """What two processes run after the log lost its end."""
        if not self.bounds.cuts:
            return ""
        for partition in range(self.bounds.partitions):
            tokens = [p.owns[partition] for p in state.processes if p.owns[partition]]
            if len(set(tokens)) < len(tokens):
                return f"S3 two processes run {partition} under one token"
            if len(tokens) > 1 and self._quiet(state):
                return f"S8 two processes run {partition} for ever: nothing is under way"
        return ""

    def _waited_for(self, state: State) -> str:
        """What somebody waits for without need."""
        group = state.group
        for who in self.bounds.streams:
            member = group.members[who]
            if member and state.attached[who] and not member.away and not any(member.taken):
                for partition, wanted in enumerate(group.target):
                    if wanted == who and not member.held[partition] and self._free(group, partition):
                        return f"L2 {partition} is free and process {who} waits for it"
        for who, member in enumerate(group.members):
            if member and member.away and any(member.taken):
                return f"L2 somebody waits for process {who}, which said that it is away"
        return ""

    def _quiet(self, state: State) -> bool:
        """Everybody has heard everything, and nothing is to be done."""
        group = state.group
        busy = any(state.up) or any(state.down) or state.late or any(state.dirty)
        if busy or group.epoch != group.target_epoch or any(any(m.taken) for m in group.members if m):
            return False
        return all(p.mode == "in" and p.conn and not p.dead and p.news is None for p in state.processes)

    def _free(self, group: Group, partition: int) -> bool:
        return all(not member or not member.held[partition] for member in group.members)

    def settled(self, state: State) -> bool:
        """The group has reached its target, and everybody runs what is his."""
        group = state.group
        if any(group.members) and (
            group.epoch != group.target_epoch
            or not all(who >= 0 and group.members[who] for who in group.target)
        ):
            return False
        for who, process in enumerate(state.processes):
            member = group.members[who]
            if process.mode == "joining" and self._coordinator.holds_its_place(state, who):
                continue
            if process.mode == "joining" or (process.mode == "in" and member is None):
                return False
            if member is None:
                continue
            if process.mode != "in" or process.join != member.join or process.news is not None:
                return False
            if process.owns != member.held or any(member.taken) or process.over:
                return False
            if any((wanted == who) != bool(member.held[p]) for p, wanted in enumerate(group.target)):
                return False
        return True
